"""The parts of a training step that each replica runs: gradients of micro-batches, then the update.

M micro-batches, B rows per micro-batch
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from official_bert.optimization.loss_scale import DynamicLossScale
from official_bert.training.replicas import get_sizes

Sums = dict[str, tf.Tensor]  # float32 scalars by name


def all_reduce_sum(value: Any) -> Any:
    """Returns the sum of a tensor over all replicas. All replicas must call it."""
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)


def all_gather(value: Any) -> Any:
    """Concatenates the rows, [B, ...], of all replicas in order, to [B * number of replicas, ...].

    All replicas must call it.
    """
    # The exchange needs a tensor on the replica's device, so copy it.
    return tf.distribute.get_replica_context().all_gather(tf.identity(value), axis=0)


def split_micro_batches(batch: Any, count: int) -> Any:
    """Splits each tensor of a batch, [M * B, ...], into micro-batches, [M, B, ...].

    Args:
        batch: A structure of tensors whose number of rows is a multiple of `count`.
        count: Number of micro-batches, M.
    """

    def split(value: Any) -> Any:
        rows, *rest = get_sizes(value)
        return tf.reshape(value, (count, rows // count, *rest))

    return tf.nest.map_structure(split, batch)


def accumulate_gradients(
    sums_and_gradients: Callable[[Any, Any], tuple[Sums, list[Any]]],
    micro_batches: Any,
    count: Any,
    variables: Sequence[Any],
    names: Sequence[str],
) -> tuple[Sums, list[Any]]:
    """Computes micro-batches one after the other, and returns the totals of their sums and gradients.

    Args:
        sums_and_gradients: Function that takes the index of a micro-batch (an int32 scalar) and its features, and
            returns its sums (float32 scalars by name, such as the loss) and a gradient for each variable. Sums and
            gradients must add up over micro-batches, so divide losses by the denominator of the whole batch.
        micro_batches: A structure of tensors [M, ...] (see `split_micro_batches`).
        count: Number of micro-batches to compute, starting with the first. A number or an int32 scalar.
        variables: The variables of the gradients.
        names: The names of the sums.
    """
    most = tf.nest.flatten(micro_batches)[0].shape[0]

    # Subtract gradients and negate the result. For a sum, TensorFlow would merge the addition with that within the
    # gradient of tied embeddings, use a temporary variable if memory is scarce, and fail at the next call because the
    # variable "already exists".
    def add(index: tf.Tensor, totals: Sums, negative: list[tf.Tensor]) -> tuple[Any, Any, Any]:
        part = tf.nest.map_structure(lambda value: value[index], micro_batches)
        sums, gradients = sums_and_gradients(index, part)
        negative = [total - gradient for total, gradient in zip(negative, gradients, strict=True)]
        return index + 1, {name: totals[name] + sums[name] for name in totals}, negative

    nothing = {name: tf.constant(0.0) for name in names}
    zeros = [tf.zeros(variable.shape, variable.dtype) for variable in variables]
    _, sums, negative = tf.while_loop(
        lambda number, *_: number < count,
        add,
        (tf.constant(0), nothing, zeros),
        parallel_iterations=1,
        maximum_iterations=most,
    )
    return sums, [-total for total in negative]


def apply_gradients(
    optimizer: Any,
    loss_scale: DynamicLossScale | None,
    skip_nonfinite: bool,
    gradients: list[Any],
    finite_loss: Any,
    variables: Sequence[Any] | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Unscales gradients, sums them over replicas, clips and applies them, and updates the loss scale.

    Args:
        optimizer: An optimizer with AllReduceClipMixin, built for the variables.
        loss_scale: Scale of the loss. None if the loss is not scaled.
        skip_nonfinite: Whether to skip the update if the loss or a gradient is not finite. With a loss scale, such an
            update is always skipped.
        gradients: Gradients of this replica, one per variable.
        finite_loss: Whether the loss of the whole batch is finite, a bool scalar.
        variables: The variables of the gradients. None means the variables that the optimizer was built with.

    Returns:
        The norm of the summed gradients before clipping, and whether both it and the loss are finite.
    """
    if loss_scale:
        gradients = loss_scale.unscale(gradients)
    gradients, norm = optimizer.sum_and_clip(gradients)
    finite = finite_loss & tf.math.is_finite(norm)
    optimizer.apply_summed(gradients, variables, only_if=finite if skip_nonfinite or loss_scale else None)
    if loss_scale:
        loss_scale.update(finite)
    return norm, finite
