"""From probabilities to decisions: calibration, a threshold for each label, and when not to answer.

All of them are chosen on evaluation data, by probabilities, and become settings of the spec.

E examples, C classes
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from official_bert.errors import UserError
from official_bert.kinds.features import Array
from official_bert.kinds.names import ACCURACY, BETAS

BINS = 15  # of the calibration error
_LIMITS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)  # of confidence, below which there is no answer
_LARGEST_FACTOR = 20.0  # a temperature lies between its inverse and it
_LEAST = 1e-12  # a probability whose logarithm is taken


def rescaled_classes(probabilities: Array, temperature: float) -> Array:
    """Returns probabilities of classes, [E, C], as if their logits had been divided by a temperature."""
    logits = np.log(np.maximum(probabilities, _LEAST)) / temperature
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def rescaled_labels(probabilities: Array, temperature: float) -> Array:
    """Returns probabilities of labels that do not exclude each other, [E, C], likewise."""
    inside = np.clip(probabilities, _LEAST, 1.0 - _LEAST)
    return np.asarray(1.0 / (1.0 + np.exp(-(np.log(inside) - np.log1p(-inside)) / temperature)))


def temperature(probabilities: Array, expected: Array, rescaled: Callable[[Array, float], Array]) -> float:
    """Returns the temperature at which what is expected is likeliest (Guo et al., 2017, arXiv:1706.04599).

    Args:
        probabilities: as predicted, [E, C].
        expected: 1 for each class or label that is right, else 0, [E, C].
        rescaled: `rescaled_classes` or `rescaled_labels`.
    """
    from scipy.optimize import minimize_scalar

    def loss(exponent: float) -> float:
        chances = rescaled(probabilities, float(np.exp(exponent)))
        unexpected = 1.0 - chances if rescaled is rescaled_labels else 1.0  # of classes, the right one's counts alone
        return float(-np.log(np.maximum(np.where(expected > 0, chances, unexpected), _LEAST)).sum())

    most = float(np.log(_LARGEST_FACTOR))
    return float(np.exp(minimize_scalar(loss, bounds=(-most, most), method="bounded").x))


def thresholds(probabilities: Array, expected: Array, labels: Sequence[str], measure: str) -> tuple[float, ...]:
    """Returns for each label the probability above which it is best predicted.

    Args:
        probabilities: as predicted, [E, C].
        expected: 1 for each label that a text has, else 0, [E, C].
        labels: their names.
        measure: one of kinds.names.MEASURES.

    Raises:
        UserError: a label does not occur among what is expected, so that nothing can be chosen.
    """
    absent = [label for label, column in zip(labels, expected.T, strict=True) if not column.any()]
    if absent:
        raise UserError(
            f"the evaluation data have no text with the label {', '.join(absent)}, so that no threshold can be chosen "
            "for it; add some, or leave out --thresholds"
        )
    return tuple(
        _threshold(column, right > 0, measure) for column, right in zip(probabilities.T, expected.T, strict=True)
    )


def _threshold(probabilities: Array, right: Array, measure: str) -> float:
    order = np.argsort(-probabilities, kind="stable")
    ordered, hits = probabilities[order], np.cumsum(right[order])
    predicted, total = np.arange(1, len(order) + 1), int(right.sum())
    if measure == ACCURACY:
        values = (2 * hits - predicted - total) / len(order)  # but for a constant
        nothing = -total / len(order)
    else:
        weight = BETAS[measure] ** 2
        values, nothing = (1 + weight) * hits / (weight * total + predicted), 0.0
    # Between two equal probabilities there is no threshold.
    is_end = np.append(ordered[1:] < ordered[:-1], True)
    below = np.append(ordered[1:], 0.0)
    candidates = [(nothing, float(ordered[0] + 1.0) / 2.0 if ordered[0] < 1.0 else 1.0)]
    candidates += [
        (float(value), float(high + low) / 2.0)
        for value, high, low in zip(values[is_end], ordered[is_end], below[is_end], strict=True)
    ]
    return max(candidates, key=lambda each: (round(each[0], 12), -abs(each[1] - 0.5)))[1]


def reliability(confidences: Array, is_right: Array) -> list[tuple[float, float, int]]:
    """Returns for each bin of confidence that has answers: their mean confidence, the share that is right, how many.

    Args:
        confidences: of any shape, each from 0 to 1.
        is_right: likewise, 0 or 1.
    """
    confidences, is_right = np.ravel(confidences), np.ravel(is_right)
    bins = np.minimum((confidences * BINS).astype(int), BINS - 1)
    return [
        (float(confidences[bins == each].mean()), float(is_right[bins == each].mean()), int((bins == each).sum()))
        for each in range(BINS)
        if (bins == each).any()
    ]


def calibration_error(confidences: Array, is_right: Array) -> float:
    """Returns the expected calibration error: by how much confidence and accuracy differ, over the bins."""
    points = reliability(confidences, is_right)
    total = sum(count for *_, count in points)
    return sum(abs(confidence - right) * count for confidence, right, count in points) / total if total else 0.0


def figures(
    temperature: float, confidences: Array, is_right: Array, as_trained: Array, with_coverage: bool
) -> dict[str, Any]:
    """Returns how far probabilities can be believed: the calibration error as trained and now, and the coverage.

    Args:
        temperature: of now.
        confidences: how sure the decisions are, of any shape.
        is_right: which of them are right, likewise.
        as_trained: how sure they were before any calibration, likewise.
        with_coverage: whether answers may be left out.
    """
    return {
        "temperature": temperature,
        "before": calibration_error(as_trained, is_right),
        "after": calibration_error(confidences, is_right),
        "coverage": coverage(confidences, is_right) if with_coverage else [],
    }


def coverage(confidences: Array, is_right: Array) -> list[tuple[float, float, float]]:
    """Returns what each limit of confidence would cost: (limit, share that is answered, share of these that is right).

    A limit that no answer reaches is left out.
    """
    points = []
    for limit in _LIMITS:
        is_answered = confidences >= limit
        if is_answered.any():
            points.append((limit, float(np.mean(is_answered)), float(np.mean(is_right[is_answered]))))
    return points
