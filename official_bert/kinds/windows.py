"""Overlapping windows over a text that is longer than the model reads, and the window that sees most around a token."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

# What the original adds for each token of a window's length: of equal contexts, the longer window's counts.
_PER_TOKEN = 0.01


def starts(num_tokens: int, room: int, stride: int) -> list[int]:
    """Returns where windows begin, so that they cover all tokens.

    Args:
        num_tokens: the tokens of the whole text.
        room: the tokens of a window, at least 1.
        stride: from one window's first token to the next one's; no more than `room` is used, so that none is left out.
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
        spans: first token and the one after the last of each window; every token is in one at least.
        num_tokens: the tokens of the whole text.
    """
    owners, best = np.zeros(num_tokens, np.int64), np.full(num_tokens, -np.inf)
    for number, (start, end) in enumerate(spans):
        here = np.arange(end - start)
        score = np.minimum(here, here[::-1]) + _PER_TOKEN * (end - start)
        is_better = score > best[start:end]
        owners[start:end][is_better] = number
        best[start:end][is_better] = score[is_better]
    return owners
