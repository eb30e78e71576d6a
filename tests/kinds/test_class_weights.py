import keras
import numpy as np
import pytest

from official_bert.finetuning import batches
from official_bert.kinds import class_labels
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.features import Features, concatenate_rows
from official_bert.kinds.multi_label.model import WeightedBinaryCrossentropy
from official_bert.kinds.multi_label.spec import MultiLabelSpec
from tests.make import assert_rejected


def features(labels: list) -> Features:
    row = np.zeros(2, np.int32)
    return concatenate_rows([row] * len(labels), [row] * len(labels), {"labels": np.array(labels)}, {})


def test_balanced_weights_give_each_class_the_same_total_weight():
    weigh, rows = ClassificationSpec(labels=("0", "1")).apply_class_weights, features([0, 1, 1, 1, 1, 1])
    np.testing.assert_allclose(weigh(["balanced"], rows)[1], [3.0, 0.6, 0.6, 0.6, 0.6, 0.6])
    np.testing.assert_allclose(weigh(["2", "0.5"], rows)[1], [2, 0.5, 0.5, 0.5, 0.5, 0.5])
    np.testing.assert_allclose(weigh(["0", "1e18"], rows)[1], [0, *[1e18] * 5])
    assert weigh([], rows)[1] is None
    for wrong in ("3", "3,nan", "3,inf", "3,-1", "3,1e39"):
        assert_rejected(("--class_weights", wrong, 2, "0, 1"), weigh, wrong.split(","), rows)
    numbers = np.array([0, 0, 0, 2])  # without a row of class 1
    weights = class_labels.balanced_weights(numbers, classes=3)
    np.testing.assert_allclose(weights[[0, 2]], [2 / 3, 2.0])
    assert weights[numbers].mean() == pytest.approx(1.0)


def test_balanced_weights_of_multi_label_models_increase_rare_positive_examples():
    weigh, rows = MultiLabelSpec(labels=("a", "b")).apply_class_weights, features([[1, 0], [1, 1], [1, 0], [0, 0]])
    np.testing.assert_allclose(weigh(["balanced"], rows)[0].positive_weights, [1 / 3, 3.0])
    assert weigh(["2", "0.5"], rows)[0].positive_weights == (2.0, 0.5)
    assert weigh([], rows)[0].positive_weights == ()
    assert_rejected(("b", "balanced"), weigh, ["balanced"], features([[1, 0]]))
    assert_rejected(("--class_weights", 3, 2, "a, b"), weigh, ["3"], rows)


def test_weighted_binary_crossentropy_scales_the_positive_term():
    rng = np.random.default_rng(0)
    targets, logits = (rng.random((5, 2)) < 0.5).astype(np.float32), rng.normal(0, 2, (5, 2)).astype(np.float32)
    usual = keras.losses.BinaryCrossentropy(from_logits=True)(targets, logits)
    np.testing.assert_allclose(WeightedBinaryCrossentropy((1.0, 1.0))(targets, logits), usual, rtol=1e-6)
    loss, chances = WeightedBinaryCrossentropy((3.0, 1.0)), 1 / (1 + np.exp(-logits))
    expected = -(targets * np.log(chances) * [3, 1] + (1 - targets) * np.log(1 - chances)).mean()
    for each in (loss, WeightedBinaryCrossentropy.from_config(loss.get_config())):
        np.testing.assert_allclose(each(targets, logits), expected, rtol=1e-5)


def test_a_balanced_epoch_has_equally_many_rows_of_each_class():
    classes = np.array([0] * 90 + [1] * 9 + [2] * 2)
    epochs = [batches.draw_batches(np.ones(101), 10, 7, epoch, classes) for epoch in (0, 1, 0)]
    taken = [np.bincount(classes[epoch[epoch >= 0]], minlength=3) for epoch in epochs]
    assert all(sum(counts) == 101 and max(counts) - min(counts) <= 1 for counts in taken)
    np.testing.assert_array_equal(epochs[0], epochs[2])
    assert set(epochs[0].flat) != set(epochs[1].flat)  # a different sample of the class that is not used completely
