import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.optimization.loss_scale import DynamicLossScale
from official_bert.optimization.optimizers import BertAdamW
from official_bert.optimization.schedules import WarmupPolynomialDecay


@pytest.mark.parametrize("jit_compile", [False, True])
def test_overflowing_steps_are_skipped_and_the_loss_scale_adapts(jit_compile: bool):
    def train(*inputs):
        kernel = keras.Variable(np.ones((2, 2), "float32"), name="kernel")
        optimizer = BertAdamW(0.1, clip_norm=None)
        optimizer.build([kernel])
        scale = DynamicLossScale(initial=2.0**10, growth_steps=2)

        @tf.function(jit_compile=jit_compile)
        def step(x):
            with tf.GradientTape() as tape:
                half = tf.cast(kernel.value, tf.float16) * tf.cast(x, tf.float16)
                scaled = scale.scale(tf.reduce_sum(tf.cast(half, tf.float32)))  # the backward pass is in float16
            gradients, norm = optimizer.sum_and_clip(scale.unscale(tape.gradient(scaled, [kernel.value])))
            finite = tf.math.is_finite(norm)
            optimizer.apply_summed(gradients, [kernel], only_if=finite)
            scale.update(finite)
            return norm

        weights, factors = [], []
        for x in inputs:
            assert float(step(tf.constant(x))) == (pytest.approx(4.0) if x == 2.0 else np.inf)
            weights.append(np.asarray(kernel).copy())
            factors.append(float(scale.factor))
        assert int(optimizer.iterations.numpy()) == len(inputs)
        return weights, [np.asarray(variable) for variable in optimizer.variables[2:]], factors

    skipping, moments, factors = train(2.0, 100.0, 2.0, 2.0)  # 100 * 2 ** 10 is too large for float16
    whole, moments_of_whole, _ = train(2.0, 2.0, 2.0)
    assert factors == [2.0**10, 2.0**9, 2.0**9, 2.0**10]
    np.testing.assert_array_equal(skipping[1], skipping[0])
    np.testing.assert_array_equal(skipping[2:], whole[1:])
    np.testing.assert_array_equal(moments, moments_of_whole)


def test_loss_scale_doubles_after_every_growth_interval_within_its_bounds():
    default = DynamicLossScale()
    assert (float(default.factor), default.growth_steps) == (2.0**15, 2000)

    def update(scale, *finite):
        return [scale.update(tf.constant(each)) or float(scale.factor) for each in finite]

    assert update(DynamicLossScale(2.0, growth_steps=3), *[True] * 7) == [2.0, 2.0, 4.0, 4.0, 4.0, 8.0, 8.0]
    factors = update(DynamicLossScale(2.0, growth_steps=1), *[False] * 3, *[True] * 30)
    assert (factors[2], factors[-1]) == (1.0, 2.0**24)


def test_a_restarted_optimizer_resets_its_loss_scale():
    kernel = keras.Variable([1.0, 2.0], name="kernel")
    optimizer = BertAdamW(WarmupPolynomialDecay(0.1, 10))
    optimizer.build([kernel])
    optimizer.loss_scale = DynamicLossScale(initial=8.0, growth_steps=2)
    new = [np.asarray(variable).copy() for variable in optimizer.variables]
    for _ in range(3):
        optimizer.apply([tf.ones(2)], [kernel])
        optimizer.loss_scale.update(tf.constant(True))
    assert float(optimizer.scale_loss(tf.constant(3.0))) == 48.0
    used = [np.asarray(variable) for variable in optimizer.variables]
    assert not any(np.array_equal(*pair) for pair in zip(used, new, strict=True))
    assert [variable.path for variable in optimizer.variables[-2:]] == ["loss_scale/factor", "loss_scale/finite_steps"]
    optimizer.restart()
    np.testing.assert_equal([np.asarray(variable) for variable in optimizer.variables], new)
