"""Rows in batches, padded to one length, and what a model gives for them, without padding. Needs no TensorFlow.

B batch, S sequence, N sequences in a row, R rows
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from official_bert.kinds.features import Array, Features, Outputs, from_rows

MULTIPLE = 2  # of which the lengths of batches are where one graph takes them all


def row_lengths(features: Features) -> Array:
    """Returns the tokens of each row, int64 [R]: those of its longest sequence."""
    return np.asarray(np.diff(features.splits).reshape(-1, features.choices).max(axis=1))


def padded_inputs(
    features: Features, rows: Array, max_seq_length: int, multiple: int = MULTIPLE, buckets: Sequence[int] = ()
) -> dict[str, Array]:
    """Returns the model's inputs for some rows: int32 [B, S], or [B, N, S] where rows have several sequences.

    Args:
        features: the rows.
        rows: the number of each; -1 gives an empty row.
        max_seq_length: S at most.
        multiple: S is rounded up to a multiple of it.
        buckets: S is rounded up to one of these instead, in ascending order, the last one at least the longest row.
    """
    starts, lengths = sequence_positions(features, rows)
    longest = int(lengths.max(initial=1))
    rounded = min(-(-longest // multiple) * multiple, max_seq_length)
    if buckets:
        rounded = next(length for length in buckets if length >= longest)
    inside = np.arange(rounded) < lengths[:, None]  # [B * N, S]
    indices = (starts[:, None] + np.arange(inside.shape[1]))[inside]
    arrays = {"input_mask": inside.astype(np.int32)}
    for name, values in (("input_ids", features.input_ids), ("segment_ids", features.segment_ids)):
        arrays[name] = np.zeros(inside.shape, np.int32)
        arrays[name][inside] = values[indices]
    if features.choices == 1:
        return arrays
    return {name: each.reshape(len(rows), features.choices, -1) for name, each in arrays.items()}


def gather(numbered: Iterable[tuple[Features, int]]) -> Features:
    """Returns rows of several features, each given by its number, without targets and details."""
    ids, segment_ids, choices = [], [], 1
    for features, row in numbered:
        choices = features.choices
        for start, end in itertools.pairwise(features.splits[row * choices : (row + 1) * choices + 1]):
            ids.append(features.input_ids[start:end])
            segment_ids.append(features.segment_ids[start:end])
    return from_rows(ids, segment_ids, {}, {}, choices)


def sequence_positions(features: Features, rows: Array) -> tuple[Array, Array]:
    """Returns where the sequences of rows begin, and their lengths: 0 for fillers."""
    sequences = (rows[:, None] * features.choices + np.arange(features.choices)).ravel()
    real = np.repeat(rows >= 0, features.choices)
    sequences = np.where(real, sequences, 0)
    starts = features.splits[sequences]
    return starts, np.where(real, features.splits[sequences + 1] - starts, 0)


def batches_by_length(lengths: Array, max_rows: int | None = None, max_tokens: int | None = None) -> Iterator[Array]:
    """Yields the indices of the rows of each batch. The rows of a batch have similar lengths.

    Args:
        lengths: Number of tokens of each row, [R].
        max_rows: Maximum number of rows in a batch.
        max_tokens: Maximum number of tokens in a batch, with padding. A longer row is computed alone.
    """
    order = np.argsort(lengths, kind="stable")
    start = 0
    for end in range(1, len(order) + 1):
        num_rows = end + 1 - start  # with the next row
        is_full = end == len(order) or (max_rows is not None and num_rows > max_rows)
        if is_full or (max_tokens is not None and lengths[order[end]] * num_rows > max_tokens):
            yield order[start:end]
            start = end


def collect_outputs(features: Features, batches: Iterable[tuple[Array, Any]]) -> Outputs:
    """Returns a model's outputs for all rows, in order and without padding (see features.Outputs).

    Args:
        features: The rows.
        batches: For each batch, the indices of its rows (-1 for an empty row), and the outputs, by name if the model
            has several.
    """
    lengths = row_lengths(features)
    by_output: dict[str, list[Any]] = {}
    is_structured = False
    for rows, outputs in batches:
        is_structured = isinstance(outputs, dict)
        for name, values in (outputs if is_structured else {"": outputs}).items():
            # Only outputs of tokens have as many columns as the inputs, and at least as many dimensions.
            of_tokens = is_structured or (len(values.shape) == 3 and features.choices == 1)
            collected = by_output.setdefault(name, [None] * len(features))
            for row, value in zip(rows, np.asarray(values, np.float32), strict=True):
                if row >= 0:
                    collected[row] = value[: lengths[row]] if of_tokens else value
    return by_output if is_structured else by_output.get("", [])
