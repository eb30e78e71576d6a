"""Overlapping windows over a long text, and the window with the most context around each token."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

# What the original adds for each token of a window's length: of equal contexts, the longer window's counts.
_PER_TOKEN = 0.01


def starts(num_tokens: int, room: int, stride: int) -> list[int]:
    """Returns the first token of each window, so that the windows cover all tokens.

    Args:
        num_tokens: Number of tokens of the whole text.
        room: Number of tokens of a window, at least 1.
        stride: Number of tokens from the start of a window to the next. At most `room` is used, to cover all tokens.
    """
    firsts = [0]
    while firsts[-1] + room < num_tokens:
        firsts.append(firsts[-1] + min(room, stride))
    return firsts


def with_most_context(spans: Sequence[tuple[int, int]], num_tokens: int) -> npt.NDArray[np.int64]:
    """Returns for each token the number of the window in which it has most context, [num_tokens].

    That is the one in which the smaller of the counts of tokens to its left and right is greatest; of equal ones the
    longer, then the first.

    Args:
        spans: The first token of each window and the one after its last. Every token is in at least one window.
        num_tokens: Number of tokens of the whole text.
    """
    owners, best = np.zeros(num_tokens, np.int64), np.full(num_tokens, -np.inf)
    for number, (start, end) in enumerate(spans):
        here = np.arange(end - start)
        score = np.minimum(here, here[::-1]) + _PER_TOKEN * (end - start)
        is_better = score > best[start:end]
        owners[start:end][is_better] = number
        best[start:end][is_better] = score[is_better]
    return owners
