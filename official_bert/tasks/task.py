"""The base class of tasks. A task combines data files, a kind of head, scores and prediction files."""

import abc
from collections.abc import Sequence
from typing import Any

from official_bert.kinds.spec import KindSpec
from official_bert.utils.bad_rows import BadRows

TRAIN, DEV, TEST = "train", "dev", "test"


class Task(abc.ABC):
    """A task: reads its data, scores predictions and writes them. Subclasses are created from the task's options.

    Args:
        name: Name of the task, a value of --task.
        head: The kind of task (such as classification), with its labels and settings.

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

    def __init__(self, name: str, head: KindSpec) -> None:
        self.name, self.head, self.best_metric = name, head, head.best_metric

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
        return self.head.scores(predictions, examples)

    @property
    def score_names(self) -> tuple[str, ...]:
        """Names of the scores that can be `best_metric` (see KindSpec.score_names)."""
        return self.head.score_names

    @property
    def title(self) -> str:
        return self.name

    def notes(self) -> list[str]:
        """Returns notes for the user about how the data were interpreted."""
        return []

    def task_spec(self, max_seq_length: int) -> dict[str, Any]:
        """Returns the contents of task.json (see checkpoints.formats.finetuned.save)."""
        return self.head.task_spec(self.name, max_seq_length)
