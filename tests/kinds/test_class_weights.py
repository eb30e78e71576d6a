import dataclasses

import keras
import numpy as np
import pytest

from official_bert.finetuning import batches
from official_bert.kinds import class_labels
from official_bert.kinds.multi_label.model import WeightedBinaryCrossentropy
from official_bert.kinds.multi_label.spec import MultiLabelSpec
from official_bert.tasks.glue import GlueTask
from official_bert.tasks.options import GlueOptions
from tests.finetuning.random_features import random_features
from tests.make import refusal

SST_2 = GlueTask("sst-2", GlueOptions())


def test_classes_weigh_alike_when_balanced():
    features = dataclasses.replace(
        random_features("classification", 6, 9), targets={"labels": np.array([0, 1, 1, 1, 1, 1], np.int32)}
    )
    weights = SST_2.head.weigh_classes(["balanced"], features)[1]
    np.testing.assert_allclose(weights, [3.0, 0.6, 0.6, 0.6, 0.6, 0.6])
    weights = SST_2.head.weigh_classes(["2", "0.5"], features)[1]
    np.testing.assert_allclose(weights, [2, 0.5, 0.5, 0.5, 0.5, 0.5])
    assert SST_2.head.weigh_classes([], features)[1] is None
    message = refusal(SST_2.head.weigh_classes, ["2"], features)
    assert "expected balanced, or 2 numbers, one for each of 0, 1" in message
    for wrong in ("nan", "inf", "-1", "1e39"):
        message = refusal(SST_2.head.weigh_classes, ["2", wrong], features)
        assert f"--class_weights is 2,{wrong}; expected balanced, or 2 numbers" in message


def test_balanced_weights_have_a_mean_of_one_even_if_a_class_is_absent():
    numbers = np.array([0, 0, 0, 2])
    weights = class_labels.balanced_weights(numbers, classes=3)
    np.testing.assert_allclose(weights[[0, 2]], [2 / 3, 2.0])
    assert weights[numbers].mean() == pytest.approx(1.0)


def test_labels_that_do_not_exclude_each_other_weigh_more_where_they_are_rare():
    head = MultiLabelSpec(labels=("a", "b"))
    labels = np.array([[1, 0], [1, 1], [1, 0], [0, 0]], np.float32)
    features = dataclasses.replace(random_features("multi_label", 4, 9), targets={"labels": labels})
    np.testing.assert_allclose(head.weigh_classes(["balanced"], features)[0].positive_weights, [1 / 3, 3.0])
    assert head.weigh_classes(["2", "0.5"], features)[0].positive_weights == (2.0, 0.5)
    assert head.weigh_classes([], features)[0].positive_weights == ()
    features.targets["labels"][1, 1] = 0
    message = refusal(head.weigh_classes, ["balanced"], features)
    assert "no training text has the label b" in message
    message = refusal(head.weigh_classes, ["2"], features)
    assert "expected balanced, or 2 numbers, one for each of a, b" in message


def test_the_weighted_loss_is_the_usual_one_for_weights_of_1_and_counts_misses_more_for_others():
    rng = np.random.default_rng(0)
    targets, logits = (rng.random((5, 2)) < 0.5).astype(np.float32), rng.normal(0, 2, (5, 2)).astype(np.float32)
    usual = keras.losses.BinaryCrossentropy(from_logits=True)(targets, logits)
    np.testing.assert_allclose(WeightedBinaryCrossentropy((1.0, 1.0))(targets, logits), usual, rtol=1e-6)
    loss = WeightedBinaryCrossentropy((3.0, 1.0))
    chances = 1 / (1 + np.exp(-logits))
    expected = -(targets * np.log(chances) * [3, 1] + (1 - targets) * np.log(1 - chances)).mean()
    np.testing.assert_allclose(loss(targets, logits), expected, rtol=1e-5)
    copy = WeightedBinaryCrossentropy.from_config(loss.get_config())
    np.testing.assert_allclose(copy(targets, logits), expected, rtol=1e-5)


def test_a_balanced_epoch_has_as_many_rows_of_each_class():
    classes = np.array([0] * 90 + [1] * 9 + [2] * 2)
    epochs = [batches.draw_batches(np.ones(101), 10, 7, epoch, classes) for epoch in (0, 1, 0)]
    taken = [np.bincount(classes[epoch[epoch >= 0]], minlength=3) for epoch in epochs]
    assert all(sum(counts) == 101 and max(counts) - min(counts) <= 1 for counts in taken)
    np.testing.assert_array_equal(epochs[0], epochs[2])
    assert set(epochs[0].flat) != set(epochs[1].flat)  # a different sample of the class that is not used completely
