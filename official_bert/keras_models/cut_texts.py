"""How many texts of a data set were cut to the model's length: what fit and evaluate say of it when they are done."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


class CutTexts(keras.callbacks.Callback):
    """Counts the texts of a data set that Keras takes, and those of them that are cut.

    A batch is known by its number when it is made, and counted when Keras has taken it: TensorFlow makes batches ahead,
    and some of them nobody takes.

    Args:
        steps_per_epoch: as of fit.

    Attributes:
        texts: how many were taken.
        cut: how many of them were cut.
    """

    def __init__(self, steps_per_epoch: int | None = None) -> None:
        super().__init__()
        self.texts = self.cut = 0
        self._steps_per_epoch = steps_per_epoch
        self._made: dict[int, tuple[int, int]] = {}  # texts and cut ones, by the number of the batch
        self._taken = 0  # batches of this pass over the data
        self._taken_before = 0  # of them those of earlier epochs
        self._in_pass = -1  # batches of a pass; negative where the data do not say it

    def counting(self, data: tf.data.Dataset) -> tf.data.Dataset:
        """Returns the batches of a data set of (texts and cut texts, int64 [2], and the parts of a batch)."""
        self._in_pass = int(data.cardinality())

        def batch_of(number: Any, counted: Any) -> Any:
            counts, *batch = counted
            with tf.control_dependencies([tf.numpy_function(self._make, [number, counts], [])]):
                return tf.nest.map_structure(tf.identity, tuple(batch))

        return data.enumerate().map(batch_of)

    def _make(self, number: Any, counts: Any) -> None:
        self._made[int(number)] = (int(counts[0]), int(counts[1]))

    def _begin_pass(self) -> None:
        self._made.clear()
        self._taken = self._taken_before = 0

    def _take(self, last: int) -> None:
        """Counts the batches up to the one of that number in the epoch."""
        while self._taken <= self._taken_before + last:
            # Of a last step over several batches some may not be there.
            texts, cut = self._made.pop(self._taken, (0, 0))
            self.texts, self.cut, self._taken = self.texts + texts, self.cut + cut, self._taken + 1

    def say(self, note: Callable[[int, int], str | None], *parts: str) -> None:
        """Prints a line on the cut texts, if there are any.

        Args:
            note: see KindSpec.cut_note, of cut texts and texts.
            parts: of what the numbers are; empty ones are left out.
        """
        if line := note(self.cut, self.texts):
            print(": ".join(filter(None, ["note", ", ".join(filter(None, parts)), line])))


class CutInTraining(CutTexts):
    """Those of fit, which goes on in the data where an epoch has steps_per_epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        steps = self._taken - self._taken_before
        is_over = 0 < self._in_pass <= self._taken  # Keras begins anew then
        if self._steps_per_epoch and steps >= self._steps_per_epoch and not is_over:
            self._taken_before = self._taken
        else:
            self._begin_pass()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._take(batch)


class CutInEvaluation(CutTexts):
    """Those of evaluate, and of validation, which begin anew each time."""

    def on_test_begin(self, logs: Any = None) -> None:
        self._begin_pass()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._take(batch)
