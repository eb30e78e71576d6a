"""Computes a replica's share of the loss of a batch. The shares of all replicas and micro-batches add up to the loss.

The loss is the mean over all rows of the batch, or over its labeled tokens. It does not depend on how the rows are
distributed. Rows without tokens are padding and do not count.

B rows of one replica or micro-batch, S sequence
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.kinds.features import NO_LABEL
from official_bert.kinds.losses import BatchLoss, TaggingLoss, expand_token_weights
from official_bert.training.replica_step import all_gather

# Maps inputs, targets, outputs and weights (the last three as a tensor, or as a dict by output) to Keras' mean over B.
MeanLoss = Callable[[Any, Any, Any, Any], Any]
_MEANS = ("mean", "sum_over_batch_size")  # two names of the same reduction


class LossShare:
    """Computes one replica's share of the loss of a batch, for the loss of a kind of task or for a user's own loss.

    Args:
        loss: A Keras loss of logits, or losses by output.
        mean_loss: Function (inputs, targets, outputs, weights) that computes the loss of a batch as Keras does: the sum
            divided by B and by the number of replicas. Defaults to calling `loss`.
        loss_weights: Weights of the losses, by output, if there are several.
        is_whole: Whether a single replica computes the whole batch at once and without padding. Its share is then the
            result of `mean_loss`.
        micro_batches: Number of micro-batches that a replica's rows are split into.
    """

    def __init__(
        self,
        loss: Any,
        mean_loss: MeanLoss | None = None,
        loss_weights: Mapping[str, float] | None = None,
        *,
        is_whole: bool = False,
        micro_batches: int = 1,
    ) -> None:
        self._loss, self._loss_weights = loss, loss_weights or {}
        self._mean_loss = mean_loss or self._compute_mean_loss
        self._is_whole, self._micro_batches = is_whole, micro_batches

    def _compute_mean_loss(self, inputs: Any, targets: Any, outputs: Any, weights: Any) -> Any:
        if not isinstance(self._loss, dict):
            return self._loss(targets, outputs, weights)
        means = {name: loss(targets[name], outputs[name], weights[name]) for name, loss in self._loss.items()}
        return tf.add_n([self._loss_weights[name] * mean for name, mean in means.items()])

    def count(self, inputs: Mapping[str, Any], targets: Any) -> tf.Tensor:
        """Returns the number of real rows, or of labeled tokens, on this replica.

        The loss is the mean over their total number on all replicas.
        """
        is_row = find_real_rows(inputs)
        if isinstance(self._loss, TaggingLoss):
            return tf.reduce_sum(is_row[:, None] * tf.cast(tf.not_equal(targets, NO_LABEL), tf.float32))
        return tf.reduce_sum(is_row)

    def share(self, inputs: Mapping[str, Any], targets: Any, outputs: Any, weights: Any, count: tf.Tensor) -> tf.Tensor:
        """Returns the share of the loss for some rows of this replica, a scalar.

        Args:
            inputs: Inputs of the model, [B, ...].
            targets: Targets of the rows, a tensor or tensors by output.
            outputs: Outputs of the model, a tensor or tensors by output.
            weights: Weights of rows, float32 [B], or for token labels also [B, 1] or [B, S]. May be a dict by output.
                None weights all rows equally.
            count: The sum of `LossShare.count` over all replicas.
        """
        if self._is_whole:
            return self._mean_loss(inputs, targets, outputs, weights)
        count, is_row = tf.maximum(count, 1.0), find_real_rows(inputs)
        if isinstance(self._loss, TaggingLoss):
            losses, _ = self._loss.token_losses(targets, outputs)  # [B, S]
            losses *= is_row[:, None]
            return tf.reduce_sum(losses if weights is None else losses * expand_token_weights(weights)) / count
        # Multiplied by the number of parts here and divided below, because Keras reports the loss of each output as a
        # mean over micro-batches, and each micro-batch adds the regularization losses.
        parts = tf.distribute.get_replica_context().num_replicas_in_sync * self._micro_batches
        share_of_row = is_row * tf.cast(tf.size(is_row) * parts, tf.float32) / count
        weights = multiply_weights(share_of_row, weights, targets, outputs)
        return self._mean_loss(inputs, targets, outputs, weights) / self._micro_batches


class BatchLossShare(LossShare):
    """Computes a replica's share of a loss that compares each row with the rows of all replicas and micro-batches.

    Each replica gathers the outputs of all replicas and computes the loss of the whole batch. It then propagates the
    gradient with respect to its own outputs. So gradients never pass through the exchange between replicas.

    Args:
        loss: A loss of the vectors of all rows of a batch.
    """

    def __init__(self, loss: BatchLoss) -> None:
        super().__init__(loss)

    def share(self, inputs: Mapping[str, Any], targets: Any, outputs: Any, weights: Any, count: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def compute_share(values: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            share, gradient = self.share_and_gradient(inputs, targets, values, count)
            return share, lambda upstream: upstream * gradient

        return compute_share(outputs)

    def share_and_gradient(
        self, inputs: Mapping[str, Any], targets: Any, outputs: tf.Tensor, count: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns this replica's share of the loss, and the gradient of the whole loss with respect to its outputs.

        Args:
            inputs: Inputs of all rows of this replica (see `share`).
            targets: Targets of these rows.
            outputs: Outputs of these rows [B, N, D].
            count: The sum of `LossShare.count` over all replicas.
        """
        context = tf.distribute.get_replica_context()
        replicas = context.num_replicas_in_sync
        parts = (outputs, tf.cast(targets, tf.float32), find_real_rows(inputs))
        vectors, targets_of_all, is_row = map(all_gather, parts) if replicas > 1 else parts
        vectors = tf.ensure_shape(vectors, (None, *outputs.shape[1:]))
        with tf.GradientTape() as tape:
            tape.watch(vectors)
            losses = self._loss.compute_row_losses(targets_of_all, vectors, is_row)  # [rows of all replicas]
            loss = tf.reduce_sum(losses * is_row) / tf.maximum(count, 1.0)
        rows = tf.shape(outputs)[0]
        first = context.replica_id_in_sync_group * rows
        return loss / replicas, tape.gradient(loss, vectors)[first : first + rows]


