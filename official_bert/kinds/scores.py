"""Scores by scikit-learn and SciPy, which are 0 where those libraries do not define them."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from official_bert.kinds.features import Array
from official_bert.kinds.spec import Outcome


def accuracy(predicted: Sequence[int] | Array, expected: Sequence[int] | Array) -> float:
    """Returns the share of equal values, or 0 for no values."""
    predicted, expected = np.asarray(predicted), np.asarray(expected)
    return float(np.mean(predicted == expected)) if len(expected) else 0.0


def confusions(labels: Sequence[str], outcomes: Iterable[Outcome]) -> dict[str, dict[str, int]]:
    """Returns the number of examples by expected and predicted class, as counts[expected][predicted]."""
    counts = {expected: dict.fromkeys(labels, 0) for expected in labels}
    for outcome in outcomes:
        counts[outcome.expected][outcome.predicted] += 1
    return counts


def class_scores(true_positives: int, predicted: int, expected: int) -> dict[str, float]:
    """Returns precision, recall, F1 and the number of examples of a class. Undefined values are 0.

    Args:
        true_positives: Number of correct predictions of the class.
        predicted: Number of predictions of the class.
        expected: Number of examples of the class.
    """
    return {
        "precision": true_positives / predicted if predicted else 0.0,
        "recall": true_positives / expected if expected else 0.0,
        "f1": 2 * true_positives / (expected + predicted) if true_positives else 0.0,
        "examples": expected,
    }


def matthews(predicted: Sequence[int] | Array, expected: Sequence[int] | Array) -> float:
    """Returns Matthews' correlation, or 0 if all predictions or all labels are of one class."""
    from sklearn.metrics import matthews_corrcoef

    if len(set(np.asarray(predicted).tolist())) < 2 or len(set(np.asarray(expected).tolist())) < 2:
        return 0.0
    return float(matthews_corrcoef(expected, predicted))


def f1(predicted: Any, expected: Any, average: str = "binary") -> float:
    """Returns the F1 score of class 1, or the average over all classes. Undefined values are 0."""
    from sklearn.metrics import f1_score

    return float(f1_score(expected, predicted, average=average, zero_division=0.0)) if len(expected) else 0.0


def pearson(predicted: Array, expected: Array) -> float:
    """Returns Pearson's correlation, or 0 if either side is constant or has fewer than two values."""
    from scipy.stats import pearsonr

    return 0.0 if _is_constant(predicted) or _is_constant(expected) else float(pearsonr(predicted, expected)[0])


def spearman(predicted: Array, expected: Array) -> float:
    """Returns Spearman's rank correlation, or 0 if either side is constant or has fewer than two values."""
    from scipy.stats import spearmanr

    return 0.0 if _is_constant(predicted) or _is_constant(expected) else float(spearmanr(predicted, expected)[0])


def _is_constant(values: Array) -> bool:
    return len(values) < 2 or np.ptp(values) == 0
