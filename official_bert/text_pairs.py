"""How one or two token sequences become a model's input: [CLS] a [SEP] b [SEP], segment ids, padding, truncation."""

import random
from collections.abc import Sequence
from typing import Any


def join(cls: Any, sep: Any, a: Sequence[Any], b: Sequence[Any] | None = None) -> tuple[list[Any], list[int]]:
    """Returns [CLS] a [SEP] or [CLS] a [SEP] b [SEP], and the segment ids: 0 up to the first [SEP], 1 after it.

    Args:
        cls: the [CLS] token, as tokens or ids are given.
        sep: the [SEP] token, likewise.
        a: tokens or ids of the first segment.
        b: tokens or ids of the second segment, if there is one.
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
    """Pre-training's law: shortens the longer list in place (of equal ones, b) until both fit together.

    Each removal is from the front or from the back with equal chance, so that no end is favoured.
    """
    while len(a) + len(b) > max_tokens:
        longer = a if len(a) > len(b) else b
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


def truncate_ends(a: list[Any], b: list[Any], max_tokens: int) -> None:
    """Fine-tuning's law: takes the end off the longer list in place (of equal ones, b) until both fit together."""
    while len(a) + len(b) > max_tokens:
        longer = a if len(a) > len(b) else b
        longer.pop()
