"""Selection of the masked tokens and their replacements."""

import random

import pytest

from data_gen.rules import masking


def masking_vocabulary() -> masking.MaskingVocabulary:
    # 0 [PAD], 1 [UNK], 2 [CLS], 3 [SEP], 4 [MASK], 5 to 9 words, 10 to 14 pieces within words
    return masking.MaskingVocabulary(list(range(15)), frozenset(range(10, 15)), frozenset((2, 3)), 4)


@pytest.mark.parametrize(("tokens", "expected"), [(10, 2), (30, 4), (50, 8), (70, 10), (128, 19), (512, 76), (3, 1)])
def test_number_of_predictions_rounds_half_to_even(tokens: int, expected: int):
    assert masking.number_to_predict(tokens, 0.15, 76) == expected


def test_eighty_of_a_hundred_become_mask_ten_stay_ten_are_random():
    rng = random.Random(0)
    ids = [2, *[5] * 60, 3, *[6] * 60, 3]
    became_mask = stayed = changed = 0
    for _ in range(500):
        masked, positions, labels = masking.mask(ids, 20, masking_vocabulary(), False, rng)
        assert labels == [ids[position] for position in positions]
        assert len(positions) == 20
        for position in positions:
            became_mask += masked[position] == 4
            stayed += masked[position] == ids[position]
            changed += masked[position] not in (4, ids[position])
        untouched = set(range(len(ids))) - set(positions)
        assert all(masked[position] == ids[position] for position in untouched)
    # In one of fifteen cases, a random replacement is [MASK] or the original word.
    assert became_mask / 10_000 == pytest.approx(0.8 + 0.1 / 15, abs=0.02)
    assert stayed / 10_000 == pytest.approx(0.1 + 0.1 / 15, abs=0.015)
    assert changed / 10_000 == pytest.approx(0.1 * 13 / 15, abs=0.015)


def test_whole_words_are_masked_together():
    ids = [2, 5, 10, 11, 6, 12, 7, 3, 8, 13, 9, 3]
    words = [{1, 2, 3}, {4, 5}, {6}, {8, 9}, {10}]
    rng = random.Random(0)
    for _ in range(200):
        _, positions, _ = masking.mask(ids, 4, masking_vocabulary(), True, rng)
        assert len(positions) <= 4
        chosen = set(positions)
        assert all(word <= chosen or not word & chosen for word in words)


def test_a_piece_at_the_front_of_b_joins_the_last_word_of_a_as_in_the_original():
    # a, dog, ##gy, [SEP], ##ing: one word with three positions on both sides of [SEP]
    ids = [2, 5, 6, 10, 3, 11, 3]
    rng = random.Random(0)
    chosen = {tuple(masking.mask(ids, 3, masking_vocabulary(), True, rng)[1]) for _ in range(50)}
    assert chosen == {(1,), (2, 3, 5)}
