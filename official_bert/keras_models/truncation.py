"""Keras callbacks that count the truncated texts of a tf.data.Dataset for the notes of fit and evaluate."""

from typing import Any

import keras
import tensorflow as tf

from official_bert.kinds.spec import KindSpec


class TruncationCounter(keras.callbacks.Callback):
    """Counts the texts that Keras consumed, and how many of them were truncated.

    TensorFlow prefetches batches that Keras may never consume. The counts of each batch are therefore stored when it is
    produced, and added when Keras reports the end of that batch.

    Args:
        steps_per_epoch: The steps_per_epoch of fit. None means that an epoch is a pass over the data.

    Attributes:
        texts: Number of consumed texts.
        truncated: Number of consumed texts that were truncated.
    """

    def __init__(self, steps_per_epoch: int | None = None) -> None:
        super().__init__()
        self.texts = self.truncated = 0
        self._steps_per_epoch = steps_per_epoch
        self._made: dict[int, tuple[int, int]] = {}  # (texts, truncated texts) by batch index
        self._taken = 0  # batches consumed in this pass over the data
        self._taken_before = 0  # of these, batches of earlier epochs
        self._cardinality = -1  # batches per pass; negative if unknown

    def count(self, data: tf.data.Dataset) -> tf.data.Dataset:
        """Removes the counts from the elements of a data set, stores them, and returns a data set of the batches.

        Args:
            data: A data set of tuples (counts, *batch), where counts, int64 [2], are the numbers of texts and of
                truncated texts.
        """
        self._cardinality = int(data.cardinality())

        def store_counts(number: Any, element: Any) -> Any:
            counts, *batch = element
            with tf.control_dependencies([tf.numpy_function(self._store, [number, counts], [])]):
                return tf.nest.map_structure(tf.identity, tuple(batch))

        return data.enumerate().map(store_counts)

    def _store(self, number: Any, counts: Any) -> None:
        self._made[int(number)] = (int(counts[0]), int(counts[1]))

    def _begin_pass(self) -> None:
        self._made.clear()
        self._taken = self._taken_before = 0

    def _take(self, last: int) -> None:
        """Adds the counts of all batches up to index `last` of the current epoch."""
        while self._taken <= self._taken_before + last:
            # With steps_per_execution, the last step may cover fewer batches.
            texts, truncated = self._made.pop(self._taken, (0, 0))
            self.texts, self.truncated, self._taken = self.texts + texts, self.truncated + truncated, self._taken + 1

    def print_note(self, head: KindSpec, max_seq_length: int, *parts: str) -> None:
        """Prints how many of the consumed texts were truncated, if any were.

        Args:
            head: The spec of the task, which formulates the note.
            max_seq_length: Maximum number of tokens in a sequence.
            parts: Prefixes of the note, such as "validation". Empty strings are ignored.
        """
        if line := head.describe_truncation(self.truncated, self.texts, max_seq_length):
            print(": ".join(filter(None, ["note", ", ".join(filter(None, parts)), line])))


class TrainingTruncation(TruncationCounter):
    """Counts the truncated texts of fit.

    With steps_per_epoch, an epoch continues in the data where the previous one ended.
    """

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        steps = self._taken - self._taken_before
        is_over = 0 < self._cardinality <= self._taken  # Keras then restarts the data set.
        if self._steps_per_epoch and steps >= self._steps_per_epoch and not is_over:
            self._taken_before = self._taken
        else:
            self._begin_pass()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._take(batch)


class EvaluationTruncation(TruncationCounter):
    """Counts the truncated texts of evaluate and of validation, which always start at the beginning of the data."""

    def on_test_begin(self, logs: Any = None) -> None:
        self._begin_pass()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._take(batch)
