"""What a training step does on each replica, whatever is learned: gradients over micro-batches, then the update.

M micro-batches, B rows of each
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from official_bert.optimization.loss_scale import DynamicLossScale
from official_bert.training.replicas import get_sizes

Sums = dict[str, tf.Tensor]  # scalars by name


def all_reduce_sum(value: Any) -> Any:
    """Returns the sum of a tensor over all replicas; to be called by each of them."""
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)


def all_gather(value: Any) -> Any:
    """Returns the rows of all replicas, [B * replicas, ...], in order; to be called by each of them with [B, ...]."""
    # A copy, since this is on the replica's device, which the exchange must know.
    return tf.distribute.get_replica_context().all_gather(tf.identity(value), axis=0)


def split_micro_batches(batch: Any, count: int) -> Any:
    """Returns a batch as `count` micro-batches: each of its tensors, [M * B, ...], as [M, B, ...].

    M * B is a multiple of `count`.
    """

    def cut_tensor(value: Any) -> Any:
        rows, *rest = get_sizes(value)
        return tf.reshape(value, (count, rows // count, *rest))

    return tf.nest.map_structure(cut_tensor, batch)


def accumulate_gradients(
    sums_and_gradients: Callable[[Any, Any], tuple[Sums, list[Any]]],
    micro_batches: Any,
    count: Any,
    variables: Sequence[Any],
    names: Sequence[str],
) -> tuple[Sums, list[Any]]:
    """Returns sums and gradients of a batch, computed from one micro-batch after the other.

    Args:
        sums_and_gradients: of a micro-batch, given its number (an int32 scalar) and its features. Sums are float32, and
            each variable has a gradient. What is differentiated must add up over micro-batches: a denominator is that
            of the whole batch.
        micro_batches: a structure of tensors, each [M, ...], as `split_micro_batches` returns it.
        count: how many of them, from the first, are not empty; others are not computed. A number or an int32 scalar.
        variables: those of the gradients.
        names: of the sums.
    """
    most = tf.nest.flatten(micro_batches)[0].shape[0]

    # The negative sum, since TensorFlow makes one addition of a sum and a gradient that is one itself, as that of
    # the tied embeddings, gives it a temporary variable where memory is short, and then does not find it gone at
    # the next call ("already exists").
    def add(number: tf.Tensor, totals: Sums, negative: list[tf.Tensor]) -> tuple[Any, Any, Any]:
        part = tf.nest.map_structure(lambda value: value[number], micro_batches)
        sums, gradients = sums_and_gradients(number, part)
        negative = [total - gradient for total, gradient in zip(negative, gradients, strict=True)]
        return number + 1, {name: totals[name] + sums[name] for name in totals}, negative

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
    """Unscales gradients, sums them over replicas, clips and applies them, and adapts the loss scale.

    Args:
        optimizer: one of ours (see AllReduceClipMixin), built for the variables.
        loss_scale: what the loss was scaled by; None for no scaling.
        skip_nonfinite: whether a step leaves the weights as they are if its loss or a gradient is not finite. Where
            there is a loss scale, it always does.
        gradients: of a replica, one for each variable.
        finite_loss: a bool scalar, whether the loss of the whole batch is finite.
        variables: those of the gradients; None for those that the optimizer was built with.

    Returns:
        The norm of the summed gradients before clipping, and whether it and the loss are finite.
    """
    if loss_scale:
        gradients = loss_scale.unscale(gradients)
    gradients, norm = optimizer.sum_and_clip(gradients)
    finite = finite_loss & tf.math.is_finite(norm)
    optimizer.apply_summed(gradients, variables, only_if=finite if skip_nonfinite or loss_scale else None)
    if loss_scale:
        loss_scale.update(finite)
    return norm, finite
