"""Counting words with limited memory."""

import pytest

from data_gen.vocabulary import word_counts
from data_gen.vocabulary.word_counts import WordCounts
from official_bert.tokenization.casing import UNCASED


def test_words_are_counted_exactly_below_the_limit():
    counts = WordCounts(UNCASED, max_words=100)
    for document in (["Été, été!", "ΟΔΟΣ"], ["a\u302e"], ["x" * 200, "y" * 300]):
        counts.add(document)
    assert counts.counts == {
        "ete": 2,
        ",": 1,
        "!": 1,
        "οδος": 1,
        "a\u302e": 1,
        "x" * 200: 1,
        "y" * 201: 1,
    }
    assert (counts.documents, counts.halvings) == (3, 0)


def test_above_the_limit_an_even_sample_is_counted():
    def sample() -> WordCounts:
        counts = WordCounts(UNCASED, max_words=3000)
        for number in range(40_000):
            counts.add([f"often w{number % 20} once{number}", f"early{number < 20_000}"])
        return counts

    counts = sample()
    assert 1000 < len(counts.counts) <= 3000
    assert counts.halvings in (3, 4, 5)
    share = 2**counts.halvings
    once = sum(count for word, count in counts.counts.items() if word.startswith("once"))
    for measured, true in (
        (counts.counts["often"], 40_000),
        (sum(counts.counts[f"w{number}"] for number in range(20)), 40_000),
        (counts.counts["earlytrue"], 20_000),
        (counts.counts["earlyfalse"], 20_000),
        (once, 40_000),
    ):
        assert measured * share == pytest.approx(true, rel=0.1)
    assert counts.counts == sample().counts


def test_much_text_of_few_words_is_sampled_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(word_counts, "_MAX_OCCURRENCES", 100_000)
    counts = WordCounts(UNCASED, max_words=10)
    for _ in range(1000):
        counts.add(["a b c"] * 1000)
    assert 50_000 <= sum(counts.counts.values()) <= 100_000
    assert sum(counts.counts.values()) * 2**counts.halvings == pytest.approx(3_000_000, rel=0.02)
