"""The losses and their gradients equal their definitions."""

import numpy as np
import pytest
import tensorflow as tf

from official_bert.modeling.fast.compiled_blocks import FactoredLogits
from official_bert.pretraining import losses
from official_bert.pretraining.losses import compute_pretraining_metrics
from official_bert.pretraining.train_step import SUMS
from tests.make import list_weights
from tests.pretraining import pretraining_runs as runs
from tests.reference import Reference, softmax


@pytest.mark.parametrize("form", ["plain", "compiled", "factored"])
def test_masked_lm_losses_hits_and_gradients_equal_their_definitions(form, monkeypatch):
    """An edit doubles losses and gradients. No form may miss it."""
    original = losses._compute_losses_and_errors

    def double(*inputs):
        loss, hits, errors, scale = original(*inputs)
        return 2.0 * loss, hits, errors, 2.0 * scale

    monkeypatch.setattr(losses, "_compute_losses_and_errors", double)
    rng = np.random.default_rng(1)
    # Whole numbers, so that equal rows of the table give equal logits.
    vectors, table, bias = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((2, 3, 4), (7, 4), (7,)))
    vectors[0, :2], table[[2, 6]], bias[[2, 6]] = [1, 2, 1, 2], 3, 1
    weights = rng.uniform(size=(2, 3)).astype(np.float32)
    labels = (vectors @ table.T + bias).argmax(axis=-1).astype(np.int32)
    labels[0, 0] = 6  # one of two equal highest logits, but not the first, so no hit
    labels[0, 2] = (labels[0, 2] + 1) % 7
    factors = [tf.constant(each) for each in (vectors, table, bias)]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(factors)
        logits = tf.matmul(factors[0], factors[1], transpose_b=True) + factors[2]
        values, is_compiled = FactoredLogits(*factors) if form == "factored" else logits, form != "plain"
        found_losses, hits = losses.masked_lm_losses(values, labels, is_compiled)
        loss = tf.reduce_sum(weights * found_losses)
        expected_losses = 2.0 * tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        expected = tf.reduce_sum(weights * expected_losses)
    np.testing.assert_allclose(found_losses, expected_losses, rtol=1e-5, atol=1e-6)
    assert hits.numpy().tolist() == [[0, 1, 0], [1, 1, 1]]
    for found, wanted in zip(tape.gradient(loss, factors), tape.gradient(expected, factors), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    labels[1] = 7, -1, 6
    assert np.isnan(losses.masked_lm_losses(values, labels, is_compiled)[0][1]).tolist() == [True, True, False]


def test_gradients_in_float16_are_finite_for_any_vocabulary():
    """The sum of exponentials, about 80,000, exceeds the greatest number of float16."""
    rng = np.random.default_rng(0)
    vectors, table, bias = (rng.normal(0, 0.1, shape) for shape in ((1, 2, 4), (119_547, 4), 119_547))
    factors = [tf.constant(vectors, "float16"), tf.constant(table, "float32"), tf.constant(bias, "float32")]
    with tf.GradientTape() as tape:
        tape.watch(factors)
        loss = tf.reduce_sum(losses.masked_lm_losses(FactoredLogits(*factors), np.array([[5, 119_546]], np.int32))[0])
    found = tape.gradient(loss, factors)
    errors = softmax(vectors[0] @ table.T + bias)
    errors[[0, 1], [5, 119_546]] -= 1
    for each, expected in zip(found, (errors @ table, errors.T @ vectors[0], errors.sum(axis=0)), strict=True):
        np.testing.assert_allclose(np.reshape(each, expected.shape), expected, atol=1e-3)


@pytest.mark.usefixtures("eager_steps")
def test_losses_equal_the_reference_and_padding_records_are_ignored(tiny_config, record_files):
    pretrainer = runs.make_pretrainer(tiny_config)
    batch = runs.read_batch(record_files)
    features = {name: value.numpy() for name, value in batch.items()}
    inputs = (features[name] for name in ("input_ids", "input_mask", "segment_ids", "masked_lm_positions"))
    logits, scores = Reference(list_weights(pretrainer.model), tiny_config).predict(*inputs)
    labels, weights = features["masked_lm_ids"], features["masked_lm_weights"]
    right = np.take_along_axis(softmax(logits), labels[..., None], axis=-1)[..., 0]
    chosen = np.take_along_axis(softmax(scores), features["next_sentence_labels"], axis=-1)
    expected = {
        "masked_lm_loss": (-np.log(right) * weights).sum() / weights.sum(),
        "next_sentence_loss": -np.log(chosen).mean(),
        "masked_lm_accuracy": ((logits.argmax(axis=-1) == labels) * weights).sum() / weights.sum(),
        "next_sentence_accuracy": (scores.argmax(axis=-1) == features["next_sentence_labels"][:, 0]).mean(),
    }
    expected["loss"] = expected["masked_lm_loss"] + expected["next_sentence_loss"]
    sums = pretrainer.evaluate(batch)
    assert compute_pretraining_metrics(sums) == pytest.approx(expected, rel=1e-5)
    filled = {name: tf.concat([value, tf.zeros_like(value)], axis=0) for name, value in batch.items()}
    assert pretrainer.evaluate(filled) == pytest.approx(sums, rel=1e-5)


def test_metrics_are_means_over_predictions_and_records():
    def compute(*sums):
        return compute_pretraining_metrics(dict(zip(SUMS, (*sums, 0.0), strict=True)))

    tokens = {"loss": 1.5, "masked_lm_loss": 1.5, "masked_lm_accuracy": 0.375}
    pairs = {"loss": 1.8, "next_sentence_loss": 0.3, "next_sentence_accuracy": 0.4}
    assert compute(12.0, 3.0, 8.0, 0.0, 0.0, 0.0) == pytest.approx(tokens)
    assert compute(12.0, 3.0, 8.0, 1.5, 2.0, 5.0) == pytest.approx({**tokens, **pairs})
    assert compute(0.0, 0.0, 0.0, 0.0, 0.0, 0.0) == dict.fromkeys(tokens, 0.0)


def test_the_masked_lm_loss_has_the_epsilon_of_the_original():
    sums = {"masked_lm_loss": 3.0, "next_sentence_loss": 5.0}
    # google-research/bert: numerator / (denominator + 1e-5)
    for counts, expected in (((0.0, 0.0), [3.0 / 1e-5, 5.0]), ((2.0, 10.0), [3.0 / 2.00001, 0.5])):
        assert list(map(float, losses.compute_mean_losses(sums, *counts))) == pytest.approx(expected, rel=1e-7)
