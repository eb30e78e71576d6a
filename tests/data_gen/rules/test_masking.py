"""Selection of the masked tokens."""

import random

import pytest

from data_gen.rules import masking


@pytest.mark.parametrize(("tokens", "expected"), [(10, 2), (30, 4), (50, 8), (70, 10), (128, 19), (512, 76), (3, 1)])
def test_number_of_predictions_rounds_half_to_even(tokens, expected):
    assert masking.number_to_predict(tokens, 0.15, 76) == expected


def test_a_piece_at_the_front_of_b_joins_the_last_word_of_a_as_in_the_original():
    vocabulary = masking.MaskingVocabulary(list(range(15)), frozenset(range(10, 15)), frozenset((2, 3)), 4)
    # a, dog, ##gy, [SEP], ##ing: one word with three positions on both sides of [SEP]
    ids = [2, 5, 6, 10, 3, 11, 3]
    rng = random.Random(0)
    chosen = {tuple(masking.mask(ids, 3, vocabulary, True, rng)[1]) for _ in range(50)}
    assert chosen == {(1,), (2, 3, 5)}
