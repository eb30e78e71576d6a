"""Measurements of a vocabulary."""

import pytest

from data_gen.vocabulary import report
from data_gen.vocabulary.word_counts import WordCounts
from official_bert.tokenization.casing import make_casing
from official_bert.tokenization.exact import UNK, FullTokenizer


@pytest.mark.parametrize("name", ["bert-base-uncased-vocab.txt", "bert-base-cased-vocab.txt"])
def test_measurements_equal_those_of_the_full_tokenizer(name, test_data):
    casing = make_casing("uncased" in name)
    tokenizer = FullTokenizer(str(test_data / "vocab" / name), *casing)
    text = (test_data / "text" / "vi_xquad.txt").read_text(encoding="utf-8") + "y" * 201 + "\u4e86" * 300
    counts = WordCounts(casing, max_words=100_000)
    counts.add(text.splitlines())
    figures = report.measure(tokenizer.vocab, counts.counts)
    words = tokenizer.basic_tokenizer.tokenize(text)
    pieces = list(map(tokenizer.tokenize, words))
    assert figures.size == len(tokenizer.vocab)
    assert figures.pieces_per_word == sum(map(len, pieces)) / len(pieces)
    assert figures.whole == sum(each == [word] for each, word in zip(pieces, words, strict=True)) / len(words)
    assert figures.unknown == pieces.count([UNK]) / len(pieces)
    assert 0 < figures.unknown < figures.whole < 1
