"""Dropout masks are a function of a seed and the name of the layer."""

import math

import numpy as np
import pytest
import tensorflow as tf

from official_bert.modeling.dropout import Dropout, current_seed, dropout_seed

ONES = np.ones((50, 40), "float32")


def drop(rate: float, x: np.ndarray = ONES, seed: tuple[int, int] = (1, 2), name: str = "a") -> np.ndarray:
    with dropout_seed(list(seed)):
        dropped = Dropout(rate, name=name)(x, training=True)
        return np.asarray(dropped) if tf.executing_eagerly() else dropped


@pytest.mark.parametrize("width", [64, 63, 1])
def test_dropout_has_the_given_rate_and_keeps_the_mean(width: int):
    dropped = drop(0.1, np.ones((2000, width), "float32"))
    kept = dropped != 0
    assert kept.mean() == pytest.approx(0.9, abs=5 * math.sqrt(0.09 / kept.size))
    np.testing.assert_allclose(dropped[kept], 1 / 0.9, rtol=1e-4)
    assert np.abs(kept.mean(axis=0) - 0.9).max() < 5 * math.sqrt(0.09 / 2000)


# A share of 2 ** -16 of 4,000,000 elements is 61. Four standard deviations of this number are 31.
@pytest.mark.parametrize(("rate", "least_dropped", "most_dropped", "kept_value"), [
    (1e-6, 0, 0, 1.0), (1e-5, 30, 92, 1 / (1 - 2.0**-16)),  # the first is less than half a step
    (0.99999, 4_000_000 - 92, 4_000_000 - 30, 2.0**16), (0.9999999, 4_000_000 - 92, 4_000_000 - 30, 2.0**16),
])  # fmt: skip
def test_extreme_dropout_rates(rate, least_dropped, most_dropped, kept_value):
    dropped = drop(rate, np.ones((2000, 2000), "float32"))
    assert least_dropped <= (dropped == 0).sum() <= most_dropped
    np.testing.assert_allclose(dropped[dropped != 0], kept_value, rtol=1e-6)


def test_dropout_rate_can_be_changed_and_is_exact_to_a_ten_thousandth():
    layer = Dropout(0.9)
    for layer.rate in (0.05, 0.1, 0.123, 0.5):
        dropped = np.asarray(layer.drop(np.ones(2**16), np.arange(2**16, dtype="uint16")))
        assert np.mean(dropped > 0) == pytest.approx(1 - layer.rate, abs=1e-4)
    layer.rate = 0.0
    np.testing.assert_array_equal(layer.drop(ONES, np.zeros(0, "uint16")), ONES)


def test_dropout_depends_on_seed_and_layer_and_is_off_outside_training():
    np.testing.assert_array_equal(drop(0.5), drop(0.5))
    masks = [drop(0.5), drop(0.5, seed=(1, 3)), drop(0.5, seed=(2, 2)), drop(0.5, name="b")]
    assert len({mask.tobytes() for mask in masks}) == 4
    layer = Dropout(0.5, name="a")
    np.testing.assert_array_equal(layer(ONES), ONES)
    assert not np.array_equal(layer(ONES, training=True), layer(ONES, training=True))  # without a seed, as in fit
    assert not layer.variables
    traced = tf.function(lambda x: drop(0.5, x), input_signature=[tf.TensorSpec([None, None])], autograph=False)
    for x in (ONES[:, 1:], ONES[:0]):  # a replica may have no row
        np.testing.assert_array_equal(traced(x), drop(0.5, x))


def test_nested_seed_scopes_use_the_innermost_seed():
    seen = [current_seed()]
    with dropout_seed([1, 2]):
        with dropout_seed([3, 4]):
            seen.append(current_seed())
        seen.append(current_seed())
    assert [*seen, current_seed()] == [None, [3, 4], [1, 2], None]
