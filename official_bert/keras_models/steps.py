"""StepModel: the training and evaluation steps that Keras' fit and evaluate call, for any number of replicas.

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
from official_bert.keras_models.base_model import BaseTextModel
from official_bert.keras_models.losses_and_metrics import check_labels
from official_bert.optimization import distribution
from official_bert.training.forward_pass import make_forward_pass
from official_bert.training.replica_step import all_reduce_sum


def uses_own_loop(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether Keras' own train and test functions must be replaced.

    This is the case with several replicas, and on TPUs.
    """
    return strategy.num_replicas_in_sync > 1 or distribution.needs_static_shapes(strategy)


class StepModel(BaseTextModel):
    """A Keras model whose steps have the same result on any number of replicas and micro-batches."""

    train_function: Any
    test_function: Any
    _training_step: TrainingStep | None = None
    # Whether metrics are multiplied by the user's sample weights. Padding rows always have weight 0.
    _weighs_metrics = False

    def _learner(self) -> keras.Model:
        """Returns the model that fit trains. It shares the weights of this model, and is usually this model."""
        return self

    @property
    def _pads_rows(self) -> bool:
        """Whether batches are filled up with padding rows.

        They are needed where all replicas and micro-batches must have the same number of rows.
        """
        return self._micro_batches > 1 or uses_own_loop(self.distribute_strategy)

    def make_train_function(self, force: bool = False) -> None:
        if self.train_function is not None and not force:
            return
        strategy = self.distribute_strategy
        is_compiled = bool(self.jit_compile) or distribution.needs_static_shapes(strategy)
        with strategy.scope():
            self._training_step = TrainingStep(
                self._learner(), self.optimizer, self._loss_share(self._micro_batches), seed=self.seed,
                micro_batches=self._micro_batches, rematerialize=self.rematerialize, is_compiled=is_compiled,
            )  # fmt: skip
        if uses_own_loop(strategy):
            self.train_function = self._run_on_replicas(self.train_step)
        else:
            super().make_train_function(force=True)

    def make_test_function(self, force: bool = False) -> None:
        if not uses_own_loop(self.distribute_strategy):
            super().make_test_function(force)
        elif self.test_function is None or force:
            self.test_function = self._run_on_replicas(self.test_step)

    def train_step(self, data: Any) -> dict[str, Any]:
        """Takes a training step on one replica's part of a batch, and returns the metrics and their current values.

        Args:
            data: A tuple of inputs, targets and optional sample weights.
        """
        assert self._training_step is not None
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        logs: dict[str, Any] = {}  # From an overridden compute_metrics. A loop of micro-batches cannot return it.

        def update_metrics(*batch: Any) -> None:
            logs.update(self._update_metrics(*batch))

        on_outputs = self._update_metrics if self._micro_batches > 1 else update_metrics
        loss, count = self._training_step(x, y, weights, on_outputs)
        return {**logs, **self._update_loss(loss, count)}

    def test_step(self, data: Any) -> dict[str, Any]:
        """Evaluates one replica's part of a batch, and returns the metrics and their current values. See train_step."""
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        outputs, loss = make_forward_pass(self._learner())(x, training=False), self._loss_share()
        count = all_reduce_sum(loss.count(x, y))
        share = loss.share(x, y, outputs, weights, count)
        logs = self._update_metrics(x, y, outputs, weights)
        return {**logs, **self._update_loss(all_reduce_sum(share), count)}

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *arguments: Any, **settings: Any) -> Any:
        check_labels(self.loss, self.spec, y, y_pred)
        return super().compute_loss(x, y, y_pred, *arguments, **settings)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        check_labels(self.loss, self.spec, y, y_pred)
        metrics: dict[str, Any] = super().compute_metrics(x, y, y_pred, sample_weight)
        return metrics

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        strategy = self.distribute_strategy
        if iterator is not None and uses_own_loop(strategy):
            # The first batch of one replica. Keras would average the ids of all replicas.
            first = next(batches for _, _, batches in iterator)
            data_batch = tf.nest.map_structure(lambda each: strategy.experimental_local_results(each)[0], next(first))
            iterator = None
        super()._maybe_symbolic_build(iterator, data_batch)

    def _run_on_replicas(self, step: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
        """Returns the function that fit or evaluate calls with an iterator of batches: it runs `step` on all replicas.

        Args:
            step: The step on one replica, which updates the metrics.

        Returns:
            A function that runs steps_per_execution steps and returns the metrics and their current values.
        """
        strategy = self.distribute_strategy

        def step_and_metrics(data: Any) -> dict[str, Any]:
            strategy.run(step, args=(data,))
            return self.get_metrics_result()

        is_static = distribution.needs_static_shapes(strategy)
        traced = tf.function(step_and_metrics, reduce_retracing=not is_static, autograph=False)

        def function(batches: Any) -> dict[str, Any]:
            metrics: dict[str, Any] = {}
            for _, data in zip(range(self.steps_per_execution), batches, strict=False):
                # For a batch without weights, Keras' data adapters pass an Optional.
                metrics = traced(tuple(None if isinstance(part, tf.experimental.Optional) else part for part in data))
            if not metrics:
                raise StopIteration
            return metrics

        return function

    def _loss_share(self, micro_batches: int = 1) -> LossShare:
        def mean_loss(inputs: Any, targets: Any, outputs: Any, weights: Any) -> Any:
            targets, outputs = _add_axis(targets, outputs)
            if self._pads_rows:
                check_losses_per_row(self.loss, targets, outputs)
            return self.compute_loss(inputs, targets, outputs, weights)

        return make_loss_share(self.loss, mean_loss, is_whole=not self._pads_rows, micro_batches=micro_batches)

    def _update_metrics(self, x: Any, y: Any, outputs: Any, weights: Any) -> dict[str, Any]:
        if self._pads_rows:
            weights = multiply_weights(find_real_rows(x), weights if self._weighs_metrics else None, y, outputs)
        elif weights is not None and isinstance(y, dict) and not isinstance(weights, dict):
            weights = dict.fromkeys(y, weights)
        y, outputs = _add_axis(y, outputs)
        logs: dict[str, Any] = self.compute_metrics(x, y, outputs, weights)
        return logs

    def _update_loss(self, loss: Any, count: Any) -> dict[str, Any]:
        """Updates the loss metric, a mean over all examples (or tags) so far. Returns the values of all metrics."""
        # A user's metric of this name comes later.
        tracker = next(metric for metric in self.metrics if metric.name == "loss")
        tracker.update_state(loss, sample_weight=count / self.distribute_strategy.num_replicas_in_sync)
        return self.get_metrics_result()


def _add_axis(y: Any, outputs: Any) -> tuple[Any, Any]:
    """Reshapes targets and outputs from [B] to [B, 1]. Other shapes are returned unchanged.

    Keras would average values of shape [B] before it applies sample weights.
    """
    if not isinstance(y, dict) and len(y.shape) == len(outputs.shape) == 1:
        return y[:, None], outputs[:, None]
    return y, outputs
