"""Rows in batches, padded to one length, and what a model gives for them, without padding. Needs no TensorFlow.

B batch, S sequence, N sequences in a row, R rows
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from official_bert.kinds.features import Array, Features, Outputs, from_rows

MULTIPLE = 2  # of which the lengths of batches are where one graph takes them all
Forward = Callable[[dict[str, Array]], Any]  # padded inputs to outputs, or outputs by name


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


def predict(
    forward: Forward,
    features: Features,
    batches: Iterable[Array],
    max_seq_length: int,
    multiple: int = MULTIPLE,
    buckets: Sequence[int] = (),
) -> Outputs:
    """Returns a model's outputs for all rows, in order and without padding (see features.Outputs).

    Args:
        forward: inputs -> outputs.
        features: the rows.
        batches: the numbers of the rows of each batch; -1 gives an empty row.
        max_seq_length: as for `padded_inputs`.
        multiple: likewise.
        buckets: likewise.
    """
    lengths = row_lengths(features)
    by_output: dict[str, list[Any]] = {}
    structured = False
    for rows in batches:
        inputs = padded_inputs(features, rows, max_seq_length, multiple, buckets)
        outputs = forward(inputs)
        structured = isinstance(outputs, dict)
        length = inputs["input_ids"].shape[-1]
        for name, values in (outputs if structured else {"": outputs}).items():
            rows_of_output = by_output.setdefault(name, [None] * len(features))
            # Only the outputs of tokens have as many columns as the inputs, and at least as many dimensions.
            of_tokens = structured or (len(values.shape) == 3 and features.choices == 1)
            _put(rows_of_output, rows, np.asarray(values, np.float32), lengths if of_tokens and length else None)
    return by_output if structured else by_output.get("", [])


def _put(outputs: list[Any], rows: Array, values: Array, lengths: Array | None) -> None:
    """Puts the values of a batch where their rows belong; those of tokens without padding."""
    for row, value in zip(rows, values, strict=True):
        if row >= 0:
            outputs[row] = value if lengths is None else value[: lengths[row]]
