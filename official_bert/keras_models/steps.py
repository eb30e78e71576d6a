"""The steps of Keras' fit and evaluate: dropout that is seeded, and sums that are exact over any number of replicas.

Keras' own steps take the mean of the replicas' means, which is another number where replicas have different numbers of
rows, and its fit fails under a strategy of several workers.

B batch of one replica
"""

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from official_bert.errors import UserError
from official_bert.modeling.dropout import dropout_seed, step_seed
from official_bert.optimization import distribution
from official_bert.tasks.task import NO_LABEL, TaggingLoss


class SeededModel(keras.Model):
    """A functional model whose dropout in training is a function of a seed and the step, so that it can be resumed.

    Built in a strategy's scope it takes the steps that one device would take on the same batches. Rows without a token
    are padding there: they count neither in the loss nor in the metrics.

    Attributes:
        dropout_seed: any number.
    """

    dropout_seed = 0
    train_function: Any
    test_function: Any

    @property
    def is_replicated(self) -> bool:
        """Whether several replicas, or a TPU, take the steps."""
        strategy = self.distribute_strategy
        return (
            strategy.num_replicas_in_sync > 1
            or distribution.is_multi_worker(strategy)
            or distribution.needs_static_shapes(strategy)
        )

    def compile(self, optimizer: Any = "rmsprop", loss: Any = None, **settings: Any) -> None:
        """Says how to train, as keras.Model.compile does."""
        if self.is_replicated and settings.get("metrics"):
            # Keras hands the weights of rows, by which padding is left out, to weighted metrics alone.
            if settings.get("weighted_metrics"):
                raise UserError("over several replicas give either metrics or weighted_metrics; leave one of them out")
            settings = {**settings, "weighted_metrics": settings["metrics"], "metrics": None}
        super().compile(optimizer, loss, **settings)

    def train_step(self, data: Any) -> Any:
        context = tf.distribute.get_replica_context()
        replica = context.replica_id_in_sync_group
        with dropout_seed(step_seed(self.dropout_seed, self.optimizer.iterations, replica)):
            return self._replica_train_step(data) if self.is_replicated else super().train_step(data)

    def test_step(self, data: Any) -> Any:
        if not self.is_replicated:
            return super().test_step(data)
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        self._share_of_loss(x, y, self(x, training=False), weights, training=False)
        return None

    def make_train_function(self, force: bool = False) -> None:
        if not self.is_replicated:
            super().make_train_function(force)
        elif self.train_function is None or force:
            self.train_function = self._on_all_replicas(self.train_step)

    def make_test_function(self, force: bool = False) -> None:
        if not self.is_replicated:
            super().make_test_function(force)
        elif self.test_function is None or force:
            self.test_function = self._on_all_replicas(self.test_step)

    def shared_out(self, batches: tf.data.Dataset) -> Any:
        """Returns batches, of a multiple of the replicas' rows, for fit and evaluate.

        Keras has them shared out among the replicas of one process; this does it where there are several.
        """
        if not distribution.is_multi_worker(self.distribute_strategy):
            return batches
        steps = int(batches.cardinality())
        parts_of_step = 1

        def of_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
            nonlocal parts_of_step
            replicas = context.num_replicas_in_sync
            parts_of_step = replicas // context.num_input_pipelines

            def parts_of(*batch: Any) -> tf.data.Dataset:
                rows = tf.shape(tf.nest.flatten(batch)[0], tf.int64)[0] // replicas

                def part(number: tf.Tensor) -> Any:
                    first = (context.input_pipeline_id * parts_of_step + number) * rows
                    return tf.nest.map_structure(lambda each: each[first : first + rows], batch)

                return tf.data.Dataset.range(parts_of_step).map(part)

            parts = batches.flat_map(parts_of)
            return parts.apply(tf.data.experimental.assert_cardinality(steps * parts_of_step)) if steps > 0 else parts

        shared = self.distribute_strategy.distribute_datasets_from_function(of_worker)
        if parts_of_step > 1:
            shared._cardinality = steps  # Keras takes it for the steps; TensorFlow counts each replica's part
        return shared

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        # Keras' own hook, which looks at a batch: it averages the replicas' ids, which several workers cannot do.
        if iterator is not None and self.is_replicated:
            first = next(batches for _, _, batches in iterator)
            of_replicas = self.distribute_strategy.experimental_local_results
            data_batch = tf.nest.map_structure(lambda each: of_replicas(each)[0], next(first))
            iterator = None
        super()._maybe_symbolic_build(iterator, data_batch)

    def _on_all_replicas(self, step: Any) -> Any:
        """What fit and evaluate call for each batch: takes a step, and returns the metrics."""
        strategy = self.distribute_strategy
        is_static = distribution.needs_static_shapes(strategy)

        def step_and_metrics(data: Any) -> dict[str, Any]:
            strategy.run(step, args=(data,))
            return self.get_metrics_result()

        traced = tf.function(step_and_metrics, reduce_retracing=not is_static, autograph=False)

        def function(batches: Any) -> dict[str, Any]:
            metrics: dict[str, Any] = {}
            for _, data in zip(range(self.steps_per_execution), batches, strict=False):
                metrics = traced(_without_optionals(data))
            if not metrics:
                raise StopIteration
            return metrics

        return function

    def _replica_train_step(self, data: Any) -> None:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = self._share_of_loss(x, y, self(x, training=True), weights, training=True)
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        # Dense, since Keras' optimizers take sparse gradients with repeated ids wrongly.
        dense = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]
        self.optimizer.apply(dense, variables)

    def _share_of_loss(self, x: Any, y: Any, y_pred: Any, weights: Any, training: bool) -> Any:
        """Returns a replica's share of the loss: those of all add up to it. Updates the metrics."""
        context = tf.distribute.get_replica_context()
        replicas = context.num_replicas_in_sync
        mask = x["input_mask"]
        is_row = ops.cast(ops.any(mask > 0, axis=tuple(range(1, len(mask.shape)))), "float32")  # [B]
        rows = context.all_reduce(tf.distribute.ReduceOp.SUM, ops.sum(is_row))  # of all replicas
        # Keras divides by B and by the number of replicas; the loss of tags divides by the number of tags itself.
        shares, count = weights, rows
        if isinstance(self.loss, TaggingLoss):
            tags = ops.sum(ops.cast(ops.not_equal(y, NO_LABEL), "float32"))
            count = context.all_reduce(tf.distribute.ReduceOp.SUM, tags)
        else:
            share = is_row * ops.cast(ops.shape(is_row)[0] * replicas, "float32") / ops.maximum(rows, 1.0)
            shares = _times(share, weights, y)
        if not isinstance(y, dict) and len(y.shape) == len(y_pred.shape) == 1:  # values, which Keras would average
            y, y_pred = y[:, None], y_pred[:, None]
        loss = self.compute_loss(x, y, y_pred, shares, training=training)
        (tracker,) = (metric for metric in self.metrics if metric.name == "loss")
        tracker.update_state(loss * replicas, sample_weight=count / replicas)
        self.compute_metrics(x, y, y_pred, _times(is_row, None, y))
        return loss


def _times(share: Any, weights: Any, y: Any) -> Any:
    """Shares of rows times the weights that a user gave, in the structure of the targets."""
    if isinstance(y, dict):
        by_output = weights if isinstance(weights, dict) else dict.fromkeys(y, weights)
        return {name: _times(share, by_output[name], None) for name in y}
    if weights is None:
        return share
    return share * weights if len(weights.shape) == 1 else share[:, None] * weights  # those of a tagger are [B, 1]


def _without_optionals(data: Any) -> Any:
    """What Keras' adapters hand over where there is nothing, such as no weights, becomes None."""
    return tuple(None if isinstance(part, tf.experimental.Optional) else part for part in data)
