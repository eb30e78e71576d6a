"""Truncation and windows: the rules that fit texts of any length into a model's sequences.

All functions count tokens of the texts themselves, without [CLS] and [SEP]. Functions with an argument `xp` also run in
a TensorFlow graph: pass the module tensorflow instead of numpy.

E texts, R windows of all texts, T tokens of a text, W words of a text
"""

import bisect
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

# The weight of a window's length when windows are compared by context, as in the original's run_squad.py.
_LENGTH_WEIGHT = 0.01


def truncate_lengths(first: Any, second: Any, max_tokens: Any, xp: Any = np) -> tuple[Any, Any]:
    """Returns how many tokens are kept from the start of each text of a pair when it is truncated for fine-tuning.

    This is the original's rule: remove the last token of the longer text, or of the second one if they are equally
    long, until the pair fits.

    Args:
        first: Number of tokens of each first text, int or int [E].
        second: Number of tokens of each second text, int or int [E].
        max_tokens: Maximum number of tokens of a pair, int or int [E].
        xp: The array module, numpy or tensorflow.
    """
    # Each text may use half of the room (the first one gets the odd token) and what the other one leaves of its half.
    first = xp.minimum(first, xp.maximum((max_tokens + 1) // 2, max_tokens - second))
    return first, xp.minimum(second, max_tokens - first)


def truncate_pair(first: Sequence[Any], second: Sequence[Any], max_tokens: int) -> tuple[list[Any], list[Any]]:
    """Truncates a pair for fine-tuning, by the rule of `truncate_lengths`.

    Args:
        first: Tokens of the first text.
        second: Tokens of the second text. Empty for a single text.
        max_tokens: Maximum number of tokens of the pair.
    """
    kept_first, kept_second = truncate_lengths(len(first), len(second), max_tokens)
    return list(first[:kept_first]), list(second[:kept_second])


def truncate_pair_at_random_ends(first: list[Any], second: list[Any], max_tokens: int, rng: random.Random) -> None:
    """Truncates a pair in place for pre-training, by the original's rule.

    Removes tokens of the longer text, or of the second one if they are equally long, until the pair fits. Each token is
    removed from the front or the back with equal probability.

    Args:
        first: Tokens of the first text.
        second: Tokens of the second text.
        max_tokens: Maximum number of tokens of the pair.
        rng: Source of random numbers.
    """
    # Deletes all tokens in a single operation: deleting the first element of a list moves all others.
    starts, ends = [0, 0], [len(first), len(second)]
    num_first, num_second = ends
    while num_first + num_second > max_tokens:
        longer = 0 if num_first > num_second else 1
        if rng.random() < 0.5:
            starts[longer] += 1
        else:
            ends[longer] -= 1
        num_first, num_second = ends[0] - starts[0], ends[1] - starts[1]
    first[:], second[:] = first[starts[0] : ends[0]], second[starts[1] : ends[1]]


class Windows(NamedTuple):
    """The overlapping windows into which texts are split, in the order of the texts. Each field is int [R]."""

    texts: Any  # the index of the text
    starts: Any  # the position of the window's first token in the text
    lengths: Any


def count_windows(lengths: Any, room: Any, stride: Any, xp: Any = np) -> Any:
    """Returns the number of windows that are needed to cover each text, at least 1, int [E].

    Args:
        lengths: Number of tokens of each text, int [E].
        room: Maximum number of tokens in a window of each text, at least 1, int [E].
        stride: Number of tokens between the starts of two windows, at most `room`, int or int [E].
        xp: The array module, numpy or tensorflow.
    """
    return 1 + xp.maximum(0, -((room - lengths) // stride))


def build_windows(lengths: Any, room: Any, stride: int, xp: Any = np) -> Windows:
    """Splits texts into overlapping windows that cover all tokens. A text without tokens has one empty window.

    Args:
        lengths: Number of tokens of each text, int [E].
        room: Maximum number of tokens in a window of each text, at least 1, int [E].
        stride: Number of tokens between the starts of two windows. Reduced to `room` if it is longer.
        xp: The array module, numpy or tensorflow.
    """
    stride = xp.minimum(room, stride)
    texts, numbers = row_positions(count_windows(lengths, room, stride, xp), xp)
    lengths, room, stride = (_gather(values, texts, xp) for values in (lengths, room, stride))
    starts = numbers * stride
    return Windows(texts, starts, xp.minimum(room, lengths - starts))


def build_word_windows(word_starts: Sequence[int], room: int, stride: int) -> list[tuple[int, int]]:
    """Splits a text into overlapping windows of whole words.

    Args:
        word_starts: Index of each word's first token, followed by the number of tokens of the text, [W + 1]. No word
            has more than `room` tokens.
        room: Maximum number of tokens in a window.
        stride: Approximate number of tokens between the starts of two windows.

    Returns:
        For each window, the index of its first word and the index after its last word.
    """
    num_words = len(word_starts) - 1
    first, spans = 0, []
    while True:
        last = bisect.bisect_right(word_starts, word_starts[first] + room) - 1
        spans.append((first, last))
        if last == num_words:
            return spans
        first = min(max(bisect.bisect_left(word_starts, word_starts[first] + stride), first + 1), last)


def assign_tokens(starts: Any, lengths: Any, num_tokens: Any, xp: Any = np) -> Any:
    """Returns for each token the index of the window in which the token has the most context, int [T].

    The context of a token is the number of tokens to its left or to its right in the window, whichever is smaller. Ties
    go to the longer window, then to the earlier one.

    Args:
        starts: Index of the first token of each window, int [R]. Together, the windows cover all tokens.
        lengths: Number of tokens in each window, int [R].
        num_tokens: Number of tokens of the text, or of all texts.
        xp: The array module, numpy or tensorflow.
    """
    if xp is np and len(lengths) == 1:
        return np.zeros(num_tokens, np.int64)  # In a fraction of the time.
    rows, positions = row_positions(lengths, xp)
    tokens, length = _gather(starts, rows, xp) + positions, _gather(lengths, rows, xp)
    # The same float64 numbers as in the original. A division by 1 converts integers to float64 in both modules.
    score = xp.minimum(positions, length - 1 - positions) / 1 + _LENGTH_WEIGHT * (length / 1)
    is_best = score == _gather(_segment_max(score, tokens, num_tokens, xp), tokens, xp)
    return -_segment_max(xp.where(is_best, -rows, np.iinfo(np.int32).min), tokens, num_tokens, xp)


def row_positions(lengths: Any, xp: Any = np) -> tuple[Any, Any]:
    """Returns the row of each element, and its position within the row, for rows that are concatenated to a vector.

    Args:
        lengths: Length of each row, int [R].
        xp: The array module, numpy or tensorflow.

    Returns:
        Two int vectors with one value per element.
    """
    ends = xp.cumsum(lengths)
    numbers = np.arange(lengths.sum()) if xp is np else xp.range(xp.reduce_sum(lengths))
    rows = xp.searchsorted(ends, numbers, side="right")
    return rows, numbers - _gather(ends - lengths, rows, xp)


def _gather(values: Any, indices: Any, xp: Any) -> Any:
    return values[indices] if xp is np else xp.gather(values, indices)


def _segment_max(values: Any, segments: Any, num_segments: Any, xp: Any) -> Any:
    if xp is not np:
        return xp.math.unsorted_segment_max(values, segments, num_segments)
    greatest = np.full(num_segments, values.min(initial=0))
    np.maximum.at(greatest, segments, values)
    return greatest


def concatenate_ranges(starts: Any, lengths: Any) -> npt.NDArray[np.int64]:
    """Concatenates integer ranges: [start, start + 1, ..., start + length - 1] for each start and length."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
