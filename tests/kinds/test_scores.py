import numpy as np
import pytest

from official_bert.kinds import losses, scores
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.features import NO_LABEL
from official_bert.kinds.regression.spec import RegressionSpec
from tests.make import make_examples


def test_scores_have_known_values_and_defined_edge_cases():
    predicted, expected = np.array([1, 1, 0, 0, 1]), np.array([1, 0, 0, 1, 1])
    # By hand: 2 true and 1 false positives, 1 true and 1 false negatives.
    assert scores.accuracy(predicted, expected) == pytest.approx(3 / 5)
    assert scores.f1(predicted, expected) == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert scores.matthews(predicted, expected) == pytest.approx((2 * 1 - 1 * 1) / (3 * 3 * 2 * 2) ** 0.5)
    assert scores.pearson(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])) == pytest.approx(1.0)
    assert scores.spearman(np.array([1.0, 2.0, 9.0]), np.array([3.0, 2.0, 1.0])) == pytest.approx(-1.0)
    zeros = np.zeros(3, int)
    assert scores.matthews(zeros, np.array([0, 1, 0])) == scores.f1(zeros, zeros) == 0.0
    assert scores.pearson(zeros, np.arange(3.0)) == scores.spearman(np.arange(3.0), zeros) == 0.0
    assert scores.accuracy([], []) == scores.f1([], []) == scores.matthews([], []) == 0.0
    assert scores.pearson(np.ones(1), np.ones(1)) == 0.0


def test_binary_scores_use_the_rarer_class():
    expected, of_rare = np.array([0, 0, 0, 1, 1]), np.array([0.1, 0.6, 0.2, 0.3, 0.7])
    # By hand: 5 of 6 pairs are in order; the precisions at the two hits are 1 and 2/3.
    known = {"roc_auc": 5 / 6, "average_precision": 5 / 6, "f1_rare_class": 1 / 2}
    for rare in (0, 1):
        probabilities = np.stack([1 - of_rare, of_rare][:: 1 if rare else -1], axis=-1)
        predicted, labels = np.argmax(probabilities, axis=-1), expected if rare else 1 - expected
        assert scores.two_class_scores(probabilities, predicted, labels) == pytest.approx(known)
    assert scores.two_class_scores(probabilities, predicted, np.zeros(5, int)) == {}
    # The second class is the rare one of a tie.
    assert [scores.find_rare_class(np.array(labels)) for labels in ([0, 1], [0, 0, 1], [0, 1, 1])] == [1, 1, 0]


def test_macro_scores_weight_classes_equally_and_errors_are_absolute():
    head = ClassificationSpec(labels=("a", "b", "c"))
    found = head.scores(np.eye(3)[[0, 0, 1, 2]], make_examples(0, 1, 1, 1))
    assert found["accuracy"] == 0.5
    assert head.undefined_scores(make_examples(0)) == ()
    assert found["f1_macro"] == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    errors = RegressionSpec().scores(np.array([1.0, 3.5]), make_examples(2.0, 2.0))
    assert errors["mean_absolute_error"] == pytest.approx(1.25)


TAGS = np.array([[1, 0], [1, NO_LABEL]])
LOGITS = np.array([[[0, 1], [1, 0]], [[1, 0], [1, 0]]], np.float32)  # Two are right, and one is wrong.


@pytest.mark.parametrize(("weights", "accuracy"), [(None, 1 / 2), ([3.0, 1.0], 6 / 8), ([[1, 1], [0, 5]], 1.0)])
def test_tokens_without_a_tag_do_not_count_however_long_the_padding_is(weights, accuracy):
    metric = losses.TagAccuracy()
    for rows, padding in (slice(0, 2), 0), (slice(1, 2), 4):
        weight = None if weights is None else np.array(weights, np.float32)[rows]
        if weight is not None and weight.ndim == 2:
            weight = np.pad(weight, [(0, 0), (0, padding)])
        tags = np.pad(TAGS[rows], [(0, 0), (0, padding)], constant_values=NO_LABEL)
        metric.update_state(tags, np.pad(LOGITS[rows], [(0, 0), (0, padding), (0, 0)]), weight)
    assert float(metric.result()) == pytest.approx(accuracy)
