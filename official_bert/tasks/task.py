"""The base class of tasks. A task combines data files, a KindSpec, scores and prediction files."""

import abc
import os
from collections.abc import Iterable, Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.kinds.spec import KindSpec
from official_bert.tasks.options import RowsOptions, SquadOptions
from official_bert.utils import files
from official_bert.utils.bad_rows import BadRows

TRAIN, DEV, TEST = "train", "dev", "test"


class Task(abc.ABC):
    """A task: reads its data, scores predictions and writes them. Subclasses are created from the task's options.

    Args:
        name: Name of the task, a value of --task.
        spec: The kind of task (such as classification), with its labels and settings.
        options: Options that name the files of the splits. Without a file, a split does not exist. None if the files
            are found in a folder.

    Attributes:
        best_metric: Name of the score that selects the best checkpoint.
        train_split: Split to train on.
        eval_splits: Splits with labels to evaluate on. The best_metric of the first split selects the best checkpoint.
        test_splits: Splits that --do_predict predicts. They may have labels.
        title: Title of the task in the model card.
    """

    train_split: str = TRAIN
    eval_splits: tuple[str, ...] = (DEV,)
    test_splits: tuple[str, ...] = (TEST,)

    def __init__(self, name: str, spec: KindSpec, options: RowsOptions | SquadOptions | None = None) -> None:
        self.name, self.spec = name, spec
        self.best_metric = self.score_names[0]
        if options:
            self.eval_splits = (DEV,) if options.eval_file else ()
            self.test_splits = (TEST,) if options.predict_file else ()

    @abc.abstractmethod
    def read(self, split: str, bad_rows: BadRows) -> list[Any]:
        """Returns the examples of a split, in order.

        Args:
            split: `train_split`, or one of `eval_splits` and `test_splits`.
            bad_rows: Handles rows that cannot be read.

        Raises:
            UserError: If a file is missing or has another format.
        """

    @abc.abstractmethod
    def write_predictions(self, folder: str, split: str, predictions: Any, examples: Sequence[Any]) -> list[str]:
        """Writes the predictions for a split to files in the folder, and returns their paths."""

    def metrics(self, predictions: Any, examples: Sequence[Any]) -> dict[str, float]:
        """Returns scores by name, computed like in the task's official script. The examples must have labels."""
        return self.spec.scores(predictions, examples)

    @property
    def score_names(self) -> tuple[str, ...]:
        """Names of the scores that can be `best_metric` (see KindSpec.score_names)."""
        return self.spec.score_names

    def require_evaluation_data(self, needed_by: str) -> None:
        """Raises a UserError if the task has no evaluation data. `needed_by` is the flag that needs them."""
        if not self.eval_splits:
            raise UserError(f"{needed_by} needs evaluation data, and {self.name} has none; pass --eval_file")

    @property
    def title(self) -> str:
        return self.name

    def notes(self) -> list[str]:
        """Returns notes for the user about how the data were interpreted."""
        return []

    def task_spec(self, max_seq_length: int) -> dict[str, Any]:
        """Returns the contents of task.json (see checkpoints.formats.finetuned.save)."""
        return self.spec.task_spec(self.name, max_seq_length)


def write_table(folder: str, split: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Writes predictions_<split>.tsv and returns [path]. White space in a cell becomes a single space."""
    lines = ["\t".join(" ".join(cell.split()) for cell in row) for row in (header, *rows)]
    path = os.path.join(folder, f"predictions_{split}.tsv")
    files.write_text(path, "\n".join(lines) + "\n")
    return [path]
