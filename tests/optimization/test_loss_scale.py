import keras
import numpy as np
import tensorflow as tf

from official_bert.optimization.loss_scale import DynamicLossScale
from official_bert.optimization.optimizers import BertAdamW
from official_bert.optimization.schedules import WarmupPolynomialDecay


def test_loss_scale_doubles_after_every_growth_interval_within_its_bounds():
    default = DynamicLossScale()
    assert (float(default.factor), default.growth_steps) == (2.0**15, 2000)

    def update(scale, *finite):
        return [scale.update(tf.constant(each)) or float(scale.factor) for each in finite]

    assert update(DynamicLossScale(2.0, growth_steps=3), *[True] * 7) == [2.0, 2.0, 4.0, 4.0, 4.0, 8.0, 8.0]
    assert update(DynamicLossScale(8.0, growth_steps=2), True, False, True, True) == [8.0, 4.0, 4.0, 8.0]
    factors = update(DynamicLossScale(2.0, growth_steps=1), *[False] * 3, *[True] * 30)
    assert (factors[2], factors[-1]) == (1.0, 2.0**24)


def test_a_restarted_optimizer_resets_its_loss_scale():
    kernel = keras.Variable([1.0, 2.0], name="kernel")
    optimizer = BertAdamW(WarmupPolynomialDecay(0.1, 10))
    optimizer.build([kernel])
    assert float(optimizer.scale_loss(tf.constant(3.0))) == 3.0
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
