"""A replica's share of the loss: the shares add up to the loss of the batch, and padding has no effect."""

from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.finetuning import batches
from official_bert.finetuning.loss_share import BatchLossShare, LossShare, check_losses_per_row, check_reduction
from official_bert.kinds.all_kinds import SPECS
from official_bert.kinds.features import NO_LABEL
from official_bert.kinds.model import create_kind_model
from official_bert.kinds.names import KINDS
from official_bert.kinds.vectors.model import RankingLoss
from tests.finetuning.conftest import CLASSES, random_features
from tests.make import assert_rejected

ROWS, PADDING, LENGTH = 5, 3, 4
WEIGHTS = np.linspace(0.5, 2.0, ROWS + PADDING).astype(np.float32)


def make_batch(kind: str):
    """Returns inputs, targets and outputs of five rows and three padding rows."""
    rows = np.array([*range(ROWS), *[-1] * PADDING])
    inputs, labels = batches.pad_batch(random_features(kind, ROWS, LENGTH + 1), rows, LENGTH)
    shape = {"regression": (), "tagging": (LENGTH, CLASSES), "question_answering": (LENGTH,)}.get(kind, (CLASSES,))
    outputs = np.random.default_rng(0).normal(size=(len(rows), *shape)).astype(np.float32)
    return inputs, labels, dict.fromkeys(labels, outputs) if kind == "question_answering" else outputs


def make_share(kind: str, **settings) -> LossShare:
    head = SPECS[kind](labels=tuple("abcd"))
    return LossShare(create_kind_model(head).loss(), loss_weights=head.loss_weights(), **settings)


def sum_shares(share: LossShare, batch: tuple, sizes: tuple[int, ...] = (8,), weights=None) -> float:
    """Returns the sum of the loss shares of replicas with the given numbers of rows."""
    count, total, start = share.count(*batch[:2]), 0.0, 0
    for size in sizes:
        rows = slice(start, start := start + size)
        inputs, labels, outputs = tf.nest.map_structure(lambda each, rows=rows: each[rows], batch)
        total += float(share.share(inputs, labels, outputs, None if weights is None else weights[rows], count))
    return total


def loss_by_hand(kind: str, labels, outputs, weights) -> float:
    """Returns the mean loss over the rows, or over the tags, that are not padding."""
    if kind == "question_answering":
        return float(np.mean([loss_by_hand("classification", labels[n], outputs[n], weights) for n in labels]))
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


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighed"])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_shares_add_up_to_the_mean_over_real_rows(kind: str, weights):
    inputs, labels, outputs = make_batch(kind)
    share = make_share(kind)
    assert float(share.count(inputs, labels)) == (np.sum(labels >= 0) if kind == "tagging" else ROWS)
    expected = loss_by_hand(kind, labels, outputs, np.ones(ROWS + PADDING) if weights is None else weights)
    for sizes in ((8,), (3, 5), (1, 1, 6), (5, 3)):
        found = sum_shares(share, (inputs, labels, outputs), sizes, weights)
        assert found == pytest.approx(expected, rel=1e-5), sizes


def test_contrastive_loss_shares_add_up_to_the_loss_of_all_replicas(monkeypatch):
    vectors = tf.tile(tf.random.stateless_normal([ROWS, 2, 3], (0, 1)), [2, 1, 1])  # both replicas have the same rows
    batch = ({"input_mask": tf.ones([2 * ROWS, 2, 1])}, tf.zeros(2 * ROWS), vectors)
    replica = mock.Mock(num_replicas_in_sync=2, replica_id_in_sync_group=0)
    replica.all_gather = lambda rows, axis: tf.concat([rows, rows], axis)
    monkeypatch.setattr(tf.distribute, "get_replica_context", lambda: replica)
    expected = float(RankingLoss()(*batch[1:]))
    assert sum_shares(BatchLossShare(RankingLoss()), batch, (ROWS, ROWS)) == pytest.approx(expected)
    # The gradient of the second of two replicas, which have different rows.
    replica.replica_id_in_sync_group, first = 1, tf.concat([vectors[1:ROWS], vectors[:1] + 1.0], 0)
    replica.all_gather = lambda rows, axis: tf.concat([first if rows.shape.rank == 3 else rows, rows], axis)
    own, all_vectors = vectors[:ROWS], tf.concat([first, vectors[:ROWS]], 0)
    inputs, targets = {"input_mask": tf.ones([ROWS, 2, 1])}, tf.zeros(ROWS)
    with tf.GradientTape() as tape:
        tape.watch(all_vectors)
        loss = RankingLoss()(batch[1], all_vectors)
    share, gradient = BatchLossShare(RankingLoss()).share_and_gradient(inputs, targets, own, tf.constant(2.0 * ROWS))
    assert float(share) == pytest.approx(float(loss) / 2)
    np.testing.assert_allclose(gradient, tape.gradient(loss, all_vectors)[ROWS:], rtol=1e-4, atol=1e-6)


