"""The summary that make-records prints about its records."""

import pytest

from data_gen.pipelines.summary import describe


@pytest.mark.parametrize(("random_next", "is_warned"), [(0, False), (75, False), (76, True), (100, True)])
def test_text_with_mostly_random_pairs_gives_a_warning(random_next, is_warned):
    counts = {"text_documents": 1, "text_tokens": 90, "text_unknown": 0, "instances": 100, "positions": 100}
    summary = describe({**counts, "tokens": 90, "predictions": 0, "random_next": random_next})
    assert (f"warning: {random_next} of 100 segment pairs are labelled random" in summary) == is_warned
    assert summary.endswith("--sentence_objective=none") == is_warned
