"""Features: the inputs of a model for examples, as batches with padding, and its outputs.

B batch, C classes, E examples, N sequences in a row, R rows (the inputs that the model reads at once), S sequence,
T tokens of all sequences
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from official_bert.errors import UserError
from official_bert.utils.counting import pluralize

Array = npt.NDArray[Any]

LABELS = "labels"  # the name of the targets of models with one output
EXAMPLE = "example"  # in Features.details: the index of the example of each row
# In Features.details: int64 [R, N], equal for equal texts. Rows that share a text must not be in one batch.
TEXTS = "texts"
NO_LABEL = -1  # the tag of a token that is neither trained on nor scored
MULTIPLE = 2  # lengths of batches are multiples of this, if one graph takes all lengths


@dataclasses.dataclass(frozen=True)
class Features:
    """The inputs of the model for examples, without padding, one row after the other.

    Attributes:
        input_ids: int32 [T].
        segment_ids: int32 [T].
        splits: int64 [R * N + 1]; sequence i is input_ids[splits[i] : splits[i + 1]].
        targets: Targets by output, empty if the examples have no labels. Models with one output have LABELS: int32 [R]
            for classification and multiple choice, float32 [R, C] of 0 and 1 for multi_label, float32 [R] for
            regression, float32 [R] scores for vectors, and int32 [T] for tagging, with NO_LABEL for tokens without a
            tag. question_answering has start_logits and end_logits, int32 [R], positions within the sequence.
        details: Further arrays, of any shape, that `decode` needs, such as EXAMPLE, int64 [R].
        choices: N, 1 for all kinds except multiple choice.
        is_truncated: bool [E], whether each example was truncated.
    """

    input_ids: Array
    segment_ids: Array
    splits: Array
    targets: dict[str, Array]
    details: dict[str, Array]
    choices: int = 1
    is_truncated: Array = dataclasses.field(default_factory=lambda: np.zeros(0, bool))

    @property
    def num_truncated(self) -> int:
        """Number of truncated examples."""
        return int(np.sum(self.is_truncated))

    def __len__(self) -> int:
        return (len(self.splits) - 1) // self.choices


# The model's outputs for all rows, in order and without padding: a list of R arrays ([C], [], [S, C] or [N]), or a dict
# of lists if the model has several outputs.
Outputs = Any


def from_rows(
    ids: Sequence[Array],
    segment_ids: Sequence[Array],
    targets: dict[str, Array],
    details: dict[str, Array],
    choices: int = 1,
    is_truncated: Sequence[bool] = (),
) -> Features:
    """Returns the Features of a list of sequences. The targets of tokens must already be flat."""
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    empty = [np.empty(0, np.int32)]
    return Features(
        np.concatenate([*ids, *empty]).astype(np.int32),
        np.concatenate([*segment_ids, *empty]).astype(np.int32),
        splits,
        targets,
        details,
        choices,
        np.array(is_truncated, bool),
    )


def row_lengths(features: Features) -> Array:
    """Returns the number of tokens of the longest sequence of each row, int64 [R]."""
    lengths = features.splits[1:] - features.splits[:-1]  # Several times as fast as np.diff for a single text.
    return np.asarray(lengths if features.choices == 1 else lengths.reshape(-1, features.choices).max(axis=1))


def padded_inputs(
    features: Features, rows: Array, max_seq_length: int, multiple: int = MULTIPLE, buckets: Sequence[int] = ()
) -> dict[str, Array]:
    """Returns the model's inputs for some rows, int32 [B, S], or [B, N, S] if rows have several sequences.

    Args:
        features: All rows.
        rows: Indices of the rows of the batch. -1 gives an empty row.
        max_seq_length: Maximum of S.
        multiple: S is rounded up to a multiple of this number.
        buckets: Lengths in ascending order. If given, S is the first one that is long enough. The last one must be at
            least as long as the longest row.
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


def gather_rows(numbered: Iterable[tuple[Features, int]]) -> Features:
    """Returns the given rows, (features, index of the row), as new features without targets and details."""
    ids, segment_ids, choices = [], [], 1
    for features, row in numbered:
        choices = features.choices
        for start, end in itertools.pairwise(features.splits[row * choices : (row + 1) * choices + 1]):
            ids.append(features.input_ids[start:end])
            segment_ids.append(features.segment_ids[start:end])
    return from_rows(ids, segment_ids, {}, {}, choices)


def sequence_positions(features: Features, rows: Array) -> tuple[Array, Array]:
    """Returns the start and the length of each sequence of some rows. Empty rows (-1) have sequences of length 0."""
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
        max_tokens: Maximum number of tokens in a batch, with padding. A longer row gets a batch of its own.
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


def check_length(max_seq_length: int, least: int) -> None:
    """Raises a UserError if a sequence of that length has no room for a token in addition to the special tokens."""
    if max_seq_length < least:
        raise UserError(
            f"max_seq_length is {max_seq_length}; expected at least {least}: the special tokens and one more"
        )


def describe_truncation(num_truncated: int, num_examples: int, noun: str, length: int, setting: str) -> str | None:
    """Returns a line on the number of examples that were truncated, or None if no example was."""
    if not num_truncated:
        return None
    return f"cut to {length} tokens ({setting}): {num_truncated:,} of {pluralize(num_examples, noun)}"
