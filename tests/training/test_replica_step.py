"""Micro-batches add up to the batch, and a step that is not finite changes nothing."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.optimization.loss_scale import DynamicLossScale
from official_bert.optimization.optimizers import BertAdamW
from official_bert.training.replica_step import accumulate_gradients, apply_gradients, split_micro_batches
from official_bert.training.replicas import make_length_buckets, report_compilation
from tests.make import assert_mentions


def test_a_batch_of_any_length_is_split_into_micro_batches_in_order():
    parts = split_micro_batches({"a": tf.range(12), "b": (tf.reshape(tf.range(24), (12, 2)),)}, 3)
    assert parts["a"].numpy().tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert parts["b"][0].shape == (3, 4, 2)
    split = tf.function(lambda ids: split_micro_batches(ids, 2), input_signature=[tf.TensorSpec([4, None], tf.int32)])
    assert [split(tf.zeros((4, length), tf.int32)).shape for length in (3, 5)] == [(2, 2, 3), (2, 2, 5)]


def test_batch_lengths_double_up_to_the_longest():
    lengths = {length: make_length_buckets(length) for length in (16, 100, 128)}
    assert lengths == {16: (16,), 100: (32, 64, 100), 128: (32, 64, 128)}


def test_compilation_is_reported_only_for_fixed_lengths(capsys):
    for lengths, names in (((), ()), ((8, 16, 32), ("2 x 8", 3))):
        report_compilation("step", {"input_ids": tf.zeros((2, 8))}, lengths)
        output = capsys.readouterr().out
        assert bool(output) == bool(names)
        assert_mentions(output, *names)


@pytest.mark.parametrize("count", [3, 2])
def test_gradients_of_micro_batches_add_up_and_empty_ones_are_ignored(count: int):
    weight = keras.Variable([1.0, 2.0])
    rows = tf.constant(np.random.default_rng(0).normal(size=(6, 2)), tf.float32)
    numbers = []

    def sums_and_gradients(number, part):
        numbers.append(number)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(part["rows"]) * weight.value)
        return {"loss": loss, "count": tf.cast(tf.shape(part["rows"])[0], tf.float32)}, tape.gradient(loss, [weight])

    micro_batches = split_micro_batches({"rows": rows}, 3)
    sums, (gradient,) = accumulate_gradients(sums_and_gradients, micro_batches, count, [weight], ("loss", "count"))
    used = rows[: 2 * count]
    np.testing.assert_allclose(gradient, tf.reduce_sum(tf.square(used), axis=0), rtol=1e-6)
    np.testing.assert_allclose(sums["loss"], tf.reduce_sum(tf.square(used) * weight.value), rtol=1e-6)
    assert float(sums["count"]) == 2 * count
    assert [int(number) for number in numbers] == list(range(count))


@pytest.mark.parametrize("is_scaled", [False, True])
def test_an_update_unscales_clips_and_skips_nonfinite_gradients(is_scaled: bool):
    weight = keras.Variable([3.0, 4.0])
    optimizer = BertAdamW(0.1)
    optimizer.build([weight])
    scale = DynamicLossScale() if is_scaled else None
    factor = float(scale.factor) if scale else 1.0

    def update(gradient, finite_loss):
        gradients = [tf.constant(gradient) * factor]
        norm, finite = apply_gradients(optimizer, scale, not is_scaled, gradients, tf.constant(finite_loss))
        return float(norm), bool(finite)

    for gradient, finite_loss in (([float("inf"), 0.0], True), ([1.0, 1.0], False)):
        assert not update(gradient, finite_loss)[1]
        np.testing.assert_array_equal(weight, [3.0, 4.0])
    if scale:
        assert float(scale.factor) == factor / 4
        factor /= 4
    assert update([30.0, 40.0], True) == (50.0, True)
    np.testing.assert_allclose(optimizer.variables[2], np.array([0.6, 0.8]) * 0.1, rtol=1e-5)  # the mean of gradients
    assert int(optimizer.iterations.numpy()) == 3
