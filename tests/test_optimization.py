import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.config import BertConfig
from official_bert.models import build_pretraining_model
from official_bert.optimization import BertAdamW, WarmupLinearDecay, is_decayed
from tests.reference import ReferenceAdamW


def rates(schedule: WarmupLinearDecay, steps: int) -> list[float]:
    return [float(schedule(step)) for step in range(steps)]


def test_rate_warms_up_then_jumps_to_the_line_from_step_zero():
    expected = [0.0, 0.25, 0.5, 0.75, *(1 - step / 10 for step in range(4, 11)), 0.0]
    assert rates(WarmupLinearDecay(1.0, 10, 4), 12) == pytest.approx(expected)


def test_rate_without_the_jump_decays_from_the_peak():
    expected = [0.0, 0.25, 0.5, 0.75, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0.0]
    assert rates(WarmupLinearDecay(1.0, 10, 4, jump=False), 11) == pytest.approx(expected)


def test_rate_without_warmup_starts_at_the_peak():
    assert rates(WarmupLinearDecay(2.0, 4), 5) == pytest.approx([2.0, 1.5, 1.0, 0.5, 0.0])


def test_warmup_longer_than_training_only_rises():
    assert rates(WarmupLinearDecay(1.0, 3, 6), 3) == pytest.approx([0, 1 / 6, 2 / 6])
    assert rates(WarmupLinearDecay(1.0, 3, 6, jump=False), 3) == pytest.approx([0, 1 / 6, 2 / 6])


@pytest.mark.parametrize("scale", [0.01, 10.0])  # below and above the norm that is clipped
def test_updates_equal_the_published_rule_over_several_steps(tiny_config: BertConfig, scale: float):
    model = build_pretraining_model(tiny_config, seed=0)
    variables = model.trainable_variables
    optimizer = BertAdamW(WarmupLinearDecay(1e-2, 8, 3))
    reference = ReferenceAdamW(1e-2, 8, 3)
    weights = {variable.path: np.asarray(variable, np.float64) for variable in variables}
    rng = np.random.default_rng(0)
    for _ in range(9):
        gradients = {path: rng.normal(0, scale, value.shape) for path, value in weights.items()}
        optimizer.apply([tf.constant(gradients[v.path], tf.float32) for v in variables], variables)
        weights = reference.apply(weights, gradients)
        for variable in variables:
            np.testing.assert_allclose(variable, weights[variable.path], atol=1e-6)


def test_biases_and_normalization_are_not_decayed_and_all_else_is(tiny_config: BertConfig):
    for variable in build_pretraining_model(tiny_config).trainable_variables:
        # The original's rule: no decay where the name has LayerNorm, layer_norm or bias in it.
        excluded = any(part in variable.path for part in ("layer_norm", "bias"))
        assert is_decayed(variable) != excluded, variable.path


def test_rows_of_equal_ids_are_added_up_before_squaring():
    table = keras.Variable(np.zeros((4, 2), "float32"), name="embeddings")
    sparse = tf.IndexedSlices(tf.constant([[1.0, 0.0], [2.0, 1.0]]), tf.constant([1, 1]), tf.constant([4, 2]))
    dense = tf.constant([[0.0, 0.0], [3.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    results = []
    for gradient in (sparse, dense):
        table.assign(np.zeros((4, 2)))
        BertAdamW(0.1).apply([gradient], [table])
        results.append(np.asarray(table).copy())
    np.testing.assert_array_equal(*results)
    assert results[0].any()


def test_norm_is_that_before_clipping():
    optimizer = BertAdamW(0.1, clip_norm=1.0)
    (clipped,), norm = optimizer.sum_and_clip([tf.constant([3.0, 4.0])])
    assert float(norm) == pytest.approx(5.0)
    np.testing.assert_allclose(clipped, [0.6, 0.8])
    (whole,), _ = BertAdamW(0.1, clip_norm=None).sum_and_clip([tf.constant([3.0, 4.0])])
    np.testing.assert_allclose(whole, [3.0, 4.0])


def test_optimizer_survives_its_configuration():
    optimizer = BertAdamW(WarmupLinearDecay(1e-3, 10, 2, jump=False), weight_decay_rate=0.1, clip_norm=None)
    copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert isinstance(copy, BertAdamW)
    assert copy.get_config() == optimizer.get_config()


def test_keras_fit_uses_the_same_update(tiny_config: BertConfig):
    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(2, name="dense")(inputs)
    x, y = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")
    model = keras.Model(inputs, outputs)
    before = {variable.path: np.asarray(variable, np.float64) for variable in model.variables}
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    arrays = [np.asarray(gradient, np.float64) for gradient in tape.gradient(loss, model.variables)]
    gradients = dict(zip(before, arrays, strict=True))
    expected = ReferenceAdamW(0.1, 10, 0).apply(before, gradients)
    model.compile(BertAdamW(WarmupLinearDecay(0.1, 10)), loss="mse")
    model.fit(x, y, batch_size=4, epochs=1, verbose=0)
    for variable in model.variables:
        np.testing.assert_allclose(variable, expected[variable.path], rtol=1e-5)
