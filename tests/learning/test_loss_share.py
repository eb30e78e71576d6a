"""A replica's share of the loss: shares add up to the loss of the batch, and padding counts in nothing."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.learning.loss_share import LossShare
from official_bert.tasks.features import NO_LABEL
from official_bert.tasks.heads.all_heads import HEADS

ROWS, PADDING, LENGTH, CLASSES = 5, 3, 4, 4


def batch_of(kind: str):
    """Inputs, targets and outputs of five rows and three of padding."""
    rng = np.random.default_rng(0)
    count = ROWS + PADDING
    is_row = (np.arange(count) < ROWS)[:, None]
    shape = (count, CLASSES, LENGTH) if kind == "multiple_choice" else (count, LENGTH)
    mask = np.zeros(shape, np.int32)
    mask[:ROWS] = 1
    labels = rng.integers(0, CLASSES, count).astype(np.int32)
    outputs = rng.normal(size=(count, CLASSES)).astype(np.float32)
    if kind == "multi_label":
        labels = rng.integers(0, 2, (count, CLASSES)).astype(np.float32)
    elif kind == "regression":
        labels, outputs = rng.normal(size=count).astype(np.float32), outputs[:, 0]
    elif kind == "tagging":
        labels = np.where(is_row, rng.integers(NO_LABEL, CLASSES, (count, LENGTH)), NO_LABEL).astype(np.int32)
        outputs = rng.normal(size=(count, LENGTH, CLASSES)).astype(np.float32)
    elif kind == "question_answering":
        return {"input_mask": mask}, *(
            dict.fromkeys(("start_logits", "end_logits"), each) for each in (labels, outputs)
        )
    return {"input_mask": mask}, labels, outputs


def parts(structure, sizes):
    start = 0
    for size in sizes:
        yield tf.nest.map_structure(lambda each, first=start, size=size: each[first : first + size], structure)
        start += size


def loss_by_hand(kind: str, labels, outputs, weights) -> float:
    """The mean over the rows that are none of padding, or the tags."""
    if kind == "question_answering":
        names = ("start_logits", "end_logits")
        return float(np.mean([loss_by_hand("classification", labels[n], outputs[n], weights) for n in names]))
    if kind == "regression":
        return float(np.mean((weights * (outputs - labels) ** 2)[:ROWS]))
    if kind == "multi_label":
        losses = np.log1p(np.exp(-np.abs(outputs))) + np.maximum(outputs, 0) - outputs * labels
        return float(np.mean(weights[:ROWS, None] * losses[:ROWS]))
    log = outputs - np.log(np.exp(outputs).sum(-1, keepdims=True))
    losses = -np.take_along_axis(log, np.maximum(labels, 0)[..., None], -1)[..., 0]
    if kind == "tagging":
        return float((losses * (labels >= 0) * weights[:, None]).sum() / (labels >= 0).sum())
    return float(np.mean((weights * losses)[:ROWS]))


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("kind", HEADS)
def test_shares_add_up_to_the_mean_over_the_rows_that_are_there(kind: str, weighed: bool):
    inputs, labels, outputs = batch_of(kind)
    head = HEADS[kind](labels=tuple("abcd"))
    share_of = LossShare(head.loss(), loss_weights=head.loss_weights())
    weights = np.linspace(0.5, 2.0, ROWS + PADDING).astype(np.float32)
    count = share_of.count(inputs, labels)
    assert float(count) == (np.sum(labels >= 0) if kind == "tagging" else ROWS)
    given = weights if weighed else np.ones_like(weights)
    whole = (inputs, labels, outputs, given)
    shares = [share_of.share(*part, count) for part in parts(whole, (8,))]
    assert float(sum(shares)) == pytest.approx(loss_by_hand(kind, labels, outputs, given), rel=1e-5)
    for sizes in ((3, 5), (1, 1, 6), (5, 3)):
        shares = [share_of.share(*part, count) for part in parts(whole, sizes)]
        assert float(sum(shares)) == pytest.approx(loss_by_hand(kind, labels, outputs, given), rel=1e-5), sizes
    if not weighed:
        assert float(share_of.share(inputs, labels, outputs, None, count)) == pytest.approx(
            loss_by_hand(kind, labels, outputs, given), rel=1e-5
        )


@pytest.mark.parametrize("kind", HEADS)
def test_padding_is_not_learned(kind: str):
    inputs, labels, outputs = batch_of(kind)
    head = HEADS[kind](labels=tuple("abcd"))
    share_of = LossShare(head.loss(), loss_weights=head.loss_weights())
    variables = tf.nest.map_structure(tf.Variable, outputs)
    with tf.GradientTape() as tape:
        loss = share_of.share(inputs, labels, variables, None, share_of.count(inputs, labels))
    for gradient in tf.nest.flatten(tape.gradient(loss, variables)):
        assert np.abs(gradient[:ROWS]).max(axis=tuple(range(1, len(gradient.shape)))).all()
        assert not np.any(gradient[ROWS:])


def test_a_user_s_own_loss_is_shared_out_as_keras_would_take_it():
    def mean_loss(targets, outputs, weights):
        return (
            keras.losses.get("mean_absolute_error")(targets[:, None], outputs[:, None])
            if weights is None
            else (keras.losses.MeanAbsoluteError()(targets[:, None], outputs[:, None], weights))
        )

    inputs, labels, outputs = batch_of("regression")
    share_of = LossShare("mean_absolute_error", mean_loss)
    count = share_of.count(inputs, labels)
    expected = np.abs(outputs - labels)[:ROWS].mean()
    for sizes in ((8,), (3, 5), (6, 2)):
        shares = [share_of.share(*part, None, count) for part in parts((inputs, labels, outputs), sizes)]
        assert float(sum(shares)) == pytest.approx(expected, rel=1e-5)


def test_a_batch_without_a_row_has_no_loss():
    inputs, labels, outputs = batch_of("classification")
    share_of = LossShare(HEADS["classification"](labels=tuple("abcd")).loss())
    inputs = {"input_mask": 0 * inputs["input_mask"]}
    assert float(share_of.share(inputs, labels, outputs, None, share_of.count(inputs, labels))) == 0.0
