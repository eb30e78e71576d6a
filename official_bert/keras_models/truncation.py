"""How many texts of a data set were truncated to the model's length, which fit and evaluate report at the end."""

from typing import Any

import keras
import tensorflow as tf

from official_bert.kinds.spec import KindSpec


class TruncationCounter(keras.callbacks.Callback):
    """Counts the texts of a data set that Keras takes, and those of them that are truncated.

    A batch is known by its number when it is made, and counted when Keras has taken it: TensorFlow makes batches ahead,
    and Keras does not take all of them.

    Args:
        steps_per_epoch: The argument of fit.

    Attributes:
        texts: Number of texts that were taken.
        truncated: Number of them that were truncated.
    """

    def __init__(self, steps_per_epoch: int | None = None) -> None:
        super().__init__()
        self.texts = self.truncated = 0
        self._steps_per_epoch = steps_per_epoch
        self._made: dict[int, tuple[int, int]] = {}  # texts and truncated ones, by the number of the batch
        self._taken = 0  # batches of this pass over the data
        self._taken_before = 0  # those of earlier epochs among them
        self._cardinality = -1  # batches of a pass; negative if it is not known

    def count(self, data: tf.data.Dataset) -> tf.data.Dataset:
        """Returns the batches of a data set of (texts and truncated texts, int64 [2], and the parts of a batch)."""
        self._cardinality = int(data.cardinality())

        def batch_of(number: Any, counted: Any) -> Any:
            counts, *batch = counted
            with tf.control_dependencies([tf.numpy_function(self._store, [number, counts], [])]):
                return tf.nest.map_structure(tf.identity, tuple(batch))

        return data.enumerate().map(batch_of)

    def _store(self, number: Any, counts: Any) -> None:
        self._made[int(number)] = (int(counts[0]), int(counts[1]))

    def _begin_pass(self) -> None:
        self._made.clear()
        self._taken = self._taken_before = 0

    def _take(self, last: int) -> None:
        """Counts the batches up to the one of that number in the epoch."""
        while self._taken <= self._taken_before + last:
            # The last step over several batches may have fewer.
            texts, truncated = self._made.pop(self._taken, (0, 0))
            self.texts, self.truncated, self._taken = self.texts + texts, self.truncated + truncated, self._taken + 1

    def print_note(self, head: KindSpec, max_seq_length: int, *parts: str) -> None:
        """Prints a line about the truncated texts, if there are any.

        Args:
            head: Words the line.
            max_seq_length: The longest sequence in tokens.
            parts: What was counted, for the beginning of the line. Empty strings are left out.
        """
        if line := head.cut_note(self.truncated, self.texts, max_seq_length):
            print(": ".join(filter(None, ["note", ", ".join(filter(None, parts)), line])))


class TrainingTruncation(TruncationCounter):
    """Counts the texts of fit, which continues a data set where an epoch has steps_per_epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        steps = self._taken - self._taken_before
        is_over = 0 < self._cardinality <= self._taken  # Keras starts from the beginning then
        if self._steps_per_epoch and steps >= self._steps_per_epoch and not is_over:
            self._taken_before = self._taken
        else:
            self._begin_pass()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._take(batch)


class EvaluationTruncation(TruncationCounter):
    """Counts the texts of evaluate and of validation, which start from the beginning each time."""

    def on_test_begin(self, logs: Any = None) -> None:
        self._begin_pass()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._take(batch)
