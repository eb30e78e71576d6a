"""The layout of a model's input: [CLS] a [SEP], or [CLS] a [SEP] b [SEP] with segment ids."""

from collections.abc import Sequence
from typing import Any

# Separates the two texts of a pair in one string, as in the original. The last occurrence counts.
PAIR_SEPARATOR = " ||| "


def join(cls: Any, sep: Any, a: Sequence[Any], b: Sequence[Any] | None = None) -> tuple[list[Any], list[int]]:
    """Returns [CLS] a [SEP] or [CLS] a [SEP] b [SEP], and the segment ids: 0 up to the first [SEP], 1 after it.

    The arguments are either all tokens or all ids.
    """
    tokens = [cls, *a, sep]
    segment_ids = [0] * len(tokens)
    if b is not None:
        tokens += [*b, sep]
        segment_ids += [1] * (len(b) + 1)
    return tokens, segment_ids
