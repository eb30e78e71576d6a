"""How one or two token sequences become a model's input: [CLS] a [SEP] b [SEP], segment ids, padding, truncation."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

PAIR_SEPARATOR = " ||| "  # the original's, where one string holds the two texts of a pair; the last one counts


def join(cls: Any, sep: Any, a: Sequence[Any], b: Sequence[Any] | None = None) -> tuple[list[Any], list[int]]:
    """Returns [CLS] a [SEP] or [CLS] a [SEP] b [SEP], and the segment ids: 0 up to the first [SEP], 1 after it.

    All are tokens, or all are ids.
    """
    tokens = [cls, *a, sep]
    segment_ids = [0] * len(tokens)
    if b is not None:
        tokens += [*b, sep]
        segment_ids += [1] * (len(b) + 1)
    return tokens, segment_ids


def pad(values: Sequence[Any], length: int, value: Any = 0) -> list[Any]:
    """Returns the values, padded at the end to the length."""
    return [*values, *[value] * (length - len(values))]


def truncate_at_random_ends(a: list[Any], b: list[Any], max_tokens: int, rng: random.Random) -> None:
    """Pre-training's rule: shortens the longer list in place (of equal ones, b) until both fit together.

    Each removal is from the front or from the back with equal chance, so that no end is favoured.
    """
    # Removed at once in the end: a list moves all that follows its first element when that is removed.
    begins, ends = [0, 0], [len(a), len(b)]
    left_a, left_b = ends
    while left_a + left_b > max_tokens:
        longer = 0 if left_a > left_b else 1
        if rng.random() < 0.5:
            begins[longer] += 1
        else:
            ends[longer] -= 1
        left_a, left_b = ends[0] - begins[0], ends[1] - begins[1]
    a[:], b[:] = a[begins[0] : ends[0]], b[begins[1] : ends[1]]


def truncate_at_the_end(a: list[Any], b: list[Any], max_tokens: int) -> None:
    """Fine-tuning's rule: takes the last element off the longer list (of equal ones, b) until both fit together."""
    while len(a) + len(b) > max_tokens:
        (a if len(a) > len(b) else b).pop()


def lengths_truncated_at_the_end(
    a: npt.NDArray[np.int64], b: npt.NDArray[np.int64], max_tokens: int | npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the lengths that `truncate_at_the_end` leaves of many pairs, from their lengths before."""
    # b may keep up to half; what it does not need is a's, and the other way about. The odd one is a's.
    a = np.minimum(a, np.maximum(-(-max_tokens // 2), max_tokens - b))
    return a, np.minimum(b, max_tokens - a)
