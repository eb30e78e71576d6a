"""Random numbers are the same on every machine."""

import math

import numpy as np
import pytest

from data_gen.rules.random_numbers import Random


@pytest.mark.parametrize("trials", [0, 1, 5, 63, 64, 65, 130, 1000])
def test_fair_binomial_numbers_have_the_mean_and_variance_of_a_fair_coin(trials):
    successes = Random("coin", trials).fair_binomial(np.full(20_000, trials))
    assert 0 <= successes.min() <= successes.max() <= trials
    assert successes.mean() == pytest.approx(trials / 2, abs=4 * math.sqrt(trials / 4 / 20_000))
    assert successes.var() == pytest.approx(trials / 4, rel=0.05)


def test_random_numbers_are_the_same_in_every_release():
    random_numbers = Random(12345, 0, 1)
    assert list(map(hex, random_numbers.raw(2).tolist())) == ["0x9d8357d88b653557", "0x934968f139a90ee"]
    assert 0 <= random_numbers.uniform(1000).min() <= random_numbers.uniform(1000).max() < 1
    assert set(Random("die").below(np.full(1000, 6)).tolist()) == set(range(6))