def make_loss_share(loss: Any, mean_loss: MeanLoss | None = None, **settings: Any) -> LossShare:
    """Returns the object that computes each replica's share of the loss of a batch.

    Args:
        loss: The loss. One that needs all rows of a batch (a BatchLoss) gets a BatchLossShare, and the other arguments
            are ignored.
        mean_loss: Passed to LossShare.
        **settings: Passed to LossShare.
    """
    return BatchLossShare(loss) if isinstance(loss, BatchLoss) else LossShare(loss, mean_loss, **settings)


def find_real_rows(inputs: Mapping[str, Any]) -> tf.Tensor:
    """Returns a float32 mask [B]: 1 for each row that has tokens, and 0 for each padding row."""
    mask = inputs["input_mask"]  # [B, S] or [B, N, S]
    return tf.cast(tf.reduce_any(mask > 0, axis=range(1, len(mask.shape))), tf.float32)


def multiply_weights(values: Any, weights: Any, targets: Any, outputs: Any) -> Any:
    """Multiplies values of rows by the user's weights.

    Args:
        values: A value for each row [B].
        weights: Weights as in `LossShare.share`, or None.
        targets: The targets. If they are a dict by output, the result is one, too.
        outputs: The outputs. For an output of tokens [B, S, C], whose losses are [B, S], the result is [B, 1] or [B,
            S].
    """
    if isinstance(targets, dict):
        by_output = weights if isinstance(weights, dict) else dict.fromkeys(targets, weights)
        return {name: multiply_weights(values, by_output[name], None, outputs[name]) for name in targets}
    if not isinstance(outputs, dict) and len(outputs.shape) == 3:
        values, weights = values[:, None], None if weights is None else expand_token_weights(weights)
    if weights is None:
        return values
    weights = tf.cast(weights, tf.float32)
    return values[:, None] * weights if weights.shape.rank == 2 and values.shape.rank == 1 else values * weights


def check_reduction(loss: Any) -> None:
    """Raises a UserError if a user's loss is not a mean over rows. Its shares would not add up to the loss."""
    for each in tf.nest.flatten(loss):
        reduction = getattr(each, "reduction", "mean")
        if reduction not in _MEANS:
            raise UserError(
                f"the loss {each.name} has reduction={reduction!r}; several replicas or micro-batches need a mean over "
                f"rows: create the loss with reduction={_MEANS[1]!r}"
            )


def check_losses_per_row(loss: Any, targets: Any, outputs: Any) -> None:
    """Raises a UserError if a user's loss function returns a scalar instead of one loss per row.

    A scalar would include the loss of padding.
    """
    if isinstance(loss, dict):
        for name, each in loss.items():
            check_losses_per_row(each, targets[name], outputs[name])
    elif callable(loss) and not isinstance(loss, keras.losses.Loss) and not loss(targets, outputs).shape.rank:
        raise UserError(
            f"the loss {getattr(loss, '__name__', loss)} returns a scalar; several replicas or micro-batches need one "
            "loss per row: return the losses of the rows, and Keras computes their mean"
        )
