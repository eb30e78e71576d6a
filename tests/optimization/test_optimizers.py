"""The optimizers equal their published rules, on one device and on several."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.optimization import optimizers
from official_bert.optimization.choices import OPTIMIZERS, AdamOptions
from official_bert.optimization.distribution import get_strategy
from official_bert.optimization.loss_scale import DynamicLossScale
from official_bert.optimization.optimizers import BertAdamW, KerasAdamW, Lamb, LayerwiseAdamW, get_optimizer
from official_bert.optimization.schedules import WarmupPolynomialDecay
from tests.make import assert_rejected
from tests.processes import run_marked_tests
from tests.reference import ReferenceAdamW, ReferenceCorrectedAdamW, ReferenceKerasAdamW, ReferenceLamb

SHAPES = [("kernel", (3, 4)), ("bias", (4,)), ("gamma", (4,)), ("beta", (4,)), ("embeddings", (5, 3))]

RULES = [
    *(("adamw", {}, ReferenceAdamW, uses_kernel) for uses_kernel in (False, True)),
    *(("adamw", {"adam_bias_correction": True}, ReferenceCorrectedAdamW, uses_kernel) for uses_kernel in (False, True)),
    ("lamb", {}, ReferenceLamb, False),
    ("keras_adamw", {}, ReferenceKerasAdamW, False),
]
OTHER = {"beta_1": 0.7, "beta_2": 0.8, "epsilon": 1e-2, "weight_decay_rate": 0.3, "clip_norm": 0.5}
# The gradients are below and above the clipping norm.
NUMBERS = [(0.01, {}), (10.0, {}), (10.0, OTHER), (10.0, {"beta_1": 0.0, "clip_norm": None})]


@pytest.mark.parametrize(("name", "settings", "reference_class", "uses_kernel"), RULES)
@pytest.mark.parametrize(("scale", "numbers"), NUMBERS)
def test_updates_equal_the_published_rule(scale, numbers, name, settings, reference_class, uses_kernel):
    rng = np.random.default_rng(0)
    with keras.name_scope("layer"):
        variables = [keras.Variable(rng.normal(0, 0.1, shape), dtype="float32", name=path) for path, shape in SHAPES]
    optimizer = get_optimizer(name, WarmupPolynomialDecay(1e-2, 5, 2), **settings, **numbers)
    reference = reference_class(1e-2, 5, 2, **numbers)
    optimizer.build(variables)
    optimizer.uses_kernel = uses_kernel
    weights = {variable.path: np.asarray(variable, np.float64) for variable in variables}
    for _ in range(4):
        gradients = {path: rng.normal(0, scale, value.shape) for path, value in weights.items()}
        optimizer.apply([tf.constant(gradients[each.path], tf.float32) for each in variables], variables)
        weights = reference.apply(weights, gradients)
        for variable in variables:
            np.testing.assert_allclose(variable, weights[variable.path], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("uses_kernel", [False, True])
def test_a_skipped_step_changes_the_step_count_only(uses_kernel):
    variables = [keras.Variable([1.0, 2.0], name=name) for name in ("kernel", "table")]
    optimizer = BertAdamW(0.1)
    optimizer.build(variables)
    optimizer.uses_kernel = uses_kernel
    before = [np.asarray(each).copy() for each in (*variables, *optimizer.variables[2:])]
    for is_finite in (False, True):
        optimizer.apply_summed([tf.ones(2)] * 2, variables, only_if=tf.constant(is_finite))
        after = [np.asarray(each) for each in (*variables, *optimizer.variables[2:])]
        assert all(np.array_equal(*pair) != is_finite for pair in zip(before, after, strict=True))
    assert int(optimizer.iterations.numpy()) == 2


@pytest.mark.parametrize("scale", [0.01, 10.0])  # below and above the clipping norm
def test_gradients_of_equal_ids_are_summed_before_clipping(scale):
    rng = np.random.default_rng(0)
    ids, rows = np.array([3, 1, 3, 3, 0]), rng.normal(0, scale, (5, 2)).astype("float32")
    sparse = tf.IndexedSlices(tf.constant(rows), tf.constant(ids), tf.constant([6, 2]))
    other = tf.constant(rng.normal(0, scale, 4), tf.float32)
    optimizer = BertAdamW()
    (expected, _), norm = optimizer.sum_and_clip([sparse, other])
    optimizer.clips_rows = True
    found, found_norm = optimizer.sum_and_clip([sparse, other, None])
    np.testing.assert_allclose(found_norm, norm, rtol=1e-6)
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)
    assert (found[0].shape, found[2]) == ((6, 2), None)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_flags_set_every_hyperparameter_and_the_configuration_stores_them(name):
    schedule = WarmupPolynomialDecay(1e-3, 10, 2, jump=False, power=0.5, end_rate=1e-5)
    default = get_optimizer(name, schedule, **AdamOptions(adam_bias_correction=False).optimizer_settings)
    assert default.get_config() == get_optimizer(name, schedule).get_config()
    numbers = {"weight_decay": 0.2, "adam_beta1": 0.8, "adam_beta2": 0.9, "adam_epsilon": 1e-4, "max_grad_norm": 0}
    changed = AdamOptions(adam_bias_correction=True, **numbers)
    optimizer = get_optimizer(name, schedule, **changed.optimizer_settings)
    config = optimizer.get_config()
    decay = "weight_decay" if name == "keras_adamw" else "weight_decay_rate"
    assert [config[key] for key in (decay, "beta_1", "beta_2", "epsilon", "clip_norm")] == [0.2, 0.8, 0.9, 1e-4, None]
    assert config.get("adam_bias_correction", True)
    copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(copy) is type(optimizer)
    assert copy.get_config() == config


def test_unsupported_optimizer_settings_are_rejected():
    for name, instead in (("clipvalue", "clip_norm"), ("weight_decay", "weight_decay_rate"), ("loss_scale_factor", "")):
        assert_rejected(("Lamb", f"{name}=0.5", instead), Lamb, **{name: 0.5})
    assert_rejected(("KerasAdamW", "gradient_accumulation_steps=4"), KerasAdamW, gradient_accumulation_steps=4)


def test_trust_ratio_is_one_where_a_norm_is_zero():
    some, none = tf.constant([3.0, 4.0]), tf.zeros(2)
    assert float(optimizers.compute_trust_ratio(some, some / 2)) == pytest.approx(2.0)
    for pair in ((some, none), (none, some), (none, none)):
        assert float(optimizers.compute_trust_ratio(*pair)) == 1.0


def test_biases_and_normalization_are_not_decayed_and_all_else_is(tiny_config):
    model, optimizer = build_pretraining_model(tiny_config), BertAdamW()
    optimizer.exclude_from_weight_decay([model.get_layer("pooler").kernel])
    optimizer.build(model.trainable_variables)
    for variable in model.trainable_variables:
        # The original's rule: no decay if the name contains LayerNorm, layer_norm or bias.
        excluded = any(part in variable.path for part in ("layer_norm", "bias", "pooler"))
        assert optimizer._use_weight_decay(variable) != excluded, variable.path


class _TwoReplicas:
    """The replica context of one of two replicas: summing over both adds the other's gradients."""

    num_replicas_in_sync = 2

    def all_reduce(self, operation, gradients):
        assert operation == tf.distribute.ReduceOp.SUM
        others = [tf.constant([3.0, -4.0]), tf.constant([2.0])]
        return [mine + other for mine, other in zip(gradients, others, strict=True)]


