"""The reference inputs of an export and the model's answers to them, used to check the export on any machine.

The export command stores them with the model (see export/verification.py).
"""

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.inference import exports
from official_bert.inference.exports import Columns
from official_bert.inference.predictor import Predictor
from official_bert.kinds.names import DEFAULT_SIGNATURE
from official_bert.utils import files

TOGETHER = 12  # Number of texts that are also answered in one batch.
# Maximum number of characters of a stored answer. Longer ones, such as vectors of long texts, are only compared.
_LONGEST_ROW = 100_000

Answers = list[dict[str, Any]]  # A dict of outputs for each row.
Run = Callable[[Columns], Columns]  # `run` of a Predictor.


@dataclasses.dataclass(frozen=True)
class ReferenceAnswers:
    """The reference inputs of an export, and the answers of the model that was exported.

    Attributes:
        texts: The reference inputs: a list of texts for each input name.
        answers: The answers: a list for each output name.
        discrete_outputs: Outputs chosen by comparing numbers (such as labels), which rounding may flip.
        margins: For each text, how far its discrete outputs are from flipping (see KindSpec.margins).
        tolerance: Largest relative difference of a number that counts as rounding.
    """

    texts: dict[str, list[Any]]
    answers: dict[str, list[Any]]
    discrete_outputs: tuple[str, ...]
    margins: list[float]
    tolerance: float

    def __len__(self) -> int:
        return len(self.margins)

    def rows(self) -> list[dict[str, Any]]:
        """Returns a dict of the inputs by name for each reference input."""
        return [{name: column[number] for name, column in self.texts.items()} for number in range(len(self))]

    def compare(
        self, alone: Sequence[Mapping[str, Any]], together: Sequence[Mapping[str, Any]], answerer: str
    ) -> list[str]:
        """Returns a line for each output of a text that differs by more than rounding from the stored answer.

        Args:
            alone: The answers to each reference input by itself, or to the first ones.
            together: The answers to the first reference inputs in one batch. May be empty.
            answerer: What gave these answers, such as "the server", for the lines.
        """
        return [*self.differences(alone, answerer), *self.differences(together, f"{answerer} in a batch")]

    def differences(self, answers: Sequence[Mapping[str, Any]], answerer: str) -> Iterator[str]:
        """Yields a line for each output of a text that differs by more than rounding from the stored answer.

        Args:
            answers: Answers to the first reference inputs, or to all.
            answerer: What gave these answers, such as "the server", for the lines.
        """
        for number, (row, others) in enumerate(zip(self.rows(), answers, strict=False)):
            for name, column in self.answers.items():
                if name in self.discrete_outputs and self.margins[number] <= 2 * self.tolerance:
                    continue
                if name not in others:
                    yield f"{answerer} has no output {name} for {_format_value(row)}, only {sorted(others)}"
                elif _difference(column[number], others[name]) > self.tolerance:
                    yield (
                        f"for {_format_value(row)}, {name} is {_format_value(column[number])} with predict, but "
                        f"{_format_value(others[name])} with {answerer}"
                    )

    def largest_difference(self, answers: Sequence[Mapping[str, Any]]) -> float:
        """Returns the largest relative difference between a stored number and the same number in `answers`.

        Args:
            answers: Answers for which `differences` yields nothing.
        """
        names = self.answers.keys() - self.discrete_outputs
        columns = {name: [row[name] for row in answers] for name in names}
        return max((_difference(self.answers[name][: len(answers)], columns[name]) for name in names), default=0.0)

    def write(self, folder: str) -> None:
        """Writes the replay file to the folder of an export.

        Very long answers, such as vectors of long texts, are left out.
        """
        kept = [
            number
            for number in range(len(self))
            if len(json.dumps([column[number] for column in self.answers.values()])) <= _LONGEST_ROW
        ]
        texts, answers = (
            {name: [column[number] for number in kept] for name, column in columns.items()}
            for columns in (self.texts, self.answers)
        )
        margins = [min(self.margins[number], 1.0) for number in kept]
        content: dict[str, Any] = {"texts": texts, "answers": answers, "decisions": self.discrete_outputs}
        content |= {"margins": margins, "tolerance": self.tolerance}
        files.write_text(os.path.join(folder, exports.REPLAY_FILE), json.dumps(content, ensure_ascii=False) + "\n")


def read(folder: str) -> ReferenceAnswers:
    """Reads the replay file of an export.

    Args:
        folder: The folder of one version of an export.

    Raises:
        UserError: If the file is missing or damaged.
    """
    path = os.path.join(folder, exports.REPLAY_FILE)
    if not files.exists(path):
        raise UserError(
            f"{folder} has no replay file ({exports.REPLAY_FILE}). Export the model with official-bert export."
        )
    content = files.read_json_object(path)
    try:
        reference = ReferenceAnswers(
            content["texts"],
            content["answers"],
            tuple(content["decisions"]),
            content["margins"],
            float(content["tolerance"]),
        )
        is_complete = all(
            len(column) == len(reference) for part in (reference.texts, reference.answers) for column in part.values()
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is not a replay file ({error!r}). Export the model again.") from error
    if not is_complete or not reference.texts:
        raise UserError(f"{path} is not a replay file (its columns differ in length). Export the model again.")
    return reference


def compute_answers(run: Run, rows: Sequence[dict[str, Any]]) -> tuple[Answers, Answers]:
    """Returns a model's answers to each row by itself, and its answers to the first rows in one batch.

    Args:
        run: The predictor's `run`.
        rows: The texts by input name.

    Returns:
        JSON values by output name, for each row, and for each of the first `TOGETHER` rows.
    """

    def answer(some_rows: Sequence[dict[str, Any]]) -> Answers:
        return exports.to_rows(run(exports.to_columns({name: [row[name] for row in some_rows] for name in rows[0]})))

    return [answers for row in rows for answers in answer([row])], answer(rows[:TOGETHER]) if rows else []


def check_answers(folder: str, model: Predictor) -> None:
    """Compares a model's answers to the first reference inputs with the stored answers.

    Does nothing for a SavedModel of another tool, which has no replay file.

    Args:
        folder: The folder of one version of an export.
        model: The model in the folder.

    Raises:
        UserError: If the model cannot answer them, or an answer differs by more than rounding.
    """
    path, signature = os.path.join(folder, exports.REPLAY_FILE), model.signatures.get(DEFAULT_SIGNATURE)
    if signature is None or not files.exists(path):
        return
    reference, inputs = read(folder), signature.inputs
    if reference.texts.keys() != inputs.keys():
        raise UserError(
            f"{path} has the texts {list(reference.texts)}, but the model takes {list(inputs)}; export the model again"
        )
    for difference in reference.compare(*compute_answers(model.run, reference.rows()[:TOGETHER]), "the model"):
        raise UserError(f"{path} does not match the model: {difference}. Export the model again.")


def _difference(expected: Any, other: Any) -> float:
    """Returns the largest difference between two numbers a and b in nested lists, relative to 1 + |a|.

    Returns infinity if lists have different lengths or other values, such as strings, are not equal.
    """
    if isinstance(expected, list):
        if not isinstance(other, list) or len(expected) != len(other):
            return math.inf
        return max(map(_difference, expected, other), default=0.0)
    if isinstance(expected, float) and isinstance(other, int | float) and math.isfinite(other):
        return abs(expected - other) / (1 + abs(expected))
    return 0.0 if expected == other else math.inf


def _format_value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text):,} characters)"
