"""How every optimizer here applies gradients: summed over replicas, then clipped, then applied."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from official_bert.optimization.loss_scale import DynamicLossScale


class AllReduceClipMixin:
    """How every optimizer here applies gradients; to be mixed into a Keras optimizer.

    Gradients are made dense, summed over replicas, clipped once by their global norm, and applied, in that order. Keras
    by itself would clip each replica's share before summing (as the original did on TPUs), and would square the rows of
    a sparse gradient before adding up those of equal ids; both make the result depend on how a batch is laid out.

    Attributes:
        clip_norm: the greatest global norm; None for no clipping.
        loss_scale: by which the loss is multiplied before it is differentiated, for float16; None for no scaling. Its
            variables are saved with the optimizer's.
        clips_rows: whether a sparse gradient is clipped by its rows, those of equal ids added up, before it is made
            dense: a table of word pieces is much larger than what a batch reads of it. For one replica and graphs that
            XLA does not compile, as the number of rows is not known in advance.
        uses_kernel: whether TensorFlow's kernel of Adam changes the weights, in one pass over memory and without a
            compilation: for one device, with variables of TensorFlow, and BertAdamW's rule alone.
    """

    clip_norm: float | None
    clips_rows = False
    uses_kernel = False
    loss_scale: DynamicLossScale | None = None

    @property
    def variables(self) -> list[Any]:
        own: list[Any] = super().variables  # type: ignore[misc]
        return [*own, *self.loss_scale.variables] if self.loss_scale else own

    def scale_loss(self, loss: Any) -> Any:
        """Returns the loss to differentiate: what Keras' fit calls."""
        return self.loss_scale.scaled(loss) if self.loss_scale else super().scale_loss(loss)  # type: ignore[misc]

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Sums over replicas, clips and applies: what Keras' fit calls."""
        summed, _ = self.sum_and_clip(grads)
        self.apply_summed(summed, trainable_variables)

    def sum_and_clip(self, grads: Sequence[Any]) -> tuple[list[Any], Any]:
        """Returns the dense gradients summed over replicas and clipped, and their global norm before clipping.

        The norm is finite if and only if all gradients are (short of float32's overflow in their squares).
        """
        prepare = _with_unique_rows if self.clips_rows else tf.convert_to_tensor
        summed = [None if grad is None else prepare(grad) for grad in grads]
        present = [grad for grad in summed if grad is not None]
        context = tf.distribute.get_replica_context()
        if context is not None and context.num_replicas_in_sync > 1:
            present = context.all_reduce(tf.distribute.ReduceOp.SUM, present)
        norm = tf.linalg.global_norm(present)
        if self.clip_norm is not None:
            present, _ = tf.clip_by_global_norm(present, self.clip_norm, use_norm=norm)
        rest = iter([tf.convert_to_tensor(grad) for grad in present])
        return [None if grad is None else next(rest) for grad in summed], norm

    def apply_summed(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None, only_if: Any = None
    ) -> None:
        """Applies gradients that `sum_and_clip` returned.

        Args:
            grads: one for each variable.
            trainable_variables: the variables; None for those that the optimizer was built with.
            only_if: a bool scalar, equal on all replicas, such as whether the norm is finite. Where it is False the
                step is skipped: weights and moments stay, and only the number of steps goes up, on which the
                position in the data, the schedule and the random numbers depend. The optimizer must have been built.
                None always applies.
        """
        if only_if is None:
            super().apply(grads, trainable_variables)  # type: ignore[misc]
            return

        def apply(grads: Sequence[Any]) -> None:
            super(AllReduceClipMixin, self).apply(grads, trainable_variables)  # type: ignore[misc]

        def skip() -> None:
            self.iterations.assign_add(1)  # type: ignore[attr-defined]

        def on_all_replicas(strategy: tf.distribute.Strategy, flag: Any, grads: Sequence[Any]) -> None:
            run = strategy.extended.call_for_each_replica
            flag = strategy.experimental_local_results(flag)[0]
            tf.cond(flag, lambda: run(apply, args=(grads,)), lambda: run(skip))

        context = tf.distribute.get_replica_context()
        if isinstance(context.strategy, tf.distribute.MirroredStrategy | tf.distribute.MultiWorkerMirroredStrategy):
            # Their replicas are threads that meet in each update, which they cannot do within a branch; so they meet
            # before it, and each branch runs on all of them.
            context.merge_call(on_all_replicas, args=(only_if, grads))
        else:
            tf.cond(only_if, lambda: apply(grads), skip)

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        # Keras' own hook for summing over replicas; `apply` has done it already, before clipping.
        return grads_and_vars

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()  # type: ignore[misc]
        # Keras' own clipping takes no part; leaving it out keeps its checks out too.
        for key in ("clipnorm", "global_clipnorm", "clipvalue"):
            config.pop(key, None)
        return {**config, "clip_norm": self.clip_norm}


def _with_unique_rows(grad: Any) -> Any:
    """A sparse gradient with the rows of equal ids added up; a dense one as it is."""
    if not isinstance(grad, tf.IndexedSlices):
        return grad
    ids, positions = tf.unique(grad.indices)
    values = tf.math.unsorted_segment_sum(grad.values, positions, tf.size(ids))
    return tf.IndexedSlices(values, ids, grad.dense_shape)
