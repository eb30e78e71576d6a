"""The initial pieces of a vocabulary and its letters."""

import collections
import pathlib

import pytest

from data_gen.vocabulary.wordpiece_training import list_special_pieces, select_common_letters
from official_bert.tokenization.exact import SPECIAL_TOKENS, load_vocab
from tests.tokenization.test_exact import VOCABULARIES


@pytest.mark.parametrize("name", VOCABULARIES)
def test_release_layout_equals_the_released_vocabularies(name: str, test_data: pathlib.Path):
    released = load_vocab(str(test_data / "vocab" / name))
    for do_lower_case in (True, False):
        ours = {piece: index for index, piece in enumerate(list_special_pieces("release", do_lower_case))}
        assert all(ours[token] == released[token] for token in SPECIAL_TOKENS)
    if name.startswith(("bert-base-uncased", "bert-base-cased")):
        ours_in_order = list_special_pieces("release", do_lower_case="uncased" in name)
        assert list(released)[: len(ours_in_order)] == ours_in_order
        assert not any(piece.startswith("[unused") for piece in list(released)[len(ours_in_order) :])


def test_coverage_takes_the_fewest_letters_that_reach_it():
    frequencies = collections.Counter({"a": 50, "c": 20, "b": 20, "d": 9, "e": 1})
    assert select_common_letters(frequencies, 0.5) == {"a"}
    assert select_common_letters(frequencies, 0.51) == {"a", "b"}
    assert select_common_letters(frequencies, 0.99) == {"a", "b", "c", "d"}
    assert select_common_letters(frequencies, 1.0) == set("abcde")
