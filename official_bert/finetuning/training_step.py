"""What a replica does in a step of fine-tuning: forward, its share of the loss, gradient, sum, clip, update.

B rows of one replica
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from official_bert.finetuning.loss_share import BatchLossShare, LossShare
from official_bert.modeling.dropout import dropout_seed, step_seed
from official_bert.optimization.all_reduce_clip import AllReduceClipMixin
from official_bert.training.forward_pass import make_forward_pass
from official_bert.training.replica_step import (
    accumulate_gradients,
    all_reduce_sum,
    apply_gradients,
    split_micro_batches,
)
from official_bert.training.replicas import count_rows


class TrainingStep:
    """A step of a model with a head; the command and Keras' fit take the same.

    To be made within the scope of the strategy.

    Args:
        model: what learns.
        optimizer: for the model's weights. Where it is one of ours, gradients are summed over replicas, clipped
            once and applied; any other one of Keras does as it does.
        loss: what is differentiated.
        seed: of dropout.
        micro_batches: into how many parts a replica's rows are cut, whose gradients are added up.
        rematerialize: whether encoder blocks are computed a second time in the backward pass.
        is_compiled: whether XLA compiles the step: it has no use for TensorFlow's own kernels.
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
        self.model, self.optimizer, self._loss, self._seed = model, optimizer, loss, seed
        self._micro_batches = micro_batches
        self._call = make_forward_pass(model, rematerialize)
        self._is_ours = isinstance(optimizer, AllReduceClipMixin)
        if self._is_ours:
            optimizer.build(model.trainable_variables)  # if it is not yet
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
        """Takes a step on the rows of this replica, with the gradients of all.

        Args:
            inputs: of the model, [B, ...].
            targets: one tensor, or tensors by output.
            weights: as for `LossShare.share`.
            on_outputs: gets inputs, targets, outputs and weights of each micro-batch, for metrics.

        Returns:
            The loss of the whole batch, and what it is a mean over (see `LossShare.count`).
        """
        count = all_reduce_sum(self._loss.count(inputs, targets))
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        variables = self.model.trainable_variables
        share_of: Callable[..., tf.Tensor] = self._loss.share

        def outputs_of(number: Any, inputs: Any) -> Any:
            with dropout_seed(step_seed(self._seed, self.optimizer.iterations, replica, number)):
                return self._call(inputs, training=True)

        def share_and_gradients(number: Any, part: Any) -> tuple[dict[str, tf.Tensor], list[Any]]:
            inputs, targets, weights = (*part, None)[:3]
            with tf.GradientTape() as tape:
                outputs = outputs_of(number, inputs)
                share = share_of(inputs, targets, outputs, weights, count)
                scaled = self.optimizer.scale_loss(share)
            if on_outputs:
                on_outputs(inputs, targets, outputs, weights)
            # Zeros add up over micro-batches; without these, a variable that is not read stays as it is.
            unconnected = tf.UnconnectedGradients.NONE if self._micro_batches == 1 else tf.UnconnectedGradients.ZERO
            return {"loss": share}, tape.gradient(scaled, variables, unconnected_gradients=unconnected)

        batch = (inputs, targets) if weights is None else (inputs, targets, weights)
        if self._micro_batches == 1:
            sums, gradients = share_and_gradients(0, batch)
        else:
            batch = _filled_up(batch, self._micro_batches)
            share = None
            if isinstance(self._loss, BatchLossShare):
                # All outputs first, without what their gradients take; then, micro-batch by micro-batch once more, the
                # outputs by what the loss of all has as their gradients.
                share, batch = self._with_gradients_of_outputs(outputs_of, batch[0], batch[1], count)
                share_of = _sum_of_products
            parts = split_micro_batches(batch, self._micro_batches)
            sums, gradients = accumulate_gradients(share_and_gradients, parts, self._micro_batches, variables, ["loss"])
            sums = sums if share is None else {"loss": share}
        loss = all_reduce_sum(sums["loss"])
        self._update(gradients, loss)
        return loss, count

    def _with_gradients_of_outputs(
        self, outputs_of: Callable[[Any, Any], Any], inputs: Any, targets: Any, count: tf.Tensor
    ) -> tuple[tf.Tensor, tuple[Any, tf.Tensor]]:
        """The share of the loss, and the batch with the gradients of the outputs as its targets."""
        assert isinstance(self._loss, BatchLossShare)
        parts = split_micro_batches(inputs, self._micro_batches)

        def outputs_of_part(number: tf.Tensor) -> tf.Tensor:
            return outputs_of(number, tf.nest.map_structure(lambda value: value[number], parts))

        outputs = tf.map_fn(
            outputs_of_part, tf.range(self._micro_batches), fn_output_signature=tf.float32, parallel_iterations=1
        )  # [M, B, N, D]
        of_all = tf.reshape(outputs, (-1, *outputs.shape[2:]))
        share, gradient = self._loss.share_and_gradient(inputs, targets, of_all, count)
        return share, (inputs, gradient)

    def _update(self, gradients: list[Any], loss: tf.Tensor) -> None:
        variables = self.model.trainable_variables
        if self._is_ours:
            finite = tf.math.is_finite(loss)
            apply_gradients(self.optimizer, self.optimizer.loss_scale, False, gradients, finite, variables)
        else:
            # Dense, since Keras' optimizers take sparse gradients with repeated ids wrongly.
            dense = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]
            self.optimizer.apply(dense, variables)


def _sum_of_products(inputs: Any, gradients: Any, outputs: Any, weights: Any, count: Any) -> tf.Tensor:
    """What has these gradients with respect to the outputs."""
    return tf.reduce_sum(gradients * outputs)


def _filled_up(batch: Any, multiple: int) -> Any:
    """The batch with rows of zeros, which are padding, after it, up to a multiple of rows."""

    def filled(values: Any) -> tf.Tensor:
        values = tf.convert_to_tensor(values)  # an array where Keras runs eagerly
        missing = -count_rows(values) % multiple
        return tf.pad(values, [[0, missing], *([[0, 0]] * (values.shape.rank - 1))])

    return tf.nest.map_structure(filled, batch)
