"""The scores of sequence tasks, by scikit-learn and SciPy, with the values that are taken where they have none."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from official_bert.kinds.features import Array
from official_bert.kinds.spec import Outcome


def accuracy(predicted: Sequence[int] | Array, expected: Sequence[int] | Array) -> float:
    """The share of equal numbers; 0 for none."""
    predicted, expected = np.asarray(predicted), np.asarray(expected)
    return float(np.mean(predicted == expected)) if len(expected) else 0.0


def confusions(labels: Sequence[str], outcomes: Iterable[Outcome]) -> dict[str, dict[str, int]]:
    """Returns how often each class was predicted for each expected one, by names: expected first, then predicted."""
    counts = {expected: dict.fromkeys(labels, 0) for expected in labels}
    for outcome in outcomes:
        counts[outcome.expected][outcome.predicted] += 1
    return counts


def of_class(right: int, predicted: int, expected: int) -> dict[str, float]:
    """Returns precision, recall, F1 and the number of examples of a class; a mean over nothing is 0.

    Args:
        right: how often it was predicted rightly.
        predicted: how often it was predicted.
        expected: of how many examples it is.
    """
    return {
        "precision": right / predicted if predicted else 0.0,
        "recall": right / expected if expected else 0.0,
        "f1": 2 * right / (expected + predicted) if right else 0.0,
        "examples": expected,
    }


def matthews(predicted: Sequence[int] | Array, expected: Sequence[int] | Array) -> float:
    """Matthews' correlation; 0 where all predictions, or all labels, are of one class."""
    from sklearn.metrics import matthews_corrcoef

    if len(set(np.asarray(predicted).tolist())) < 2 or len(set(np.asarray(expected).tolist())) < 2:
        return 0.0
    return float(matthews_corrcoef(expected, predicted))


def f1(predicted: Any, expected: Any, average: str = "binary") -> float:
    """The F1 score of class 1, or the average over all; 0 where nothing was predicted or expected."""
    from sklearn.metrics import f1_score

    return float(f1_score(expected, predicted, average=average, zero_division=0.0)) if len(expected) else 0.0


def pearson(predicted: Array, expected: Array) -> float:
    """Pearson's correlation; 0 where either side is constant or has fewer than two values."""
    from scipy.stats import pearsonr

    return 0.0 if _constant(predicted) or _constant(expected) else float(pearsonr(predicted, expected)[0])


def spearman(predicted: Array, expected: Array) -> float:
    """Spearman's rank correlation; 0 where either side is constant or has fewer than two values."""
    from scipy.stats import spearmanr

    return 0.0 if _constant(predicted) or _constant(expected) else float(spearmanr(predicted, expected)[0])


def _constant(values: Array) -> bool:
    return len(values) < 2 or np.ptp(values) == 0
