"""A task: its data, what its head learns of them, and the files of its predictions."""

import abc
from collections.abc import Sequence
from typing import Any

from official_bert.kinds.spec import KindSpec
from official_bert.utils.bad_rows import BadRows

TRAIN, DEV, TEST = "train", "dev", "test"


class Task(abc.ABC):
    """How to read, score and write a task; a subclass a task, made from the task's options.

    Args:
        name: as --task names it.
        head: what is learned.

    Attributes:
        best_metric: Name of the score that selects the best checkpoint.
        train_split: the part to train on.
        eval_splits: the parts with labels to evaluate on; the first one's best_metric decides.
        test_splits: the parts without labels to predict.
        title: what the model card calls it.
    """

    train_split: str = TRAIN
    eval_splits: tuple[str, ...] = (DEV,)
    test_splits: tuple[str, ...] = (TEST,)

    def __init__(self, name: str, head: KindSpec) -> None:
        self.name, self.head, self.best_metric = name, head, head.best_metric

    @abc.abstractmethod
    def read(self, split: str, bad_rows: BadRows) -> list[Any]:
        """Returns the examples of a part, in its order.

        Args:
            split: one of `train_split`, `eval_splits` and `test_splits`.
            bad_rows: gets the rows that cannot be read, with file and line.

        Raises:
            UserError: a file is missing or has another layout.
        """

    @abc.abstractmethod
    def write_predictions(self, folder: str, split: str, predictions: Any, examples: Sequence[Any]) -> list[str]:
        """Writes predictions for people and leaderboards into the folder, and returns the files' paths."""

    def metrics(self, predictions: Any, examples: Sequence[Any]) -> dict[str, float]:
        """Returns scores by name, as the official script computes them; the examples must have labels."""
        return self.head.scores(predictions, examples)

    @property
    def score_names(self) -> tuple[str, ...]:
        """The names of the scores that can be `best_metric` (see KindSpec.score_names)."""
        return self.head.score_names

    @property
    def title(self) -> str:
        return self.name

    def notes(self) -> list[str]:
        """Returns what the user should know of how the task is understood."""
        return []

    def task_spec(self, max_seq_length: int) -> dict[str, Any]:
        """Returns what task.json holds (see checkpoints.finetuned.save)."""
        return self.head.task_spec(self.name, max_seq_length)
