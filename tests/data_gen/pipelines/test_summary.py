"""The summary that make-records prints about its records."""

import re

import pytest

from data_gen.pipelines.summary import describe
from tests.make import assert_mentions


@pytest.mark.parametrize(("random_next", "is_warned"), [(0, False), (75, False), (76, True), (100, True)])
def test_text_with_mostly_random_pairs_gives_a_warning(random_next, is_warned):
    counts = {"text_documents": 1, "text_tokens": 90, "text_unknown": 0, "instances": 100, "positions": 100}
    summary = describe({**counts, "tokens": 90, "predictions": 0, "random_next": random_next}, 1)
    assert (f"warning: {random_next} of 100 segment pairs are labelled random" in summary) == is_warned
    assert summary.endswith("--sentence_objective=none") == is_warned


def test_summary_shares_are_relative_to_their_totals():
    counts = {"text_documents": 3, "text_tokens": 200, "text_unknown": 5, "text_excluded": 7, "instances": 10}
    counts |= {"positions": 400, "tokens": 300, "maskable": 250, "predictions": 40, "random_next": 4}
    counts |= {"sequential": 450}
    lines = dict(re.split("  +", line) for line in describe(counts, 3).splitlines())
    assert lines["documents"].startswith("3, 7 ")
    assert lines["tokens in text"].startswith("200, 2.50 %")
    shares = [lines[name].split(" ")[0] for name in ("random segments", "predictions", "padding", "truncated")]
    assert shares == ["40.0", "16.0", "25.0", "25.0"]
    assert "warning" not in describe(counts | {"text_unknown": 20}, 3)
    assert "warning: 10.50 % of the tokens are [UNK]" in describe(counts | {"text_unknown": 21}, 3)
    counts |= {"sequential": 60, "text_invalid_bytes": 7}
    assert_mentions(describe(counts, 3), "90.00 %", "--max_seq_length=40", "--input_format=paragraphs")
    assert "not UTF-8: 7\n" in describe(counts, 3)
