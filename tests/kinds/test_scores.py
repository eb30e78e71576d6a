import numpy as np
import pytest

from official_bert.kinds import scores


def test_scores_are_the_known_ones_and_defined_at_the_edges():
    predicted, expected = np.array([1, 1, 0, 0, 1]), np.array([1, 0, 0, 1, 1])
    # By hand: 2 true and 1 false positives, 1 true and 1 false negatives.
    assert scores.accuracy(predicted, expected) == pytest.approx(3 / 5)
    assert scores.f1(predicted, expected) == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert scores.matthews(predicted, expected) == pytest.approx((2 * 1 - 1 * 1) / (3 * 3 * 2 * 2) ** 0.5)
    assert scores.pearson(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])) == pytest.approx(1.0)
    assert scores.spearman(np.array([1.0, 2.0, 9.0]), np.array([3.0, 2.0, 1.0])) == pytest.approx(-1.0)
    constant = np.zeros(3)
    assert scores.matthews(np.zeros(3, int), np.array([0, 1, 0])) == 0.0
    assert scores.f1(np.zeros(3, int), np.zeros(3, int)) == 0.0
    assert scores.pearson(constant, np.arange(3.0)) == scores.spearman(np.arange(3.0), constant) == 0.0
    assert scores.accuracy([], []) == scores.f1([], []) == scores.matthews([], []) == 0.0
    assert scores.pearson(np.ones(1), np.ones(1)) == 0.0


def test_two_classes_are_scored_by_the_rarer_one():
    expected, of_rare = np.array([0, 0, 0, 1, 1]), np.array([0.1, 0.6, 0.2, 0.3, 0.7])
    # By hand: 5 of 6 pairs are in order; the precisions at the two hits are 1 and 2/3.
    known = {"roc_auc": 5 / 6, "average_precision": 5 / 6, "f1_rare_class": 1 / 2}
    for rare in (0, 1):
        probabilities = np.stack([1 - of_rare, of_rare][:: 1 if rare else -1], axis=-1)
        predicted = np.argmax(probabilities, axis=-1)
        labels = expected if rare else 1 - expected
        assert scores.two_class_scores(probabilities, predicted, labels) == pytest.approx(known)
    nothing = dict.fromkeys(scores.TWO_CLASS_SCORES, 0.0)
    assert scores.two_class_scores(probabilities, predicted, np.zeros(5, int)) == nothing
