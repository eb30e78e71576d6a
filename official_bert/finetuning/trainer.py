"""Fine-tuning: the model, its optimizer, one step on every replica, the order of the data, and predictions.

The step is written out, as that of pre-training is: Keras' fit fails under a strategy of several workers, compiles any
number of shapes on a TPU, and averages losses over replicas that have different numbers of rows.

B batch, R rows
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.finetuning import batches
from official_bert.finetuning.initial_model import InitialModel
from official_bert.finetuning.replicas import Predictor, say_compiling, shared_out
from official_bert.finetuning.replicas import predict as predict
from official_bert.finetuning.training_config import TrainingConfig
from official_bert.modeling.dropout import dropout_seed, step_seed
from official_bert.modeling.last_block import without_unread_positions
from official_bert.optimization import distribution
from official_bert.optimization.finetuning_optimizer import bert_optimizer
from official_bert.optimization.freezing import freeze
from official_bert.tasks.task import LABELS, Array, Features, Outputs, TaggingLoss, Task, loss_of, loss_weights_of


class Trainer:
    """A model of a task that learns, some steps at a time, from any step on.

    Args:
        task: what it learns.
        initial_model: the encoder it begins with.
        config: how.
        head: weights of the task's whole model, to begin with in place of a new head.
        loss: a Keras loss in place of the task's own.
        strategy: where; None for that of the configuration.
        is_compiled: whether XLA compiles the steps, each length by itself; None for on a TPU alone.

    Attributes:
        buckets: the lengths that batches are padded to, each of which is compiled once; none where lengths are free.
    """

    def __init__(
        self,
        task: Task,
        initial_model: InitialModel,
        config: TrainingConfig,
        head: list[Array] | None = None,
        loss: Any = None,
        strategy: tf.distribute.Strategy | None = None,
        is_compiled: bool | None = None,
    ) -> None:
        self._config = config
        self._strategy = strategy or distribution.get_strategy(config.strategy)
        if is_compiled is None:
            is_compiled = distribution.needs_static_shapes(self._strategy)
        self._loss, self._loss_weights = loss or loss_of(task.kind), loss_weights_of(task.kind) or {}
        with self._strategy.scope():
            encoder = initial_model.build_encoder(config.random_seed, config.dtype)
            if config.freeze:
                freeze(encoder, config.freeze)
            self.model = task.build_model(encoder, config.random_seed)
            if head is not None:
                self.model.set_weights(head)
            self._call = without_unread_positions(self.model)
            self.optimizer, self.schedule = bert_optimizer(
                self.model, initial_model.config.num_hidden_layers, num_steps=config.num_steps,
                learning_rate=config.learning_rate, warmup_proportion=config.warmup_proportion,
                layer_decay=config.layer_decay,
            )  # fmt: skip
        is_one_replica = self._strategy.num_replicas_in_sync == 1
        self.optimizer.uses_kernel = self.optimizer.clips_rows = is_one_replica and not is_compiled
        self.buckets = batches.length_buckets(config.max_seq_length) if is_compiled else ()
        self._predictor = Predictor(self.model, self._strategy, config.max_seq_length)
        self._step: Any = None

    def train(
        self,
        features: Features,
        first: int,
        last: int,
        on_step: Callable[[int, float], bool],
        row_weights: Array | None = None,
    ) -> tuple[int, float]:
        """Does steps `first` up to, not including, `last`.

        Args:
            features: the rows to learn from.
            first: counted from the run's beginning, as is `last`.
            last: a step.
            on_step: called after each step with how many of the run are done and the mean loss of those that this call
                did; returns whether to stop before `last`.
            row_weights: float32 [R], how much each row weighs in the loss; None for 1.

        Returns:
            How many steps of the run are done, and the mean loss of those that this call did.
        """
        config = self._config
        per_epoch = config.steps_per_epoch
        lengths = batches.row_lengths(features)
        epochs = [
            batches.training_batch_indices(lengths, config.train_batch_size, config.random_seed, epoch)
            for epoch in range(first // per_epoch, (last - 1) // per_epoch + 1)
        ]
        begin = first % per_epoch
        indices = np.concatenate(epochs)[begin : begin + last - first]
        indices = batches.filled_up(indices, self._strategy.num_replicas_in_sync)
        padded = (
            batches.padded_batch(features, rows, config.max_seq_length, row_weights, buckets=self.buckets)
            for rows in indices
        )
        return self.take_steps(padded, first, on_step)

    def take_steps(
        self,
        padded: Iterable[tuple[dict[str, Array], dict[str, Array], Array]],
        first: int,
        on_step: Callable[[int, float], bool],
    ) -> tuple[int, float]:
        """Takes a step on each batch (as `batches.padded_batch` makes them); for the rest see `train`."""
        done, total = first, 0.0
        for batch in padded:
            self._step = self._step or self._traced_step(batch)
            total += float(self._step(*tf.nest.map_structure(tf.constant, batch)))
            done += 1
            if on_step(done, total / (done - first)):
                break
        return done, total / max(done - first, 1)

    def _traced_step(self, batch: Any) -> Any:
        """The step as a graph: one for any length, or, where there are buckets, one for each."""
        signature = None if self.buckets else tf.nest.map_structure(batches.with_any_length, batch)
        return tf.function(self._step_on_all_replicas, input_signature=signature, autograph=False)

    def _step_on_all_replicas(
        self, inputs: dict[str, tf.Tensor], targets: dict[str, tf.Tensor], weights: tf.Tensor
    ) -> tf.Tensor:
        say_compiling("training", inputs, self.buckets)
        batch = shared_out(self._strategy, (inputs, targets, weights))
        loss = self._strategy.run(self.replica_step, args=batch)
        return self._strategy.experimental_local_results(loss)[0]

    def replica_step(
        self, inputs: dict[str, tf.Tensor], targets: dict[str, tf.Tensor], weights: tf.Tensor
    ) -> tf.Tensor:
        """One step as a replica sees it: rows of its own, gradients of all; returns the loss of the whole batch."""
        context = tf.distribute.get_replica_context()

        def all_reduce_sum(value: tf.Tensor) -> tf.Tensor:
            return context.all_reduce(tf.distribute.ReduceOp.SUM, value)

        seed = step_seed(self._config.random_seed, self.optimizer.iterations, context.replica_id_in_sync_group)
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape, dropout_seed(seed):
            outputs = self._call(inputs, training=True)
            loss = self._share_of_loss(targets, outputs, weights, all_reduce_sum)
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return all_reduce_sum(loss)

    def _share_of_loss(
        self, targets: dict[str, tf.Tensor], outputs: Any, weights: tf.Tensor, all_reduce_sum: Any
    ) -> tf.Tensor:
        """A replica's share of the loss: those of all replicas add up to it, however many rows each has.

        The denominator is the rows of a batch (those of a last batch that is not full too), of tags the tokens that
        have one.
        """
        if isinstance(self._loss, TaggingLoss):
            losses, has_tag = self._loss.token_losses(targets[LABELS], outputs)  # [B, S] each
            return tf.reduce_sum(losses) / tf.maximum(all_reduce_sum(tf.reduce_sum(has_tag)), 1.0)
        if not isinstance(self._loss, dict):
            losses = self._loss.call(targets[LABELS], outputs)  # [B]
        else:
            of_outputs = [
                self._loss_weights[name] * loss.call(targets[name], outputs[name]) for name, loss in self._loss.items()
            ]
            losses = tf.add_n(of_outputs)
        return tf.reduce_sum(losses * weights) / self._config.train_batch_size

    def predict(self, features: Features, batch_size: int) -> Outputs:
        """Returns the model's outputs for all rows, in order and without padding, from all replicas."""
        return self._predictor.predict(features, batch_size)

    def learning_rate(self) -> float:
        """Returns the rate of the last step."""
        return float(self.schedule(max(int(self.optimizer.iterations.numpy()) - 1, 0)))
