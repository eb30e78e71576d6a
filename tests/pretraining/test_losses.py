"""The losses and their gradients equal their definitions."""

import numpy as np
import pytest
import tensorflow as tf

from official_bert.modeling.config import BertConfig
from official_bert.modeling.fast.compiled_blocks import FactoredLogits
from official_bert.pretraining.losses import (
    compute_pretraining_metrics,
    compute_pretraining_sums,
    factored_masked_lm_losses,
    masked_lm_losses,
)
from tests.pretraining.pretraining_runs import batches_for, list_weights, pretrainer_for
from tests.reference import Reference, softmax


@pytest.mark.parametrize("compiled", [False, True])
def test_masked_lm_losses_hits_and_gradients_are_those_of_their_definitions(compiled: bool):
    rng = np.random.default_rng(1)
    values = rng.normal(size=(2, 3, 7)).astype(np.float32)
    labels = np.array([[0, 6, 3], [2, 5, 1]], np.int32)
    values[0, 0, 0] = 9.0  # a hit
    values[0, 1, [2, 6]] = 8.0  # two equal highest logits: the label is not the first, so no hit
    values[0, 2, [3, 5]] = 7.0  # the label is the first, so a hit
    weights = rng.uniform(size=(2, 3)).astype(np.float32)
    logits = tf.constant(values)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(logits)
        losses, hits = masked_lm_losses(logits, labels, compiled)
        loss = tf.reduce_sum(weights * losses)
        expected_losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        expected = tf.reduce_sum(weights * expected_losses)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    np.testing.assert_array_equal(hits, values.argmax(axis=-1) == labels)
    assert hits.numpy()[0].tolist() == [1, 0, 1]
    np.testing.assert_allclose(tape.gradient(loss, logits), tape.gradient(expected, logits), atol=1e-6)
    assert np.isnan(masked_lm_losses(logits, labels + 2, compiled)[0].numpy()).tolist() == (labels > 4).tolist()


def test_factored_logits_have_the_losses_hits_and_gradients_of_the_logits():
    rng = np.random.default_rng(1)
    vectors, table = rng.normal(size=(2, 3, 4)).astype(np.float32), rng.normal(size=(7, 4)).astype(np.float32)
    bias = rng.normal(size=7).astype(np.float32)
    table[6], bias[6] = table[2], bias[2]  # for equal logits
    labels = (vectors @ table.T + bias).argmax(axis=-1).astype(np.int32)
    labels[0, :2] = 6, 3
    weights = rng.uniform(size=(2, 3)).astype(np.float32)
    factors = [tf.constant(each) for each in (vectors, table, bias)]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(factors)
        losses, hits = factored_masked_lm_losses(FactoredLogits(*factors), labels)
        loss = tf.reduce_sum(weights * losses)
        logits = tf.matmul(factors[0], factors[1], transpose_b=True) + factors[2]
        expected_losses, expected_hits = masked_lm_losses(logits, labels)
        expected = tf.reduce_sum(weights * expected_losses)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(hits, expected_hits)
    assert set(hits.numpy().ravel()) == {0, 1}
    for found, wanted in zip(tape.gradient(loss, factors), tape.gradient(expected, factors), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    outside = factored_masked_lm_losses(FactoredLogits(*factors), labels + 7)[0]
    assert np.isnan(outside.numpy()).all()


def test_losses_are_those_of_the_reference(tiny_config: BertConfig, record_files: list[str]):
    pretrainer = pretrainer_for(tiny_config)
    batch = next(batches_for(pretrainer, record_files))
    features = {name: value.numpy() for name, value in batch.items()}
    names = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")
    logits, scores = Reference(list_weights(pretrainer), tiny_config).predict(*(features[name] for name in names))
    right = np.take_along_axis(softmax(logits), features["masked_lm_ids"][..., None], axis=-1)[..., 0]
    weights = features["masked_lm_weights"]
    chosen = np.take_along_axis(softmax(scores), features["next_sentence_labels"], axis=-1)
    hits = (logits.argmax(axis=-1) == features["masked_lm_ids"]) * weights
    metrics = compute_pretraining_metrics(pretrainer.evaluate(batch))
    assert metrics["masked_lm_loss"] == pytest.approx((-np.log(right) * weights).sum() / weights.sum(), rel=1e-5)
    assert metrics["next_sentence_loss"] == pytest.approx(-np.log(chosen).mean(), rel=1e-5)
    assert metrics["masked_lm_accuracy"] == pytest.approx(hits.sum() / weights.sum())
    right_pairs = scores.argmax(axis=-1) == features["next_sentence_labels"][:, 0]
    assert metrics["next_sentence_accuracy"] == pytest.approx(right_pairs.mean())
    assert metrics["loss"] == pytest.approx(metrics["masked_lm_loss"] + metrics["next_sentence_loss"])


def test_metrics_are_means_over_predictions_and_records():
    sums = {
        "masked_lm_loss": 12.0, "masked_lm_correct": 3.0, "masked_lm_count": 8.0,
        "next_sentence_loss": 1.5, "next_sentence_correct": 2.0, "next_sentence_count": 5.0,
    }  # fmt: skip
    expected = {"loss": 1.8, "masked_lm_loss": 1.5, "masked_lm_accuracy": 0.375}
    assert compute_pretraining_metrics(sums) == pytest.approx(
        {**expected, "next_sentence_loss": 0.3, "next_sentence_accuracy": 0.4}
    )
    without_labels = sums | {"next_sentence_loss": 0.0, "next_sentence_correct": 0.0, "next_sentence_count": 0.0}
    assert compute_pretraining_metrics(without_labels) == pytest.approx(expected | {"loss": 1.5})


def test_records_of_zeros_count_for_nothing(tiny_config: BertConfig, record_files: list[str]):
    pretrainer = pretrainer_for(tiny_config)
    batch = next(batches_for(pretrainer, record_files))
    filled = {name: tf.concat([value, tf.zeros_like(value)], axis=0) for name, value in batch.items()}
    inputs = {name: filled[name] for name in pretrainer.model.input}
    sums = compute_pretraining_sums(pretrainer.model(inputs), filled)
    for name, value in pretrainer.evaluate(batch).items():
        assert float(sums[name]) == pytest.approx(value, rel=1e-5), name
