"""Scores computed with scikit-learn and SciPy. Where those libraries return NaN or warn, most functions return 0.

E examples
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from official_bert.kinds.features import Array
from official_bert.kinds.spec import Outcome

TWO_CLASS_SCORES = ("roc_auc", "average_precision", "f1_rare_class")


def accuracy(predicted: Sequence[int] | Array, expected: Sequence[int] | Array) -> float:
    """Returns the share of predictions that are equal to the expected value, or 0 if both are empty."""
    predicted, expected = np.asarray(predicted), np.asarray(expected)
    return float(np.mean(predicted == expected)) if len(expected) else 0.0


def confusions(labels: Sequence[str], outcomes: Iterable[Outcome]) -> dict[str, dict[str, int]]:
    """Returns the confusion matrix as counts[expected][predicted].

    Args:
        labels: Names of the classes.
        outcomes: The examples with their expected and predicted class.
    """
    counts = {expected: dict.fromkeys(labels, 0) for expected in labels}
    for outcome in outcomes:
        counts[outcome.expected][outcome.predicted] += 1
    return counts


def class_scores(true_positives: int, predicted: int, expected: int) -> dict[str, float]:
    """Returns precision, recall, F1 and the number of examples of one class. Undefined values are 0.

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
    """Returns Matthews' correlation coefficient, or 0 if all predictions or all expected values are equal."""
    from sklearn.metrics import matthews_corrcoef

    if len(set(np.asarray(predicted).tolist())) < 2 or len(set(np.asarray(expected).tolist())) < 2:
        return 0.0
    return float(matthews_corrcoef(expected, predicted))


def f1(predicted: Any, expected: Any, average: str = "binary") -> float:
    """Returns the F1 score of class 1, or an average over all classes. Undefined values are 0.

    Args:
        predicted: Predicted classes, [E], or rows of 0 and 1, [E, C].
        expected: The correct classes in the same form.
        average: "binary" for class 1, or "macro" or "micro" as in scikit-learn.
    """
    from sklearn.metrics import f1_score

    return float(f1_score(expected, predicted, average=average, zero_division=0.0)) if len(expected) else 0.0


def find_rare_class(expected: Array) -> int:
    """Returns which of the classes 0 and 1 has fewer examples, or 1 if both have equally many.

    Args:
        expected: Class of each example, [E].
    """
    counts = np.bincount(expected, minlength=2)
    return int(counts[1] <= counts[0])


def two_class_scores(probabilities: Array, predicted: Array, expected: Array) -> dict[str, float]:
    """Returns roc_auc, and the average_precision and F1 (f1_rare_class) of the class with fewer examples.

    Empty if all examples have the same class, because these scores are then undefined.

    Args:
        probabilities: Probability of each class, [E, 2].
        predicted: Predicted class, [E].
        expected: Class of each example, [E].
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    rare = find_rare_class(expected)
    is_rare = expected == rare
    if not 0 < is_rare.sum() < len(is_rare):
        return {}
    of_rare = probabilities[:, rare]
    roc_auc, average_precision = (float(score(is_rare, of_rare)) for score in (roc_auc_score, average_precision_score))
    return dict(zip(TWO_CLASS_SCORES, (roc_auc, average_precision, f1(predicted == rare, is_rare)), strict=True))


def pearson(predicted: Array, expected: Array) -> float:
    """Returns Pearson's correlation, or 0 if an array is constant or has fewer than two values."""
    from scipy.stats import pearsonr

    return 0.0 if _is_constant(predicted) or _is_constant(expected) else float(pearsonr(predicted, expected)[0])


def spearman(predicted: Array, expected: Array) -> float:
    """Returns Spearman's rank correlation, or 0 if an array is constant or has fewer than two values."""
    from scipy.stats import spearmanr

    return 0.0 if _is_constant(predicted) or _is_constant(expected) else float(spearmanr(predicted, expected)[0])


def _is_constant(values: Array) -> bool:
    return len(values) < 2 or np.ptp(values) == 0
