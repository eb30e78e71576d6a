"""The layout of a model's input: [CLS] a [SEP], or [CLS] a [SEP] b [SEP] with segment ids."""

from collections.abc import Sequence
from typing import Any

# Separates the two texts of a pair in one string, as in the original. The last occurrence counts.
PAIR_SEPARATOR = " ||| "


def join(cls: Any, sep: Any, a: Sequence[Any], b: Sequence[Any] | None = None) -> tuple[list[Any], list[int]]:
    """Joins texts to a model's input: [CLS] a [SEP], or [CLS] a [SEP] b [SEP].

    Args:
        cls: [CLS], or its id.
        sep: [SEP], or its id.
        a: The tokens of the first text, or their ids.
        b: The tokens or ids of the second text, or None if there is only one text.

    Returns:
        The tokens or ids, and the segment ids: 0 up to the first [SEP], and 1 after it.
    """
    tokens = [cls, *a, sep]
    segment_ids = [0] * len(tokens)
    if b is not None:
        tokens += [*b, sep]
        segment_ids += [1] * (len(b) + 1)
    return tokens, segment_ids
