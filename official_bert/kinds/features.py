"""Features: the token ids and targets of examples, their conversion to padded batches, and the collected outputs.

A row is what the model reads as one element of a batch: one sequence (a text, a text pair or a window of a long text),
or for multiple choice the N sequences of an example.

B rows of a batch, C classes, E examples, N sequences in a row, R rows, S sequence length, T tokens of all sequences
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
EXAMPLE = "example"  # key of Features.details: the index of the example of each row
# In Features.details: int64 [R, N], equal for equal texts. Rows that share a text must not be in one batch.
TEXTS = "texts"
NO_LABEL = -1  # the tag of a token that is neither trained on nor scored
MULTIPLE = 2  # sequence lengths are padded to multiples of this if a graph takes any length


@dataclasses.dataclass(frozen=True)
class Features:
    """The model's inputs and targets for a list of examples, concatenated without padding.

    E examples, R rows (elements of a batch), N sequences in a row, T tokens of all sequences, C classes

    Attributes:
        input_ids: Token ids of all sequences, int32 [T].
        segment_ids: int32 [T].
        splits: Where each sequence starts, int64 [R * N + 1]. Sequence i is input_ids[splits[i] : splits[i + 1]].
        targets: Targets by name of the output. Empty if the examples have no labels. Models with one output have the
            key LABELS: int32 [R] for classification and multiple choice, float32 [R, C] of 0 and 1 for multi_label,
            float32 [R] for regression, float32 [R] scores for vectors, and int32 [T] for tagging, with NO_LABEL for
            tokens without a tag. question_answering has start_logits and end_logits, int32 [R], positions within the
            sequence.
        details: Further arrays that `KindSpec.decode` needs, such as EXAMPLE, the example of each row, int64 [R].
        choices: N, 1 for all kinds except multiple choice.
        is_truncated: Whether each example was truncated, bool [E].
        has_token_outputs: Whether the model's outputs have a value for each token of the input.
    """

    input_ids: Array
    segment_ids: Array
    splits: Array
    targets: dict[str, Array]
    details: dict[str, Array]
    choices: int = 1
    is_truncated: Array = dataclasses.field(default_factory=lambda: np.zeros(0, bool))
    has_token_outputs: bool = False

    @property
    def num_truncated(self) -> int:
        """The number of truncated examples."""
        return int(np.sum(self.is_truncated))

    def __len__(self) -> int:
        return (len(self.splits) - 1) // self.choices

    def group_rows(self, size: int, targets: dict[str, Array], details: dict[str, Array]) -> "Features":
        """Returns a copy in which `size` rows of one sequence each become one row.

        Args:
            size: N, the number of sequences in a row of the result.
            targets: Targets of the new rows.
            details: Further arrays of the new rows.
        """
        is_truncated = np.any(self.is_truncated.reshape(-1, size), axis=1)
        return dataclasses.replace(self, targets=targets, details=details, choices=size, is_truncated=is_truncated)


# The model's outputs for all rows, in order and without padding: a list of R arrays ([C], [], [S, C] or [N]), or a dict
# of lists if the model has several outputs.
Outputs = Any


def concatenate_rows(
    ids: Sequence[Array],
    segment_ids: Sequence[Array],
    targets: dict[str, Array],
    details: dict[str, Array],
    choices: int = 1,
    is_truncated: Sequence[bool] = (),
    has_token_outputs: bool = False,
) -> Features:
    """Concatenates sequences of token ids to Features.

    Args:
        ids: Token ids of each sequence.
        segment_ids: Segment ids of each sequence.
        targets: Features.targets. Targets of tokens must already be concatenated, [T].
        details: Features.details.
        choices: Number of sequences in a row.
        is_truncated: Whether each example was truncated.
        has_token_outputs: Features.has_token_outputs.
    """
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
        has_token_outputs,
    )


def row_lengths(features: Features) -> Array:
    """Returns the length in tokens of each row (a text, a text pair or a window of a long text), int64 [R].

    If rows have several sequences (multiple choice), the longest one counts.
    """
    lengths = features.splits[1:] - features.splits[:-1]  # Several times as fast as np.diff for a single text.
    return np.asarray(lengths if features.choices == 1 else lengths.reshape(-1, features.choices).max(axis=1))


def hash_rows(features: Features) -> list[int]:
    """Returns a hash of the token ids of each row. Rows with the same texts have the same hash."""
    starts = features.splits[:: features.choices].tolist()
    return [hash(features.input_ids[start:end].tobytes()) for start, end in itertools.pairwise(starts)]


def padded_inputs(
    features: Features, rows: Array, max_seq_length: int, multiple: int = MULTIPLE, buckets: Sequence[int] = ()
) -> dict[str, Array]:
    """Returns a padded batch of rows (texts, or windows of long texts): input_ids, input_mask and segment_ids.

    Each array is int32 [B, S], or [B, N, S] if rows have several sequences.

    Args:
        features: All rows.
        rows: Indices of the rows of the batch, int [B]. An index of -1 gives a row of padding.
        max_seq_length: Maximum of S.
        multiple: S is rounded up to a multiple of this number.
        buckets: Allowed values of S in ascending order, used instead of `multiple`. S is the first one that is long
            enough. The last one must be at least as long as the longest row.
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
    """Copies selected rows (texts, or windows of long texts) into new Features, without targets and details.

    Args:
        numbered: For each row, the Features that contain it and its index there.
    """
    ids, segment_ids, choices, has_token_outputs = [], [], 1, False
    for features, row in numbered:
        choices, has_token_outputs = features.choices, features.has_token_outputs
        for start, end in itertools.pairwise(features.splits[row * choices : (row + 1) * choices + 1]):
            ids.append(features.input_ids[start:end])
            segment_ids.append(features.segment_ids[start:end])
    return concatenate_rows(ids, segment_ids, {}, {}, choices, has_token_outputs=has_token_outputs)


