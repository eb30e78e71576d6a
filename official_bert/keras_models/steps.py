"""The steps of Keras' fit and evaluate: those of learning.training_step, with metrics, on any number of replicas.

Where several replicas take them, Keras' own functions take the mean of the replicas' means, which is another number
where replicas have different numbers of rows, and fail under a strategy of several workers.

B rows of one replica
"""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from official_bert.learning.forward_pass import forward_pass
from official_bert.learning.loss_share import LossShare, are_rows, check_losses_of_rows, share_of, times_weights
from official_bert.learning.replica_step import all_reduce_sum
from official_bert.learning.training_step import TrainingStep
from official_bert.optimization import distribution


class SteppedModel(keras.Model):
    """A functional model whose fit takes the steps of the command, and whose figures are exact over replicas.

    Attributes:
        seed: of dropout.
        micro_batches: into how many parts a replica's rows are cut.
        rematerialize: whether encoder blocks are computed again in the backward pass.
        weighs_metrics: whether metrics over padded rows are weighed as a user's examples are.
    """

    seed: int
    micro_batches, rematerialize, weighs_metrics = 1, False, False
    train_function: Any
    test_function: Any

    def _learner(self) -> keras.Model:
        """What learns: this model, or one on it that shares its weights."""
        return self

    @property
    def _pads_rows(self) -> bool:
        """Whether a batch may have rows that are padding."""
        return self.micro_batches > 1 or takes_own_steps(self.distribute_strategy)

    def _scope(self) -> Any:
        strategy = self.distribute_strategy
        return strategy.scope() if strategy is not None else contextlib.nullcontext()

    @property
    def _is_compiled(self) -> bool:
        """Whether XLA compiles the step."""
        return bool(self.jit_compile) or distribution.needs_static_shapes(self.distribute_strategy)

    def _loss_share(self, micro_batches: int = 1) -> LossShare:
        def mean_loss(inputs: Any, targets: Any, outputs: Any, weights: Any) -> Any:
            targets, outputs = _with_axis(targets, outputs)
            if self._pads_rows:
                check_losses_of_rows(self.loss, targets, outputs)
            return self.compute_loss(inputs, targets, outputs, weights)

        return share_of(self.loss, mean_loss, is_whole=not self._pads_rows, micro_batches=micro_batches)

    def make_train_function(self, force: bool = False) -> None:
        if self.train_function is not None and not force:
            return
        with self._scope():
            self._step = TrainingStep(
                self._learner(), self.optimizer, self._loss_share(self.micro_batches), seed=self.seed,
                micro_batches=self.micro_batches, rematerialize=self.rematerialize, is_compiled=self._is_compiled,
            )  # fmt: skip
        if takes_own_steps(self.distribute_strategy):
            self.train_function = _on_all_replicas(self, self.train_step)
        else:
            super().make_train_function(force=True)

    def make_test_function(self, force: bool = False) -> None:
        if not takes_own_steps(self.distribute_strategy):
            super().make_test_function(force)
        elif self.test_function is None or force:
            self.test_function = _on_all_replicas(self, self.test_step)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        logs: dict[str, Any] = {}  # what a user's own compute_metrics adds; a loop of micro-batches keeps it to itself
        is_loop = self.micro_batches > 1
        loss, count = self._step(
            x, y, weights, self._update_metrics if is_loop else lambda *each: logs.update(self._update_metrics(*each))
        )
        return {**logs, **self._logs_with(loss, count)}

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        outputs, loss = forward_pass(self._learner())(x, training=False), self._loss_share()
        count = all_reduce_sum(loss.count(x, y))
        share = loss.share(x, y, outputs, weights, count)
        logs = self._update_metrics(x, y, outputs, weights)
        return {**logs, **self._logs_with(all_reduce_sum(share), count)}

    def _update_metrics(self, x: Any, y: Any, outputs: Any, weights: Any) -> dict[str, Any]:
        if self._pads_rows:
            weights = times_weights(are_rows(x), weights if self.weighs_metrics else None, y, outputs)
        elif weights is not None and isinstance(y, dict) and not isinstance(weights, dict):
            weights = dict.fromkeys(y, weights)
        y, outputs = _with_axis(y, outputs)
        logs: dict[str, Any] = self.compute_metrics(x, y, outputs, weights)
        return logs

    def _logs_with(self, loss: Any, count: Any) -> dict[str, Any]:
        """The metrics, with the loss as the mean over all that the batches' losses are means over."""
        tracker = next(metric for metric in self.metrics if metric.name == "loss")  # a user's own come after it
        tracker.update_state(loss, sample_weight=count / self.distribute_strategy.num_replicas_in_sync)
        return self.get_metrics_result()

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        # Keras' own hook, which looks at a batch: it averages the replicas' ids, which several workers cannot do.
        if iterator is not None and takes_own_steps(self.distribute_strategy):
            first = next(batches for _, _, batches in iterator)
            of_replicas = self.distribute_strategy.experimental_local_results
            data_batch = tf.nest.map_structure(lambda each: of_replicas(each)[0], next(first))
            iterator = None
        super()._maybe_symbolic_build(iterator, data_batch)


def _with_axis(y: Any, outputs: Any) -> tuple[Any, Any]:
    """Values, [B], as [B, 1], since Keras would average them before it weighs rows; others as they are."""
    if not isinstance(y, dict) and len(y.shape) == len(outputs.shape) == 1:
        return y[:, None], outputs[:, None]
    return y, outputs


def takes_own_steps(strategy: tf.distribute.Strategy) -> bool:
    """Whether Keras' own functions would not do."""
    return (
        strategy.num_replicas_in_sync > 1
        or distribution.is_multi_worker(strategy)
        or distribution.needs_static_shapes(strategy)
    )


def _on_all_replicas(model: keras.Model, step: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    """Returns what fit and evaluate call: takes steps on batches, and returns the metrics.

    Args:
        model: in fit or evaluate.
        step: of a replica, which updates the metrics.
    """
    strategy = model.distribute_strategy

    def step_and_metrics(data: Any) -> dict[str, Any]:
        strategy.run(step, args=(data,))
        return model.get_metrics_result()

    is_static = distribution.needs_static_shapes(strategy)
    traced = tf.function(step_and_metrics, reduce_retracing=not is_static, autograph=False)

    def function(batches: Any) -> dict[str, Any]:
        metrics: dict[str, Any] = {}
        for _, data in zip(range(model.steps_per_execution), batches, strict=False):
            metrics = traced(_without_optionals(data))
        if not metrics:
            raise StopIteration
        return metrics

    return function


def _without_optionals(data: Any) -> Any:
    """What Keras' adapters hand over where there is nothing, such as no weights, becomes None."""
    return tuple(None if isinstance(part, tf.experimental.Optional) else part for part in data)


def shared_out(strategy: tf.distribute.Strategy, batches: tf.data.Dataset) -> Any:
    """Returns batches, of a multiple of the replicas' rows, for fit and evaluate.

    Keras has them shared out among the replicas of one process; this does it where there are several.
    """
    if not distribution.is_multi_worker(strategy):
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

    shared = strategy.distribute_datasets_from_function(of_worker)
    if parts_of_step > 1:
        shared._cardinality = steps  # Keras takes it for the steps; TensorFlow counts each replica's part
    return shared
