"""A model's outputs for rows, computed on all replicas of a strategy, in order and without padding.

B batch, R rows
"""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from official_bert.kinds import rows
from official_bert.kinds.features import Array, Features, Outputs
from official_bert.learning import batches
from official_bert.learning.forward_pass import forward_pass
from official_bert.learning.replica_step import all_gather
from official_bert.learning.replicas import number_of_rows, say_compiling, shared_out, static_lengths
from official_bert.optimization import distribution
from official_bert.utils.progress import Progress

_POSITION = "position"  # among the rows of a batch


class Predictor:
    """A model's outputs for rows, computed on all replicas of a strategy.

    Args:
        model: made in the strategy's scope.
        strategy: where to run; None for where TensorFlow would.
        max_seq_length: the longest row.
    """

    def __init__(self, model: keras.Model, strategy: tf.distribute.Strategy | None, max_seq_length: int) -> None:
        self._max_seq_length = max_seq_length
        self._strategy = strategy or tf.distribute.get_strategy()
        with self._strategy.scope():
            self._call = forward_pass(model)
        self.buckets = static_lengths(self._strategy, max_seq_length)
        self._forwards: dict[int, Any] = {}  # by the inputs' number of axes

    def predict(self, features: Features, batch_size: int) -> Outputs:
        """Returns the outputs for all rows, in order and without padding (see task.Outputs).

        Args:
            features: the rows.
            batch_size: rows at once, over all replicas; rounded up to a multiple of these.
        """
        multiple = self._strategy.num_replicas_in_sync
        rounded = -(-batch_size // multiple) * multiple
        return predict(self._traced_forward, features, rounded, self._max_seq_length, self.buckets)

    def _traced_forward(self, inputs: dict[str, tf.Tensor]) -> Any:
        """The forward pass as a graph: one for each number of axes, or, where there are buckets, for each length."""
        axes = len(inputs["input_mask"].shape)
        if axes not in self._forwards:
            signature = None
            if not self.buckets:
                of_any_size = {name: [None, *each.shape[1:-1], None] for name, each in inputs.items()}
                signature = [{name: tf.TensorSpec(shape, tf.int32) for name, shape in of_any_size.items()}]
            self._forwards[axes] = tf.function(
                self._forward_on_all_replicas, input_signature=signature, autograph=False
            )
        return self._forwards[axes](inputs)

    def _forward_on_all_replicas(self, inputs: dict[str, tf.Tensor]) -> Any:
        strategy = self._strategy
        say_compiling("prediction", inputs, self.buckets)
        if strategy.num_replicas_in_sync == 1 and not self.buckets:
            return self._call(inputs, training=False)
        of_workers = distribution.is_multi_worker(strategy)
        batch = {**inputs, _POSITION: tf.range(number_of_rows(inputs["input_ids"]))}

        def of_replica(part: dict[str, tf.Tensor]) -> Any:
            position = part.pop(_POSITION)
            answers = position, self._call(part, training=False)
            if not of_workers:
                return answers
            return tf.nest.map_structure(all_gather, answers)

        answers = strategy.run(of_replica, args=(shared_out(strategy, batch),))

        def of_all(values: Any) -> tf.Tensor:
            parts = strategy.experimental_local_results(values)
            return parts[0] if of_workers else tf.concat(parts, axis=0)

        position, outputs = tf.nest.map_structure(of_all, answers)
        order = tf.argsort(position)
        return tf.nest.map_structure(lambda values: tf.gather(values, order), outputs)


def predict(
    forward: Any, features: Features, batch_size: int, max_seq_length: int, buckets: tuple[int, ...] = ()
) -> Outputs:
    """Returns a model's outputs for all rows (see task.Outputs).

    Args:
        forward: inputs -> outputs.
        features: the rows.
        batch_size: rows at once; they are taken in the order of their lengths.
        max_seq_length: the longest row.
        buckets: the lengths to pad to (see `batches.padded_inputs`).
    """
    progress = Progress("predicting", len(features), "rows")

    def compute() -> Iterator[tuple[Array, Any]]:
        indices = batches.prediction_batch_indices(rows.row_lengths(features), batch_size)
        for number, batch in enumerate(indices, start=1):
            inputs = rows.padded_inputs(features, batch, max_seq_length, buckets=buckets)
            yield batch, forward({name: tf.constant(each) for name, each in inputs.items()})
            progress.update(min(number * batch_size, len(features)))

    return rows.collect_outputs(features, compute())
