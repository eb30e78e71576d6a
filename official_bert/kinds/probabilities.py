"""Converts logits to probabilities and probabilities to decisions, and chooses temperature and thresholds.

Both are chosen on evaluation data after training, and are stored in task.json.

E examples, C classes
"""

from collections.abc import Callable, Sequence

import numpy as np

from official_bert.errors import UserError
from official_bert.kinds.features import Array
from official_bert.kinds.names import ACCURACY, BALANCED_ACCURACY, BETAS, PRECISION, parse_measure

_NUM_BINS = 15  # bins of the expected calibration error
_CONFIDENCE_LIMITS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)  # the rows of the coverage table
_MAX_TEMPERATURE = 20.0  # the minimum is its inverse
_NOT_REACHED = -2.0  # the value of a threshold that does not reach the wanted precision or recall
_MIN_PROBABILITY = 1e-12  # the lower bound of probabilities before the logarithm


def softmax(logits: Array) -> Array:
    """Returns the softmax over the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def compute_margins(values: Array) -> list[float]:
    """Returns the difference between the two largest values of each row, or infinity for rows of one value.

    Args:
        values: Scores or probabilities, [E, C].
    """
    ordered = np.sort(values, axis=-1)
    return [float(row[-1] - row[-2]) if len(row) > 1 else np.inf for row in ordered]


def rescale_softmax(probabilities: Array, temperature: float) -> Array:
    """Rescales softmax probabilities, [E, C], as if their logits had been divided by `temperature`."""
    return softmax(np.log(np.maximum(probabilities, _MIN_PROBABILITY)) / temperature)


def rescale_sigmoid(probabilities: Array, temperature: float) -> Array:
    """Rescales sigmoid probabilities, [E, C], as if their logits had been divided by `temperature`."""
    clipped = np.clip(probabilities, _MIN_PROBABILITY, 1.0 - _MIN_PROBABILITY)
    return np.asarray(1.0 / (1.0 + np.exp(-(np.log(clipped) - np.log1p(-clipped)) / temperature)))


def fit_temperature(probabilities: Array, expected: Array, rescale: Callable[[Array, float], Array]) -> float:
    """Returns the temperature that minimizes the cross-entropy on evaluation data (Guo et al., 2017, arXiv:1706.04599).

    Args:
        probabilities: Predicted probabilities, [E, C].
        expected: 1 for the correct classes, else 0, [E, C].
        rescale: `rescale_softmax` or `rescale_sigmoid`.
    """
    from scipy.optimize import minimize_scalar

    def compute_loss(exponent: float) -> float:
        rescaled = rescale(probabilities, float(np.exp(exponent)))
        # With a softmax, only the probability of the correct class counts.
        of_absent = 1.0 - rescaled if rescale is rescale_sigmoid else 1.0
        return float(-np.log(np.maximum(np.where(expected > 0, rescaled, of_absent), _MIN_PROBABILITY)).sum())

    bound = float(np.log(_MAX_TEMPERATURE))
    return float(np.exp(minimize_scalar(compute_loss, bounds=(-bound, bound), method="bounded").x))


def choose_thresholds(probabilities: Array, expected: Array, labels: Sequence[str], measure: str) -> tuple[float, ...]:
    """Returns for each label the probability threshold that maximizes a measure.

    A label is predicted above its threshold.

    Args:
        probabilities: Predicted probabilities, [E, C].
        expected: 1 for the labels of each text, else 0, [E, C].
        labels: Names of the labels.
        measure: The measure, such as "f1" or "precision=0.9" (see `names.parse_measure`).

    Raises:
        UserError: If a label does not occur in `expected`, or no threshold reaches the wanted precision.
    """
    absent = [label for label, column in zip(labels, expected.T, strict=True) if not column.any()]
    if absent:
        raise UserError(
            f"the evaluation data have no text with the label {', '.join(absent)}, so its threshold cannot be "
            "chosen; add such texts, or remove --thresholds"
        )
    return tuple(
        _choose_threshold(column, is_expected > 0, label, measure)
        for column, is_expected, label in zip(probabilities.T, expected.T, labels, strict=True)
    )


def _choose_threshold(probabilities: Array, is_expected: Array, label: str, measure: str) -> float:
    order = np.argsort(-probabilities, kind="stable")
    # Candidate n predicts the n texts with the highest probabilities. Its threshold is halfway to the next one.
    bounds = np.concatenate([[1.0], probabilities[order], [0.0]])
    hits = np.append(0, np.cumsum(is_expected[order]))
    values = _measure_candidates(hits, int(is_expected.sum()), measure)
    is_possible = np.append(bounds[1:-1] < bounds[:-2], True)  # a threshold cannot separate equal probabilities
    is_possible[0] = True
    thresholds = (bounds[:-1] + bounds[1:]) / 2.0
    best = max(
        np.flatnonzero(is_possible), key=lambda n: (round(float(values[n]), 12), -abs(float(thresholds[n]) - 0.5))
    )
    if values[best] == _NOT_REACHED:
        precisions = hits[1:] / np.arange(1, len(hits))
        raise UserError(
            f"no threshold gives the label {label} {measure} on the evaluation data; the highest precision is "
            f"{np.max(precisions, where=is_possible[1:], initial=0.0):.4g}. Ask for less"
        )
    return float(thresholds[best])


def _measure_candidates(hits: Array, total: int, measure: str) -> Array:
    """Returns a value for each candidate threshold. The best threshold has the largest value.

    Candidate n predicts the label for the n texts with the highest probabilities, for n from 0 to E. The values may
    differ from the measure by a constant.

    Args:
        hits: For each n, how many of the first n texts have the label, [E + 1].
        total: Number of texts with the label.
        measure: The measure, such as "f1" or "precision=0.9" (see `names.parse_measure`).

    Returns:
        The values, [E + 1]. _NOT_REACHED for candidates below the wanted precision or recall.
    """
    name, target = parse_measure(measure)
    predicted = np.arange(len(hits))
    precision, recall = hits / np.maximum(predicted, 1), hits / total
    if name in BETAS:
        weight = BETAS[name] ** 2
        values = (1 + weight) * hits / (weight * total + predicted)
    elif name == ACCURACY:
        values = (2 * hits - predicted - total) / max(len(hits) - 1, 1)
    elif name == BALANCED_ACCURACY:
        values = recall - (predicted - hits) / max(len(hits) - 1 - total, 1)
    elif name == PRECISION:
        values = np.where(precision >= target, recall, _NOT_REACHED)
    else:
        values = np.where(recall >= target, precision, _NOT_REACHED)
    return np.asarray(values)


def calibration_error(confidences: Array, is_correct: Array) -> float:
    """Returns the expected calibration error: the difference between confidence and accuracy, averaged over 15 bins.

    The bins have equal widths. They are weighted by their number of predictions.

    Args:
        confidences: Values from 0 to 1, of any shape.
        is_correct: 0 or 1, of the same shape.
    """
    confidences, is_correct = np.ravel(confidences), np.ravel(is_correct)
    bins = np.minimum((confidences * _NUM_BINS).astype(int), _NUM_BINS - 1)
    # In each bin, the number of predictions times the mean of the differences.
    differences = np.bincount(bins, confidences - is_correct)
    return float(np.abs(differences).sum() / max(len(bins), 1))


def compute_coverage(confidences: Array, is_correct: Array) -> list[tuple[float, float, float]]:
    """Returns which share of texts is answered, and how accurately, for several values of the minimum confidence.

    Args:
        confidences: Confidence of each answer, [E].
        is_correct: Whether each answer is correct, [E].

    Returns:
        Tuples of the minimum confidence, the share of texts with at least this confidence, and their accuracy. Minimum
        confidences that no text reaches are left out.
    """
    points = []
    for limit in _CONFIDENCE_LIMITS:
        is_answered = confidences >= limit
        if is_answered.any():
            points.append((limit, float(np.mean(is_answered)), float(np.mean(is_correct[is_answered]))))
    return points
