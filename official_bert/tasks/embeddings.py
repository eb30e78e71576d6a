"""The task "embeddings": trains text embeddings on pairs or triplets of texts in a table."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from official_bert.errors import UserError
from official_bert.kinds.features import Array
from official_bert.kinds.names import COSINE, RANKING, TRIPLET
from official_bert.kinds.vectors.spec import VectorExample, VectorSpec
from official_bert.tasks.options import EMBEDDINGS, EmbeddingsOptions
from official_bert.tasks.table import get_path, read_examples, read_rows
from official_bert.tasks.task import DEV, TEST, TRAIN, Task, write_table
from official_bert.utils import files
from official_bert.utils.bad_rows import SKIP, BadRowError, BadRows


class EmbeddingsTask(Task):
    """Trains text embeddings on pairs or triplets of texts in a table.

    If the evaluation data have a score column, predicted similarities are compared with these scores. Otherwise,
    evaluation measures retrieval: for the first text of each row, find its second text among all second texts and
    negatives.

    Args:
        options: The files, their columns and the objective.

    Raises:
        UserError: If an option is invalid, or a file lacks a column that the objective needs.
    """

    spec: VectorSpec

    def __init__(self, options: EmbeddingsOptions) -> None:
        self._options = options
        if not options.head_input.is_encoder:
            raise UserError(f"--head={options.head} is only for tasks with labels; remove it. Embeddings use --pooling")
        of_training = self._read_columns(options.train_file)
        objective = options.objective or (COSINE if options.score_column in of_training else RANKING)
        spec = options.make_spec(
            VectorSpec,
            objective=objective,
            dimensions=tuple(map(int, options.dimensions)),
            score_range=tuple(map(float, options.score_range)),
            graded=options.score_column in self._read_columns(options.eval_file) if options.eval_file else None,
        )
        super().__init__(EMBEDDINGS, spec, options)
        self._has_negatives = options.negative_column in of_training

    def _read_columns(self, part: str | None) -> tuple[str, ...]:
        """Returns the column names of a file, from its first row. Returns () if `part`, the path, is None."""
        if part is None:
            return ()
        _, values = next(iter(read_rows(self._options, part, BadRows(SKIP, silent=True))), (0, {}))
        return tuple(values)

    @property
    def title(self) -> str:
        return f"Text embeddings ({self.spec.objective})"

    def task_spec(self, max_seq_length: int) -> dict[str, Any]:
        names = ("columns", "text_column", "text_pair_column", "negative_column", "score_column")
        remembered = {name: getattr(self._options, name) for name in names}
        return {**super().task_spec(max_seq_length), "table": remembered}

    def read(self, split: str, bad_rows: BadRows) -> list[VectorExample]:
        options, column = self._options, self._options.score_column
        has_score = self.spec.needs_labels if split == TRAIN else split == DEV and self.spec.is_value

        def make_example(name: str, texts: list[str], values: dict[str, Any]) -> VectorExample:
            if has_score and values.get(column) in (None, ""):
                raise BadRowError(f"no score in {column}")
            score = self.spec.scale_score(values[column], column) if has_score else None
            return VectorExample(name, tuple(texts), score)

        texts = self._get_text_columns(split)
        examples = read_examples(options, split, bad_rows, texts, column if has_score else None, make_example)
        if split == TRAIN and self.spec.objective == RANKING and len({each.texts for each in examples}) < 2:
            path = get_path(options, split)
            raise UserError(f"{path} has the same texts in every row; expected at least two different rows")
        return examples

    def _get_text_columns(self, split: str) -> list[str]:
        """Returns the names of a split's columns with texts: first text, second text, negative."""
        options, objective = self._options, self.spec.objective
        if split == TEST:
            return [options.text_column]
        names = [options.text_column, options.text_pair_column]
        if split == TRAIN:
            has_negative = objective == TRIPLET or (objective == RANKING and self._has_negatives)
        else:
            has_negative = not self.spec.is_value and options.negative_column in self._read_columns(options.eval_file)
        return [*names, options.negative_column] if has_negative else names

    def write_predictions(
        self, folder: str, split: str, predictions: Array, examples: Sequence[VectorExample]
    ) -> list[str]:
        """Writes predictions to a folder and returns the path of the file.

        For the test split, this is vectors_test.npy with the vectors [examples, D] float32. For other splits, it is
        predictions_<split>.tsv with the text, the expected and the predicted answer of each example.
        """
        if split == TEST:
            path = os.path.join(folder, f"vectors_{split}.npy")
            with files.write_atomically(path) as beside, open(beside, "wb") as file:
                np.save(file, np.asarray(predictions, np.float32))
            return [path]
        outcomes = self.spec.outcomes(predictions, examples)
        rows = [(each.text, each.expected, each.predicted) for each in outcomes]
        return write_table(folder, split, ("text", "expected", "prediction"), rows)
