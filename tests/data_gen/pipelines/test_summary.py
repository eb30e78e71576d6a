"""The summary that make-records prints about its records."""

import pytest

from data_gen.pipelines.summary import RecordSummary


@pytest.mark.parametrize(("random_next", "is_named"), [(0, False), (50, False), (75, False), (76, True), (100, True)])
def test_text_with_mostly_random_pairs_gives_a_warning(random_next: int, is_named: bool):
    report = str(
        RecordSummary(text_documents=1, text_tokens=90, text_unknown=0, instances=100, random_next=random_next)
    )
    warning = f"warning: {random_next} of 100 segment pairs are labelled random, because the text has too few documents"
    assert (warning in report) == is_named
    assert report.endswith("or pass --sentence_objective=none") == is_named
