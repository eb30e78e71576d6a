"""Evaluation on held-out records, while training and after it, and the weights that did best."""

import math
import os
from collections.abc import Callable

import keras
import tensorflow as tf

from official_bert import checkpoints
from official_bert.metrics import pretraining_metrics
from official_bert.pretrainer import SUMS, Pretrainer
from official_bert.training_records import RecordFiles


def evaluate(
    pretrainer: Pretrainer, found: RecordFiles, batch_size: int, most_batches: int, stopping: Callable[[], bool]
) -> tuple[dict[str, float], dict[str, float]] | None:
    """Returns the metrics of the weights as they are and the sums behind them; None where a stop came first.

    Args:
        pretrainer: holds the weights.
        found: the records.
        batch_size: records in a batch, over all devices.
        most_batches: after which the rest is left out.
        stopping: whether a stop is asked for; it is asked before each batch.
    """
    data = found.evaluation(batch_size).take(most_batches)
    totals = dict.fromkeys(SUMS, 0.0)
    for batch in pretrainer.strategy.experimental_distribute_dataset(data):
        if stopping():
            return None
        for name, value in pretrainer.evaluate(batch).items():
            totals[name] += value
    return pretraining_metrics(totals), totals


def unigram_accuracy(found: RecordFiles, batch_size: int, most_batches: int) -> float:
    """Returns how often the best constant answer is right: the share of the commonest token among those to predict."""
    counts: dict[int, int] = {}
    for batch in found.evaluation(batch_size).take(most_batches):
        ids = tf.boolean_mask(batch["masked_lm_ids"], batch["masked_lm_weights"] > 0)
        for token in ids.numpy().tolist():
            counts[token] = counts.get(token, 0) + 1
    return max(counts.values(), default=0) / max(sum(counts.values()), 1)


class BestWeights:
    """The weights that had the lowest loss on the held-out records so far, in a folder of their own.

    Their loss and the records' fingerprint are saved with them, so that they are judged by nothing else.

    Args:
        folder: where they are kept.
        model: whose weights.
        description: what stands beside them (see checkpoints.description).
        data: the fingerprint of the held-out records.
    """

    def __init__(self, folder: str, model: keras.Model, description: dict[str, str], data: int) -> None:
        self._folder, self._description = folder, description
        self._loss = keras.Variable(0.0, dtype="float64", trainable=False, name="loss")
        self._data = checkpoints.counter("data", data)
        self._saved = checkpoints.RunCheckpoints(
            folder, {"model": model.variables, "best": [self._loss, self._data]}, keep=1
        )

    def keep_if_better(self, step: int, loss: float) -> bool:
        """Saves the weights of a step if their loss is finite and below that of those kept; says whether it did."""
        if not (math.isfinite(loss) and loss < self._lowest(step)):
            return False
        checkpoints.save_description(self._folder, self._description)
        self._loss.assign(loss)
        self._saved.save(step)
        return True

    def _lowest(self, step: int) -> float:
        path = self._saved.newest()
        # Those of a later step are of a run that was stopped and went on from before: its steps are taken again.
        if path is None or checkpoints.step_of(path) > step:
            return math.inf
        held = {
            name: tf.train.load_variable(path, f"best/{name}/.ATTRIBUTES/VARIABLE_VALUE") for name in ("loss", "data")
        }
        return float(held["loss"]) if int(held["data"]) == int(self._data.numpy()) else math.inf


def best_folder(folder: str) -> str:
    """Returns where a run keeps its best weights."""
    return os.path.join(folder, "best")
