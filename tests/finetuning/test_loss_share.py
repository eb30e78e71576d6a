"""A replica's share of the loss: the shares add up to the loss of the batch, and padding has no effect."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.finetuning.loss_share import LossShare, check_losses_per_row, check_reduction
from official_bert.kinds.all_kinds import SPECS
from official_bert.kinds.features import NO_LABEL
from official_bert.kinds.model import create_model
from official_bert.kinds.names import KINDS

ROWS, PADDING, LENGTH, CLASSES = 5, 3, 4, 4


def make_batch(kind: str):
    """Returns inputs, targets and outputs of five rows and three padding rows."""
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
    """Returns the mean loss over the rows, or over the tags, that are not padding."""
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
@pytest.mark.parametrize("kind", KINDS)
def test_shares_add_up_to_the_mean_over_the_rows_that_are_there(kind: str, weighed: bool):
    inputs, labels, outputs = make_batch(kind)
    head = SPECS[kind](labels=tuple("abcd"))
    share_of = LossShare(create_model(head).loss(), loss_weights=head.loss_weights())
    weights = np.linspace(0.5, 2.0, ROWS + PADDING).astype(np.float32)
    count = share_of.count(inputs, labels)
    assert float(count) == (np.sum(labels >= 0) if kind == "tagging" else ROWS)
    given = weights if weighed else np.ones_like(weights)
    whole = (inputs, labels, outputs, given)
    shares = [share_of.share(x, y, out, weight, count) for x, y, out, weight in parts(whole, (8,))]
    assert float(sum(shares)) == pytest.approx(loss_by_hand(kind, labels, outputs, given), rel=1e-5)
    for sizes in ((3, 5), (1, 1, 6), (5, 3)):
        shares = [share_of.share(x, y, out, weight, count) for x, y, out, weight in parts(whole, sizes)]
        assert float(sum(shares)) == pytest.approx(loss_by_hand(kind, labels, outputs, given), rel=1e-5), sizes
    if not weighed:
        assert float(share_of.share(inputs, labels, outputs, None, count)) == pytest.approx(
            loss_by_hand(kind, labels, outputs, given), rel=1e-5
        )


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_not_learned(kind: str):
    inputs, labels, outputs = make_batch(kind)
    head = SPECS[kind](labels=tuple("abcd"))
    share_of = LossShare(create_model(head).loss(), loss_weights=head.loss_weights())
    variables = tf.nest.map_structure(tf.Variable, outputs)
    with tf.GradientTape() as tape:
        loss = share_of.share(inputs, labels, variables, None, share_of.count(inputs, labels))
    for gradient in tf.nest.flatten(tape.gradient(loss, variables)):
        assert np.abs(gradient[:ROWS]).max(axis=tuple(range(1, len(gradient.shape)))).all()
        assert not np.any(gradient[ROWS:])


def test_tags_of_padding_count_in_nothing_whatever_they_are():
    """The zero rows that fill up micro-batches have the tag 0."""
    inputs, labels, outputs = make_batch("tagging")
    share_of = LossShare(create_model(SPECS["tagging"](labels=tuple("abcd"))).loss())
    expected = share_of.share(inputs, labels, outputs, None, share_of.count(inputs, labels))
    labels[ROWS:] = 0
    assert float(share_of.count(inputs, labels)) == np.sum(labels[:ROWS] >= 0)
    found = share_of.share(inputs, labels, outputs, None, share_of.count(inputs, labels))
    assert float(found) == pytest.approx(float(expected))


def test_a_user_s_own_loss_is_shared_out_as_keras_would_take_it():
    def mean_loss(_, targets, outputs, weights):
        return (
            keras.losses.get("mean_absolute_error")(targets[:, None], outputs[:, None])
            if weights is None
            else (keras.losses.MeanAbsoluteError()(targets[:, None], outputs[:, None], weights))
        )

    inputs, labels, outputs = make_batch("regression")
    share_of = LossShare("mean_absolute_error", mean_loss)
    count = share_of.count(inputs, labels)
    expected = np.abs(outputs - labels)[:ROWS].mean()
    for sizes in ((8,), (3, 5), (6, 2)):
        shares = [share_of.share(x, y, out, None, count) for x, y, out in parts((inputs, labels, outputs), sizes)]
        assert float(sum(shares)) == pytest.approx(expected, rel=1e-5)


def test_a_batch_without_a_row_has_no_loss():
    inputs, labels, outputs = make_batch("classification")
    share_of = LossShare(create_model(SPECS["classification"](labels=tuple("abcd"))).loss())
    inputs = {"input_mask": 0 * inputs["input_mask"]}
    assert float(share_of.share(inputs, labels, outputs, None, share_of.count(inputs, labels))) == 0.0


def test_a_whole_batch_has_the_loss_that_keras_gives_it_whatever_its_reduction():
    inputs, labels, outputs = make_batch("classification")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    share_of = LossShare(loss, lambda _, *batch: loss(*batch), is_whole=True)
    weights = np.linspace(0.5, 2.0, ROWS + PADDING).astype(np.float32)
    share = share_of.share(inputs, labels, outputs, weights, share_of.count(inputs, labels))
    assert float(share) == pytest.approx(float(loss(labels, outputs, weights)))


@pytest.mark.parametrize("weighed", [False, True])
def test_a_user_s_own_loss_of_tokens_weighs_each_row_s(weighed: bool):
    """The numbers of rows and tokens are equal, so that a wrong axis would raise no error."""
    own = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=NO_LABEL)
    inputs, labels, outputs = (
        tf.nest.map_structure(lambda each: each[:LENGTH], part) for part in make_batch("tagging")
    )
    weights = np.arange(1, LENGTH + 1, dtype=np.float32) if weighed else None
    share_of = LossShare(own)
    share = share_of.share(inputs, labels, outputs, weights, share_of.count(inputs, labels))
    assert float(share) == pytest.approx(float(own(labels, outputs, weights[:, None] if weighed else None)))


def test_what_keras_shows_is_a_mean_over_micro_batches():
    shown = []

    def mean_loss(inputs, *batch):
        shown.append(float(loss(*batch)))
        return shown[-1] + 3.0  # like a regularization loss

    inputs, labels, outputs = make_batch("classification")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    share_of = LossShare(loss, mean_loss, micro_batches=2)
    count = share_of.count(inputs, labels)
    expected = loss_by_hand("classification", labels, outputs, np.ones(ROWS + PADDING))
    shares = [share_of.share(x, y, out, None, count) for x, y, out in parts((inputs, labels, outputs), (4, 4))]
    assert np.mean(shown) == pytest.approx(expected)
    assert float(sum(shares)) == pytest.approx(expected + 3.0)


@pytest.mark.parametrize("reduction", ["sum", "none", None, "mean_with_sample_weight"])
def test_a_reduction_whose_shares_do_not_add_up_is_named(reduction):
    own = keras.losses.MeanSquaredError(reduction=reduction)
    for loss in (own, {"start_logits": own, "end_logits": "mse"}):
        with pytest.raises(UserError, match=f"mean_squared_error has reduction={reduction!r}.*sum_over_batch_size"):
            check_reduction(loss)
    check_reduction({"start_logits": keras.losses.MeanSquaredError(reduction="mean"), "end_logits": "mse"})


def test_a_function_that_takes_the_mean_itself_is_named():
    def own(targets, outputs):
        return tf.reduce_mean(tf.square(targets - outputs))

    values = tf.ones([4, 1])
    for arguments in ((own, values, values), ({"x": own}, {"x": values}, {"x": values})):
        with pytest.raises(UserError, match="own returns a scalar.*one loss per row"):
            check_losses_per_row(*arguments)
    for loss in (keras.losses.MeanSquaredError(), keras.losses.mean_squared_error, "mse"):
        check_losses_per_row(loss, values, values)
