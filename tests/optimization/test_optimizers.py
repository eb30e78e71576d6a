"""Optimizers, schedules and layer rates equal their rules, on any number of devices, and the loss scale adapts."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.kinds.classification.model import build_classifier
from official_bert.kinds.multiple_choice.model import build_multiple_choice_model
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.optimization import optimizers
from official_bert.optimization.choices import OPTIMIZERS, AdamOptions
from official_bert.optimization.distribution import get_strategy
from official_bert.optimization.finetuning_optimizer import compute_layer_factors
from official_bert.optimization.freezing import check_trainable, freeze
from official_bert.optimization.loss_scale import DynamicLossScale
from official_bert.optimization.optimizers import BertAdamW, KerasAdamW, Lamb, LayerwiseAdamW, get_optimizer
from official_bert.optimization.schedules import WarmupPolynomialDecay
from tests.make import assert_rejected, list_weights
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


def list_rates(schedule, steps):
    return [float(schedule(step)) for step in range(steps)]


SQUARE = {"jump": False, "power": 2.0, "end_rate": 0.2}
SCHEDULES = [
    # The warm-up jumps to the line from step zero, or without a jump, the rate decays from the peak.
    ((1.0, 10, 4), {}, [0.0, 0.25, 0.5, 0.75, *(1 - step / 10 for step in range(4, 11)), 0.0]),
    ((1.0, 10, 4), {"jump": False}, [0.0, 0.25, 0.5, 0.75, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0.0]),
    ((2.0, 4), {}, [2.0, 1.5, 1.0, 0.5, 0.0]),
    ((1.0, 3, 6), {}, [*(step / 6 for step in range(6)), 0.0, 0.0]),
    ((1.0, 3, 6), {"jump": False}, [*(step / 6 for step in range(6)), 0.0, 0.0]),
    ((1.0, 10, 2), SQUARE, [0.0, 0.5, *(0.2 + 0.8 * (1 - (step - 2) / 8) ** 2 for step in range(2, 11)), 0.2, 0.2]),
    ((1.0, 10, 2), {"power": 0.5}, [0.0, 0.5, *((1 - step / 10) ** 0.5 for step in range(2, 11)), 0.0]),
]


@pytest.mark.parametrize(("arguments", "settings", "expected"), SCHEDULES)
def test_rate_warms_up_and_decays(arguments, settings, expected):
    assert list_rates(WarmupPolynomialDecay(*arguments, **settings), len(expected)) == pytest.approx(expected)


@pytest.mark.parametrize("settings", [{}, SQUARE])
def test_a_restarted_schedule_has_the_same_rates_as_a_new_one(settings):
    restarted = WarmupPolynomialDecay(0.5, 1, **settings)
    for num_steps, warmup_steps in ((10, 4), (4, 0), (6, 1), (3, 6)):
        restarted.restart(num_steps, warmup_steps)
        new = WarmupPolynomialDecay(0.5, num_steps, warmup_steps, **settings)
        assert list_rates(restarted, 12) == pytest.approx(list_rates(new, 12))
        assert restarted.get_config() == new.get_config()


@pytest.mark.parametrize("jump", [True, False])
def test_linear_decay_equals_the_formula_without_a_power_bit_for_bit(jump):
    peak, steps, warmup = np.float32(8.12e-4), 7506, 2133
    start = 0 if jump else warmup
    for step in range(warmup, steps, 97):
        gone = np.float32(step - start) / np.float32(steps - start)
        assert float(WarmupPolynomialDecay(8.12e-4, steps, warmup, jump=jump)(step)) == peak * (np.float32(1) - gone)


@pytest.mark.slow  # so that TensorFlow's graph optimizer is active
@pytest.mark.parametrize(("num_steps", "warmup_steps"), [(1, 0), (7, 2), (2552, 638), (300, 30)])
def test_restarting_a_schedule_is_exact_and_does_not_retrace(num_steps, warmup_steps):
    restarted, new = WarmupPolynomialDecay(5e-5, 1), WarmupPolynomialDecay(5e-5, num_steps, warmup_steps)
    restarted.restart(3, 1)
    rate, expected = (tf.function(lambda step, schedule=each: schedule(step)) for each in (restarted, new))
    rate(tf.constant(0, tf.int64))
    restarted.restart(num_steps, warmup_steps)
    for step in range(0, num_steps + 2, max(1, num_steps // 50)):
        number = tf.constant(step, tf.int64)
        assert rate(number).numpy() == expected(number).numpy(), step
    assert rate.experimental_get_tracing_count() == 1
    assert WarmupPolynomialDecay(**restarted.get_config())(num_steps // 2) == new(num_steps // 2)


def test_frozen_layers_get_neither_update_nor_decay(tiny_config):
    model = build_pretraining_model(tiny_config, seed=0)
    frozen = freeze(model, ["layer_0_.*", "word_embeddings"])
    assert frozen[0] == "word_embeddings"
    assert len(frozen) == 9
    before = list_weights(model)
    optimizer = get_optimizer("adamw", 0.1)
    optimizer.build(model.trainable_variables)
    optimizer.apply([tf.ones(variable.shape) for variable in model.trainable_variables], model.trainable_variables)
    for variable in model.variables:
        still = np.array_equal(variable, before[variable.path])
        assert still == (variable.path.split("/")[0] in frozen), variable.path
    assert not any(name in variable.path for variable in optimizer.variables for name in frozen)


def test_freezing_nothing_is_refused_and_all_freezes_the_encoder_but_no_head(tiny_config):
    model = build_pretraining_model(tiny_config)
    for pattern, names in (
        ("layer_0", ("word_embeddings", "next_sentence")),
        ("layer_0_output_dropout", ("word_embeddings",)),  # it has no weights, so nothing would be frozen
        ("layer_(0", ("position 6",)),
    ):
        assert_rejected((repr(pattern), *names), freeze, model, [pattern])
        assert len(model.trainable_variables) == len(model.variables)
    freeze(model, ["all"])
    check_trainable(model)
    layers = {variable.path.split("/")[0] for variable in model.trainable_variables}
    assert layers == {"masked_lm_transform", "masked_lm_layer_norm", "masked_lm_output", "next_sentence"}
    freeze(model, [".*"])
    assert_rejected(("freeze", "model.get_layer(name).trainable"), check_trainable, model)


def test_layer_decay_reduces_the_rate_from_layer_to_layer(tiny_config):
    model = build_classifier(build_encoder(tiny_config), 2)
    factors = {path.split("/")[-2]: factor for path, factor in compute_layer_factors(model, 2, 0.5).items()}
    assert factors["layer_1_output"] == 0.5
    assert factors["layer_0_attention_query"] == 0.25
    assert factors["word_embeddings"] == factors["embeddings_layer_norm"] == 0.125
    assert not {"pooler", "sequence_classifier"} & set(factors)
    assert compute_layer_factors(model, 2, 1.0) == {}
    choices = compute_layer_factors(build_multiple_choice_model(build_encoder(tiny_config), 3), 2, 0.5)
    assert {path.split("/")[-2]: factor for path, factor in choices.items()} == factors
