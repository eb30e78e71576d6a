"""Probabilities of logits, and the margins of decisions."""

import numpy as np

from official_bert.kinds.features import Array


def softmax(logits: Array) -> Array:
    """Returns the probabilities of the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def margins_of_rows(rows: Array) -> list[float]:
    """Returns the difference between the two largest numbers of each row."""
    ordered = np.sort(rows, axis=-1)
    return [float(row[-1] - row[-2]) if len(row) > 1 else np.inf for row in ordered]