def sequence_positions(features: Features, rows: Array) -> tuple[Array, Array]:
    """Returns where the token ids of given rows start in `features.input_ids`, and their lengths.

    Args:
        features: All rows (texts, or windows of long texts).
        rows: Indices of rows, int [B]. The sequences of row -1 (padding) have length 0.

    Returns:
        The starts and the lengths of the rows' sequences, each int64 [B * N].
    """
    sequences = (rows[:, None] * features.choices + np.arange(features.choices)).ravel()
    real = np.repeat(rows >= 0, features.choices)
    sequences = np.where(real, sequences, 0)
    starts = features.splits[sequences]
    return starts, np.where(real, features.splits[sequences + 1] - starts, 0)


def batches_by_length(lengths: Array, max_rows: int | None = None, max_tokens: int | None = None) -> Iterator[Array]:
    """Groups texts of similar length into batches, and yields the indices of each batch, shortest texts first.

    Args:
        lengths: Number of tokens of each text or window, [R].
        max_rows: Maximum number of texts in a batch. No limit if None.
        max_tokens: Maximum number of tokens in a batch, including padding. A longer text gets a batch of its own. No
            limit if None.
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
    """Collects a model's outputs for all rows, in the order of `features` and without padding (see features.Outputs).

    Args:
        features: The rows (texts, or windows of long texts).
        batches: For each batch, the indices of its rows (-1 for a row of padding) and the model's output: an array, or
            a dict of arrays if the model has several outputs.
    """
    lengths = row_lengths(features)
    by_output: dict[str, list[Any]] = {}
    is_structured = False
    for rows, outputs in batches:
        is_structured = isinstance(outputs, dict)
        for name, values in (outputs if is_structured else {"": outputs}).items():
            collected = by_output.setdefault(name, [None] * len(features))
            for row, value in zip(rows, np.asarray(values, np.float32), strict=True):
                if row >= 0:
                    collected[row] = value[: lengths[row]] if features.has_token_outputs else value
    return by_output if is_structured else by_output.get("", [])


def check_length(max_seq_length: int, least: int) -> None:
    """Raises a UserError if max_seq_length is less than `least`: the special tokens and one more token."""
    if max_seq_length < least:
        raise UserError(
            f"max_seq_length is {max_seq_length}; expected at least {least}: the special tokens and one token of text"
        )


def describe_truncation(num_truncated: int, num_examples: int, noun: str, length: int, setting: str) -> str | None:
    """Returns a line for the log with the number of truncated examples, or None if none was truncated.

    Args:
        num_truncated: Number of truncated examples.
        num_examples: Number of all examples.
        noun: What an example is called, such as "text".
        length: The length in tokens to which examples were truncated.
        setting: Name of the setting with that length, such as "max_seq_length".
    """
    if not num_truncated:
        return None
    return f"truncated to {length} tokens ({setting}): {num_truncated:,} of {pluralize(num_examples, noun)}"
