"""Dropout masks are a function of a seed and the name of the layer."""

import math

import numpy as np
import pytest

from official_bert.modeling.config import BertConfig
from official_bert.modeling.dropout import Dropout, dropout_seed
from official_bert.modeling.pretraining_model import build_pretraining_model
from tests.modeling.small_models import random_batch


@pytest.mark.parametrize("width", [64, 63, 1])
def test_dropout_keeps_the_stated_share_and_the_mean(width: int):
    ones = np.ones((2000, width), "float32")
    with dropout_seed([1, 2]):
        dropped = np.asarray(Dropout(0.1, name="somewhere")(ones, training=True))
    kept = dropped != 0
    deviation = math.sqrt(0.09 / ones.size)
    assert kept.mean() == pytest.approx(0.9, abs=5 * deviation)
    assert dropped[kept] == pytest.approx(1 / 0.9, rel=1e-4)
    assert np.abs(kept.mean(axis=0) - 0.9).max() < 5 * math.sqrt(0.09 / 2000)


def test_dropout_rate_is_exact_to_a_ten_thousandth():
    for rate in (0.05, 0.1, 0.123, 0.5):
        assert Dropout(rate)._kept / 2**16 == pytest.approx(1 - rate, abs=1e-4)


def dropped_of_ones(rate: float) -> np.ndarray:
    with dropout_seed([1, 2]):
        return np.asarray(Dropout(rate, name="a")(np.ones((2000, 2000), "float32"), training=True))


@pytest.mark.parametrize("rate", [1e-9, 1e-6])
def test_dropout_rates_below_half_a_step_drop_nothing(rate: float):
    np.testing.assert_array_equal(dropped_of_ones(rate), 1.0)


# A share of 2 ** -16 of 4,000,000 elements is 61. Four standard deviations of this number are 31.
@pytest.mark.parametrize("rate", [1e-5, 2.0**-16])
def test_the_smallest_dropout_rate_is_one_step(rate: float):
    dropped = dropped_of_ones(rate)
    assert 30 <= (dropped == 0).sum() <= 92
    np.testing.assert_allclose(dropped[dropped != 0], 1 / (1 - 2.0**-16), rtol=1e-6)


@pytest.mark.parametrize("rate", [0.99999, 0.9999999])
def test_the_greatest_dropout_rate_keeps_one_step(rate: float):
    dropped = dropped_of_ones(rate)
    assert 30 <= (dropped != 0).sum() <= 92
    assert set(dropped[dropped != 0]) == {2.0**16}


def test_dropout_is_a_function_of_seed_and_place():
    ones = np.ones((50, 40), "float32")

    def mask(seed: list[int], name: str) -> bytes:
        with dropout_seed(seed):
            return np.asarray(Dropout(0.5, name=name)(ones, training=True)).tobytes()

    assert mask([1, 2], "a") == mask([1, 2], "a")
    assert len({mask([1, 2], "a"), mask([1, 3], "a"), mask([2, 2], "a"), mask([1, 2], "b")}) == 4


def test_dropout_is_off_outside_training_and_random_within_fit():
    ones = np.ones((50, 40), "float32")
    layer = Dropout(0.5, name="a")
    np.testing.assert_array_equal(layer(ones), ones)
    assert not np.array_equal(layer(ones, training=True), layer(ones, training=True))
    assert not layer.variables


def test_dropout_changes_training_outputs_only(tiny_config: BertConfig):
    model = build_pretraining_model(tiny_config, seed=6)
    batch = random_batch(tiny_config, 6)
    still = np.asarray(model(batch, training=False)["masked_lm_logits"])
    np.testing.assert_array_equal(model(batch)["masked_lm_logits"], still)
    with dropout_seed([0, 0]):
        assert not np.array_equal(model(batch, training=True)["masked_lm_logits"], still)