def test_tags_of_padding_rows_are_ignored_for_any_value():
    """The zero rows that fill up micro-batches have the tag 0."""
    share, batch = make_share("tagging"), make_batch("tagging")
    expected = sum_shares(share, batch)
    batch[1][ROWS:] = 0
    assert float(share.count(*batch[:2])) == np.sum(batch[1][:ROWS] >= 0)
    assert sum_shares(share, batch) == pytest.approx(expected)


def test_a_batch_without_a_row_has_no_loss():
    inputs, labels, outputs = make_batch("classification")
    assert sum_shares(make_share("classification"), ({"input_mask": 0 * inputs["input_mask"]}, labels, outputs)) == 0.0


@pytest.mark.parametrize("sizes", [(8,), (3, 5), (6, 2)])
def test_shares_of_a_custom_loss_add_up_to_the_loss_of_keras(sizes: tuple[int, ...]):
    def mean_loss(_, targets, outputs, weights):
        return keras.losses.MeanAbsoluteError()(targets[:, None], outputs[:, None], weights)

    inputs, labels, outputs = make_batch("regression")
    found = sum_shares(LossShare("mean_absolute_error", mean_loss), (inputs, labels, outputs), sizes)
    assert found == pytest.approx(np.abs(outputs - labels)[:ROWS].mean(), rel=1e-5)


def test_a_full_batch_has_the_loss_of_keras_for_any_reduction():
    batch = make_batch("classification")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    share = LossShare(loss, lambda _, *rest: loss(*rest), is_whole=True)
    assert sum_shares(share, batch, weights=WEIGHTS) == pytest.approx(float(loss(*batch[1:], WEIGHTS)))


@pytest.mark.parametrize("weights", [None, WEIGHTS[:LENGTH]], ids=["plain", "weighed"])
def test_a_custom_token_loss_applies_the_row_weights(weights):
    """The numbers of rows and tokens are equal, so that a wrong axis would raise no error."""
    own = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=NO_LABEL)
    batch = tf.nest.map_structure(lambda each: each[:LENGTH], make_batch("tagging"))
    expected = float(own(*batch[1:], None if weights is None else weights[:, None]))
    assert sum_shares(LossShare(own), batch, (LENGTH,), weights) == pytest.approx(expected)


def test_the_displayed_loss_is_the_mean_over_micro_batches():
    shown = []

    def mean_loss(inputs, *batch):
        shown.append(float(loss(*batch)))
        return shown[-1] + 3.0  # like a regularization loss

    batch = make_batch("classification")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    found = sum_shares(LossShare(loss, mean_loss, micro_batches=2), batch, (4, 4))
    expected = loss_by_hand("classification", batch[1], batch[2], np.ones(ROWS + PADDING))
    assert np.mean(shown) == pytest.approx(expected)
    assert found == pytest.approx(expected + 3.0)


@pytest.mark.parametrize("reduction", ["sum", "none", None, "mean_with_sample_weight"])
def test_unsupported_loss_reductions_are_rejected(reduction):
    own = keras.losses.MeanSquaredError(reduction=reduction)
    for loss in (own, {"start_logits": own, "end_logits": "mse"}):
        names = ("mean_squared_error", f"reduction={reduction!r}", "reduction='sum_over_batch_size'")
        assert_rejected(names, check_reduction, loss)
    check_reduction({"start_logits": keras.losses.MeanSquaredError(reduction="mean"), "end_logits": "mse"})


def test_a_loss_function_that_returns_a_scalar_is_rejected():
    def own(targets, outputs):
        return tf.reduce_mean(tf.square(targets - outputs))

    values = tf.ones([4, 1])
    for arguments in ((own, values, values), ({"x": own}, {"x": values}, {"x": values})):
        assert_rejected(("own", "scalar"), check_losses_per_row, *arguments)
    for loss in (keras.losses.MeanSquaredError(), keras.losses.mean_squared_error, "mse"):
        check_losses_per_row(loss, values, values)
