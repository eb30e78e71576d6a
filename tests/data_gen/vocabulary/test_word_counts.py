"""Counting words with limited memory."""

import pytest

from data_gen.vocabulary import word_counts
from data_gen.vocabulary.word_counts import WordCounts
from official_bert.tokenization.casing import UNCASED


def test_words_are_counted_exactly_below_the_limit():
    counts = WordCounts(UNCASED, max_words=7)  # exactly as many as there are
    for document in (["Été, été!", "ΟΔΟΣ"], ["a\u302e"], ["x" * 200, "y" * 300]):
        counts.add(document)
    words = ["ete", "ete", ",", "!", "οδος", "a\u302e", "x" * 200, "y" * 201]
    assert counts.counts == {word: words.count(word) for word in words}
    assert (counts.documents, counts.halvings) == (3, 0)


def test_above_the_limit_an_even_sample_is_counted():
    samples = [WordCounts(UNCASED, max_words=3000) for _ in range(2)]
    for sample in samples:
        for number in range(40_000):
            sample.add([f"often w{number % 20} once{number}", f"early{number < 20_000}"])
    counts, share = samples[0].counts, 2 ** samples[0].halvings
    assert counts == samples[1].counts
    assert 1000 < len(counts) <= 3000
    assert 8 <= share <= 32
    for words, expected in (
        (["often"], 40_000),
        ([f"w{number}" for number in range(20)], 40_000),
        (["earlytrue"], 20_000),
        (["earlyfalse"], 20_000),
        ([word for word in counts if word.startswith("once")], 40_000),
    ):
        assert share * sum(counts[word] for word in words) == pytest.approx(expected, rel=0.1)


def test_much_text_of_few_words_is_sampled_too(monkeypatch):
    monkeypatch.setattr(word_counts, "_MAX_OCCURRENCES", 100_000)
    counts = WordCounts(UNCASED, max_words=10)
    for _ in range(1000):
        counts.add(["a b c"] * 1000)
    assert 50_000 <= sum(counts.counts.values()) <= 100_000
    assert sum(counts.counts.values()) * 2**counts.halvings == pytest.approx(3_000_000, rel=0.02)