def test_gradients_are_summed_over_replicas_before_they_are_clipped(monkeypatch):
    # If clipped separately, [3, 4] and [3, -4] would sum to [1.2, 0] and then be clipped to [1, 0] or not at all.
    monkeypatch.setattr(tf.distribute, "get_replica_context", _TwoReplicas)
    (clipped, other), norm = BertAdamW(0.1, clip_norm=5.0).sum_and_clip([tf.constant([3.0, 4.0]), tf.constant([6.0])])
    assert float(norm) == pytest.approx(10.0)
    np.testing.assert_allclose(clipped, [3.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(other, [4.0], rtol=1e-6)


@pytest.mark.parametrize("uses_kernel", [False, True])
def test_layerwise_rates_also_apply_to_the_weight_decay(uses_kernel):
    low, high = variables = [keras.Variable(2.0, name=name) for name in ("low", "high")]
    optimizer = LayerwiseAdamW(0.1, {low.path: 0.25}, weight_decay_rate=0.5)
    optimizer.build(variables)
    optimizer.uses_kernel = uses_kernel
    optimizer.apply([tf.constant(0.1)] * 2, variables)
    assert 2.0 - float(low) == pytest.approx(0.25 * (2.0 - float(high)))
    assert LayerwiseAdamW.from_config(optimizer.get_config()).factors == {low.path: 0.25}


@pytest.mark.slow
@pytest.mark.core
def test_two_devices_equal_one():
    """Runs the test marked two_devices in a separate process whose CPU is split into two devices."""
    assert "1 passed" in run_marked_tests(2, __file__)


@pytest.mark.two_devices
def test_overflow_on_one_device_skips_the_step_on_both():
    mirrored = get_strategy("mirrored")
    with mirrored.scope():
        kernel = keras.Variable(1.0, name="kernel")
        optimizer = get_optimizer("adamw", 0.1)
        optimizer.build([kernel])
        scale = DynamicLossScale(initial=4.0)

    @tf.function
    def steps(bad, count):
        def on_replica():
            here = tf.distribute.get_replica_context().replica_id_in_sync_group
            value = tf.where(tf.equal(here, bad), float("inf"), 1.0)
            with tf.GradientTape() as tape:
                loss = scale.scale(kernel.value * value)
            grads, norm = optimizer.sum_and_clip(scale.unscale(tape.gradient(loss, [kernel.value])))
            finite = tf.math.is_finite(norm)
            optimizer.apply_summed(grads, [kernel], only_if=finite)
            scale.update(finite)

        for _ in tf.range(count):  # as many steps per call as in the training loop
            mirrored.run(on_replica)

    steps(1, 2)
    assert float(kernel.numpy()) == 1.0
    assert float(scale.factor) == 1.0
    steps(-1, 2)
    assert float(kernel.numpy()) < 1.0
    assert int(optimizer.iterations.numpy()) == 4
    assert len({float(copy.numpy()) for copy in mirrored.experimental_local_results(kernel.value)}) == 1
