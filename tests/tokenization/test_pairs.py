"""Truncation of pairs."""

import random

import numpy as np

from official_bert.tokenization import pairs


def test_truncation_shortens_the_longer_and_of_equal_ones_the_second():
    a, b = list(range(6)), list(range(4))
    pairs.truncate_at_random_ends(a, b, 7, random.Random(0))
    assert (len(a), len(b)) == (4, 3)


def test_truncation_takes_the_original_s_steps_and_linear_time():
    def original(a: list[int], b: list[int], most: int, rng: random.Random) -> None:
        while len(a) + len(b) > most:
            longer = a if len(a) > len(b) else b
            longer.pop(0 if rng.random() < 0.5 else -1)

    for seed in range(30):
        sizes = random.Random(seed).choices(range(40), k=2)
        expected, found = [[list(range(size)) for size in sizes] for _ in range(2)]
        original(expected[0], expected[1], 20, random.Random(seed))
        pairs.truncate_at_random_ends(found[0], found[1], 20, random.Random(seed))
        assert found == expected
    # A line of some megabytes: if all behind the front moved at each removal, this would take an hour.
    long = list(range(3_000_000))
    pairs.truncate_at_random_ends(long, [], 125, random.Random(0))
    assert len(long) == 125


def test_many_lengths_are_cut_as_one_pair_is():
    rng = random.Random(0)
    for _ in range(300):
        la, lb, room = rng.randrange(12), rng.randrange(12), rng.randrange(14)
        a, b = list(range(la)), list(range(lb))
        pairs.truncate_at_the_end(a, b, room)
        got = pairs.lengths_truncated_at_the_end(np.array([la]), np.array([lb]), room)
        assert (len(a), len(b)) == (int(got[0][0]), int(got[1][0])), (la, lb, room)
        assert a == list(range(len(a)))
