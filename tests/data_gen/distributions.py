"""Comparison of distributions by their counts."""

import math

import numpy as np


def histogram(values: np.ndarray, top: int) -> np.ndarray:
    return np.bincount(np.minimum(values, top), minlength=top + 1)


def assert_alike(one: np.ndarray, two: np.ndarray, what: str, clusters: float = 1.0) -> None:
    """Compares two histograms with a chi-square test at five standard deviations. Rare values are pooled.

    If values come in clusters that share one random draw, the statistic grows by up to the cluster size.
    """
    kept = one + two >= 20
    one = np.append(one[kept], one[~kept].sum()).astype(float)
    two = np.append(two[kept], two[~kept].sum()).astype(float)
    kept = one + two > 0
    one, two = one[kept], two[kept]
    scale = math.sqrt(two.sum() / one.sum())
    statistic = ((one * scale - two / scale) ** 2 / (one + two)).sum() / clusters
    freedom = len(one) - 1
    assert statistic < freedom + 5 * math.sqrt(2 * freedom) + 10, f"{what}: {statistic:.0f} for {freedom} degrees"
