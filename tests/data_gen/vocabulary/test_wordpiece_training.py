"""The initial pieces of a vocabulary and its letters."""

import collections

import pytest

from data_gen.vocabulary.wordpiece_training import list_special_pieces, select_common_letters
from official_bert.tokenization.exact import load_vocab


@pytest.mark.parametrize("casing", ["uncased", "cased"])
def test_release_layout_equals_the_released_vocabularies(casing, test_data):
    released = list(load_vocab(str(test_data / "vocab" / f"bert-base-{casing}-vocab.txt")))
    pieces = list_special_pieces("release", do_lower_case=casing == "uncased")
    assert released[: len(pieces)] == pieces
    assert not any(piece.startswith("[unused") for piece in released[len(pieces) :])


@pytest.mark.parametrize(("coverage", "letters"), [(0.5, "a"), (0.51, "ab"), (0.99, "abcd"), (1.0, "abcde")])
def test_coverage_takes_the_fewest_letters_that_reach_it(coverage, letters):
    frequencies = collections.Counter({"a": 50, "c": 20, "b": 20, "d": 9, "e": 1})
    assert select_common_letters(frequencies, coverage) == set(letters)
