"""The training and evaluation steps that Keras' fit and evaluate call, for any number of replicas.

They use finetuning.training_step and update Keras metrics. Keras' own steps average the means of the replicas, which is
wrong if replicas have different numbers of examples.

B rows of one replica
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from official_bert.finetuning.loss_share import (
    LossShare,
    check_losses_per_row,
    find_real_rows,
    make_loss_share,
    multiply_weights,
)
from official_bert.finetuning.training_step import TrainingStep
from official_bert.optimization import distribution
from official_bert.training.forward_pass import make_forward_pass
from official_bert.training.replica_step import all_reduce_sum


def uses_own_loop(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether Keras' own train and test functions must be replaced.

    This is the case with several replicas, and on TPUs.
    """
    return strategy.num_replicas_in_sync > 1 or distribution.needs_static_shapes(strategy)


class KerasSteps:
    """The training and evaluation step of a compiled model.

    Args:
        model: The compiled Keras model, whose metrics are updated.
        learner: The model to train, which shares the weights of `model`.
        seed: Random seed for dropout.
        micro_batches: Number of micro-batches per replica (gradient accumulation).
        rematerialize: Whether to recompute encoder blocks in the backward pass.
        weighs_metrics: Whether the metrics are multiplied by the user's sample weights. Padding rows always have
            weight 0.
    """

    def __init__(
        self,
        model: keras.Model,
        learner: keras.Model,
        *,
        seed: int,
        micro_batches: int,
        rematerialize: bool,
        weighs_metrics: bool,
    ) -> None:
        strategy = model.distribute_strategy
        self._model, self._learner, self._strategy = model, learner, strategy
        self._is_loop, self._weighs_metrics = micro_batches > 1, weighs_metrics
        self._pads_rows = pads_rows(strategy, micro_batches)
        self._seed, self._micro_batches, self._rematerialize = seed, micro_batches, rematerialize
        self._training_step: TrainingStep | None = None

    def build_training_step(self) -> None:
        """Builds the training step for the current optimizer of the model."""
        model = self._model
        is_compiled = bool(model.jit_compile) or distribution.needs_static_shapes(self._strategy)
        with self._strategy.scope():
            self._training_step = TrainingStep(
                self._learner, model.optimizer, self._loss_share(self._micro_batches), seed=self._seed,
                micro_batches=self._micro_batches, rematerialize=self._rematerialize, is_compiled=is_compiled,
            )  # fmt: skip

    def train(self, data: Any) -> dict[str, Any]:
        """Takes a training step on one replica's part of a batch, and returns the metrics and their current values.

        Args:
            data: A tuple of inputs, targets and optional sample weights.
        """
        assert self._training_step is not None
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        logs: dict[str, Any] = {}  # From an overridden compute_metrics. A loop of micro-batches cannot return it.

        def update_metrics(*batch: Any) -> None:
            logs.update(self._update_metrics(*batch))

        on_outputs = self._update_metrics if self._is_loop else update_metrics
        loss, count = self._training_step(x, y, weights, on_outputs)
        return {**logs, **self._update_loss(loss, count)}

    def test(self, data: Any) -> dict[str, Any]:
        """Evaluates one replica's part of a batch, and returns the metrics and their current values.

        Args:
            data: A tuple of inputs, targets and optional sample weights.
        """
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        outputs, loss = make_forward_pass(self._learner)(x, training=False), self._loss_share()
        count = all_reduce_sum(loss.count(x, y))
        share = loss.share(x, y, outputs, weights, count)
        logs = self._update_metrics(x, y, outputs, weights)
        return {**logs, **self._update_loss(all_reduce_sum(share), count)}

    def run_on_replicas(self, step: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
        """Returns the function that fit or evaluate calls with an iterator of batches: it runs `step` on all replicas.

        Args:
            step: The step on one replica, which updates the metrics.

        Returns:
            A function that runs steps_per_execution steps and returns the metrics and their current values.
        """
        strategy, model = self._strategy, self._model

        def step_and_metrics(data: Any) -> dict[str, Any]:
            strategy.run(step, args=(data,))
            return model.get_metrics_result()

        is_static = distribution.needs_static_shapes(strategy)
        traced = tf.function(step_and_metrics, reduce_retracing=not is_static, autograph=False)

        def function(batches: Any) -> dict[str, Any]:
            metrics: dict[str, Any] = {}
            for _, data in zip(range(model.steps_per_execution), batches, strict=False):
                # For a batch without weights, Keras' data adapters pass an Optional.
                metrics = traced(tuple(None if isinstance(part, tf.experimental.Optional) else part for part in data))
            if not metrics:
                raise StopIteration
            return metrics

        return function

    def _loss_share(self, micro_batches: int = 1) -> LossShare:
        model = self._model

        def mean_loss(inputs: Any, targets: Any, outputs: Any, weights: Any) -> Any:
            targets, outputs = _add_axis(targets, outputs)
            if self._pads_rows:
                check_losses_per_row(model.loss, targets, outputs)
            return model.compute_loss(inputs, targets, outputs, weights)

        return make_loss_share(model.loss, mean_loss, is_whole=not self._pads_rows, micro_batches=micro_batches)

    def _update_metrics(self, x: Any, y: Any, outputs: Any, weights: Any) -> dict[str, Any]:
        if self._pads_rows:
            weights = multiply_weights(find_real_rows(x), weights if self._weighs_metrics else None, y, outputs)
        elif weights is not None and isinstance(y, dict) and not isinstance(weights, dict):
            weights = dict.fromkeys(y, weights)
        y, outputs = _add_axis(y, outputs)
        logs: dict[str, Any] = self._model.compute_metrics(x, y, outputs, weights)
        return logs

    def _update_loss(self, loss: Any, count: Any) -> dict[str, Any]:
        """Updates the loss metric, a mean over all examples (or tags) so far. Returns the values of all metrics."""
        tracker = next(
            metric for metric in self._model.metrics if metric.name == "loss"
        )  # A user's metric of this name comes later.
        tracker.update_state(loss, sample_weight=count / self._strategy.num_replicas_in_sync)
        return self._model.get_metrics_result()


def pads_rows(strategy: tf.distribute.Strategy, micro_batches: int) -> bool:
    """Returns whether batches are filled up with padding rows.

    They are needed where all replicas and micro-batches must have the same number of rows.
    """
    return micro_batches > 1 or uses_own_loop(strategy)


def _add_axis(y: Any, outputs: Any) -> tuple[Any, Any]:
    """Reshapes targets and outputs from [B] to [B, 1]. Other shapes are returned unchanged.

    Keras would average values of shape [B] before it applies sample weights.
    """
    if not isinstance(y, dict) and len(y.shape) == len(outputs.shape) == 1:
        return y[:, None], outputs[:, None]
    return y, outputs


def first_batch_of_replica(strategy: tf.distribute.Strategy, iterator: Any) -> Any:
    """Returns the first batch of one replica.

    Keras uses it to build the model, and would average the ids of all replicas.
    """
    first = next(batches for _, _, batches in iterator)
    return tf.nest.map_structure(lambda each: strategy.experimental_local_results(each)[0], next(first))
