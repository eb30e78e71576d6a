"""Vectors of texts, learned from pairs and triplets in named columns of your own data."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from official_bert.errors import UserError
from official_bert.kinds.features import Array
from official_bert.kinds.names import COSINE, RANKING, TRIPLET
from official_bert.kinds.vectors.spec import VectorExample, VectorSpec
from official_bert.tasks.options import EMBEDDINGS, EmbeddingsOptions
from official_bert.tasks.table import check_columns, part_of, rows_in, text_columns, text_problem
from official_bert.tasks.task import DEV, TEST, TRAIN, Task
from official_bert.utils import files, tables
from official_bert.utils.bad_rows import SKIP, BadRows

_OPTIONAL_COLUMNS = "--negative_column or --score_column"


class EmbeddingsTask(Task):
    """The task of the pairs and triplets that the options describe.

    A part whose rows have a score is one of graded pairs. Other parts to evaluate on are for retrieval: each row's
    second text is to be found for its first one among all second texts and negatives.

    Args:
        options: the files, their columns, and what is learned.

    Raises:
        UserError: an option cannot be, or a file lacks what the objective needs.
    """

    head: VectorSpec

    def __init__(self, options: EmbeddingsOptions) -> None:
        self._options = options
        if not options.head_input.is_encoder:
            raise UserError(f"--head={options.head} is for tasks with labels; embeddings have --pooling: leave it out")
        of_training = self._columns(options.train_file)
        objective = options.objective or (COSINE if options.score_column in of_training else RANKING)
        head = VectorSpec(
            pooling=options.pooling, normalize=options.normalize, objective=objective, scale=options.scale,
            margin=options.margin, dimensions=tuple(map(int, options.dimensions)),
            score_range=tuple(map(float, options.score_range)),
            graded=options.score_column in self._columns(options.eval_file) if options.eval_file else None,
        )  # fmt: skip
        super().__init__(EMBEDDINGS, head)
        self._has_negatives = options.negative_column in of_training
        self.eval_splits = (DEV,) if options.eval_file else ()
        self.test_splits = (TEST,) if options.predict_file else ()

    def _columns(self, part: str | None) -> tuple[str, ...]:
        """The columns of a part, by its first row; none where there is no such part."""
        if part is None:
            return ()
        _, values = next(iter(rows_in(self._options, part, BadRows(SKIP, silent=True))), (0, {}))
        return tuple(values)

    @property
    def title(self) -> str:
        return f"Vectors of texts ({self.head.objective})"

    def task_spec(self, max_seq_length: int) -> dict[str, Any]:
        names = ("columns", "text_column", "text_pair_column", "negative_column", "score_column")
        remembered = {name: getattr(self._options, name) for name in names}
        return {**super().task_spec(max_seq_length), "table": remembered}

    def read(self, split: str, bad_rows: BadRows) -> list[VectorExample]:
        options, part = self._options, part_of(self._options, split)
        names = self._names(split)
        has_score = self.head.needs_labels if split == TRAIN else split == DEV and self.head.is_value
        examples: list[VectorExample] = []
        rows = 0
        for line, values in rows_in(options, part, bad_rows):
            rows += 1
            columns = text_columns(names, values)
            wanted = [name for each in columns for name in each]
            with_score = [*wanted, *([options.score_column] if has_score else [])]
            check_columns(options, part, with_score, list(values), bad_rows, _OPTIONAL_COLUMNS)
            score, problem = None, text_problem(values, columns)
            if not problem and has_score:
                score, problem = self._score(values)
            if problem:
                bad_rows.add(part, line, problem)
                continue
            texts = tuple(tables.join_texts(values, each) for each in columns)
            name = values.get("id", line) if split != TRAIN and "id" not in wanted else line
            examples.append(VectorExample(str(name).removeprefix("row "), texts, score))
        if not examples:
            reason = bad_rows.first_reason(part)
            raise UserError(f"{part} has no {'good ' if rows else ''}rows; expected texts below the header{reason}")
        if split == TRAIN and self.head.objective == RANKING and len({each.texts for each in examples}) < 2:
            raise UserError(f"{part} has the same texts in every row; there is nothing to tell apart")
        return examples

    def _names(self, split: str) -> list[str]:
        """The columns of a part's texts."""
        options, objective = self._options, self.head.objective
        if split == TEST:
            return [options.text_column]
        names = [options.text_column, options.text_pair_column]
        if split == TRAIN:
            has_negative = objective == TRIPLET or (objective == RANKING and self._has_negatives)
        else:
            has_negative = not self.head.is_value and options.negative_column in self._columns(options.eval_file)
        return [*names, options.negative_column] if has_negative else names

    def _score(self, values: Mapping[str, Any]) -> tuple[float | None, str]:
        name = self._options.score_column
        value = values.get(name)
        if value in (None, ""):
            return None, f"no score in {name}"
        score, problem = self.head.scale_score(_number(value) if isinstance(value, str) else value)
        return score, problem and f"{problem} (in {name})"

    def write_predictions(
        self, folder: str, split: str, predictions: Array, examples: Sequence[VectorExample]
    ) -> list[str]:
        """Writes vectors_<split>.npy, float32 [E, D], or, of pairs, a table of what was found."""
        if split == TEST:
            path = os.path.join(folder, f"vectors_{split}.npy")
            with files.write_atomically(path) as beside, open(beside, "wb") as file:
                np.save(file, np.asarray(predictions, np.float32))
            return [path]
        rows = ["\t".join(("text", "expected", "prediction"))]
        for each in self.head.outcomes(predictions, examples):
            rows.append("\t".join(" ".join(cell.split()) for cell in (each.text, each.expected, each.predicted)))
        path = os.path.join(folder, f"predictions_{split}.tsv")
        files.write_text(path, "\n".join(rows) + "\n")
        return [path]


def _number(text: str) -> float:
    """Parses a number. Returns NaN for other text."""
    try:
        return float(text)
    except ValueError:
        return float("nan")
