"""The inputs of a model for examples, and its outputs.

E examples, R rows (what the model reads at once), N sequences in a row, T tokens of all sequences, C classes,
S sequence
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from official_bert.errors import UserError
from official_bert.utils.counting import pluralize

Array = npt.NDArray[Any]

LABELS = "labels"  # the name of the targets of models with one output
EXAMPLE = "example"  # in Features.details: the number of the example of each row
# In Features.details: int64 [R, N], equal for equal texts. Rows with a text in common may not share a batch.
TEXTS = "texts"
NO_LABEL = -1  # the tag of a token that is neither trained on nor scored


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
        is_cut: bool [E], whether an example was truncated.
    """

    input_ids: Array
    segment_ids: Array
    splits: Array
    targets: dict[str, Array]
    details: dict[str, Array]
    choices: int = 1
    is_cut: Array = dataclasses.field(default_factory=lambda: np.zeros(0, bool))

    @property
    def cut(self) -> int:
        """Number of truncated examples."""
        return int(np.sum(self.is_cut))

    def __len__(self) -> int:
        return (len(self.splits) - 1) // self.choices


# The model's outputs for all rows, in order and without padding: a list of R arrays ([C], [], [S, C], [N]), or a dict
# of such lists where the model has several outputs.
Outputs = Any


def from_rows(
    ids: Sequence[Array],
    segment_ids: Sequence[Array],
    targets: dict[str, Array],
    details: dict[str, Array],
    choices: int = 1,
    is_cut: Sequence[bool] = (),
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
        np.array(is_cut, bool),
    )


def check_length(max_seq_length: int, least: int) -> None:
    """Raises a UserError if a sequence of that length has no room for a token besides the special ones."""
    if max_seq_length < least:
        raise UserError(
            f"max_seq_length is {max_seq_length}; expected at least {least}: the special tokens and one more"
        )


def cut_note(cut: int, examples: int, noun: str, length: int, setting: str) -> str | None:
    """Returns a line on the number of examples that were truncated to a length, or None if there are none."""
    return f"cut to {length} tokens ({setting}): {cut:,} of {pluralize(examples, noun)}" if cut else None
