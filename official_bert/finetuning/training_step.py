"""One replica's part of a fine-tuning step: forward pass, share of the loss, gradients, their sum, clipping, update.

B rows of one replica
"""

import warnings
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from official_bert.finetuning.loss_share import BatchLossShare, LossShare
from official_bert.modeling.dropout import dropout_seed, step_seed
from official_bert.optimization.all_reduce_clip import AllReduceClipMixin
from official_bert.optimization.freezing import check_trainable
from official_bert.training.forward_pass import make_forward_pass
from official_bert.training.replica_step import (
    accumulate_gradients,
    all_reduce_sum,
    apply_gradients,
    split_micro_batches,
)
from official_bert.training.replicas import count_rows


class TrainingStep:
    """The training step of a model with a task head, used by the command and by Keras' `fit`.

    Create it within the scope of the distribution strategy.

    Args:
        model: The model to train.
        optimizer: The optimizer. If it has the AllReduceClipMixin, gradients are summed over replicas, clipped once and
            applied. Other Keras optimizers apply gradients in their own way.
        loss: Computes a replica's share of the loss.
        seed: Random seed of dropout.
        micro_batches: Number of micro-batches that a replica's rows are split into. Their gradients are added up.
        rematerialize: Whether the backward pass computes encoder blocks again, to save memory.
        is_compiled: Whether XLA compiles the step. If so, the optimizer does not use kernels of its own.

    Raises:
        UserError: If all weights are frozen.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: Any,
        loss: LossShare,
        *,
        seed: int,
        micro_batches: int = 1,
        rematerialize: bool = False,
        is_compiled: bool = False,
    ) -> None:
        check_trainable(model)
        self.model, self.optimizer, self._loss, self._seed = model, optimizer, loss, seed
        self._micro_batches = micro_batches
        self._call = make_forward_pass(model, rematerialize)
        self._is_ours = isinstance(optimizer, AllReduceClipMixin)
        if self._is_ours:
            optimizer.build(model.trainable_variables)  # has no effect if it is built already
            is_alone = tf.distribute.get_strategy().num_replicas_in_sync == 1
            optimizer.clips_rows = is_alone and not is_compiled
            optimizer.uses_kernel = is_alone and not is_compiled

    def __call__(
        self,
        inputs: dict[str, tf.Tensor],
        targets: Any,
        weights: Any = None,
        on_outputs: Callable[[Any, Any, Any, Any], Any] | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Computes the gradients for this replica's rows, sums them over all replicas and updates the weights.

        Args:
            inputs: Inputs of the model, by name [B, ...].
            targets: Targets of the rows, a tensor or tensors by output.
            weights: Weights of the rows (see `LossShare.share`), or None.
            on_outputs: Function (inputs, targets, outputs, weights) that is called for each micro-batch, to update
                metrics.

        Returns:
            The loss of the whole batch on all replicas, and the number that its mean divides by (see
            `LossShare.count`).
        """
        count = all_reduce_sum(self._loss.count(inputs, targets))
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        variables = self.model.trainable_variables
        compute_share: Callable[..., tf.Tensor] = self._loss.share

        def run_forward(micro_batch_index: Any, inputs: Any) -> Any:
            with dropout_seed(step_seed(self._seed, self.optimizer.iterations, replica, micro_batch_index)):
                return self._call(inputs, training=True)

        def compute_share_and_gradients(micro_batch_index: Any, part: Any) -> tuple[dict[str, tf.Tensor], list[Any]]:
            inputs, targets, weights = (*part, None)[:3]
            with tf.GradientTape() as tape:
                outputs = run_forward(micro_batch_index, inputs)
                share = compute_share(inputs, targets, outputs, weights, count)
                scaled = self.optimizer.scale_loss(share)
            if on_outputs:
                on_outputs(inputs, targets, outputs, weights)
            # Gradients of micro-batches are added up, so unused variables get zero gradients.
            # In a single batch, unused variables get None and are not updated.
            unconnected = tf.UnconnectedGradients.NONE if self._micro_batches == 1 else tf.UnconnectedGradients.ZERO
            return {"loss": share}, tape.gradient(scaled, variables, unconnected_gradients=unconnected)

        batch = (inputs, targets) if weights is None else (inputs, targets, weights)
        if self._micro_batches == 1:
            sums, gradients = compute_share_and_gradients(0, batch)
        else:
            batch = _pad_rows(batch, self._micro_batches)
            share = None
            if isinstance(self._loss, BatchLossShare):
                # First compute all outputs without a tape, and the gradient of the loss with respect to them. Then
                # compute each micro-batch again and differentiate its outputs times these gradients.
                share, batch = self._differentiate_outputs(run_forward, batch[0], batch[1], count)
                compute_share = _sum_products
            parts = split_micro_batches(batch, self._micro_batches)
            sums, gradients = accumulate_gradients(
                compute_share_and_gradients, parts, self._micro_batches, variables, ["loss"]
            )
            sums = sums if share is None else {"loss": share}
        loss = all_reduce_sum(sums["loss"])
        self._update(gradients, loss)
        return loss, count

    def _differentiate_outputs(
        self, run_forward: Callable[[Any, Any], Any], inputs: Any, targets: Any, count: tf.Tensor
    ) -> tuple[tf.Tensor, tuple[Any, tf.Tensor]]:
        """Computes the loss and its gradient with respect to the outputs of all micro-batches.

        Args:
            run_forward: Function (index of the micro-batch, its inputs) that runs the model.
            inputs: Inputs of this replica's rows.
            targets: Targets of these rows.
            count: The sum of `LossShare.count` over all replicas.

        Returns:
            This replica's share of the loss, and a batch that has the gradients of the outputs in place of targets.
        """
        assert isinstance(self._loss, BatchLossShare)
        parts = split_micro_batches(inputs, self._micro_batches)

        def run_micro_batch(index: tf.Tensor) -> tf.Tensor:
            return run_forward(index, tf.nest.map_structure(lambda value: value[index], parts))

        outputs = tf.map_fn(
            run_micro_batch, tf.range(self._micro_batches), fn_output_signature=tf.float32, parallel_iterations=1
        )  # [M, B, N, D]
        all_outputs = tf.reshape(outputs, (-1, *outputs.shape[2:]))
        share, gradient = self._loss.share_and_gradient(inputs, targets, all_outputs, count)
        return share, (inputs, gradient)

    def _update(self, gradients: list[Any], loss: tf.Tensor) -> None:
        variables = self.model.trainable_variables
        if self._is_ours:
            finite = tf.math.is_finite(loss)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Gradients do not exist")  # A loss need not read all weights.
                apply_gradients(self.optimizer, self.optimizer.loss_scale, False, gradients, finite, variables)
        else:
            # Make gradients dense, because Keras' optimizers handle sparse gradients with repeated ids incorrectly.
            dense = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]
            self.optimizer.apply(dense, variables)


def _sum_products(inputs: Any, gradients: Any, outputs: Any, weights: Any, count: Any) -> tf.Tensor:
    """Returns a scalar whose gradient with respect to the outputs is `gradients`. Used like LossShare.share."""
    return tf.reduce_sum(gradients * outputs)


def _pad_rows(batch: Any, multiple: int) -> Any:
    """Appends rows of zeros, which count as padding, until the number of rows is a multiple of `multiple`."""

    def pad(values: Any) -> tf.Tensor:
        values = tf.convert_to_tensor(values)  # a NumPy array if Keras runs eagerly
        missing = -count_rows(values) % multiple
        return tf.pad(values, [[0, missing], *([[0, 0]] * (values.shape.rank - 1))])

    return tf.nest.map_structure(pad, batch)
