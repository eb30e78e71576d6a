"""What all optimizers share: gradients are summed over replicas, then clipped, then applied. Biases do not decay."""

from collections.abc import Sequence
from typing import Any, ClassVar

import tensorflow as tf

from official_bert.errors import UserError
from official_bert.optimization.loss_scale import DynamicLossScale

# Names of the Keras variables without weight decay: biases and layer normalization. A rule based on the number of
# dimensions would miss biases that some layers store as matrices.
NOT_DECAYED = frozenset({"bias", "gamma", "beta"})


class AllReduceClipMixin:
    """A mixin for Keras optimizers that sums gradients over replicas, clips them by their global norm and applies them.

    Keras would clip the gradients of each replica before the sum, as the original did on TPUs. It would also square the
    rows of a sparse gradient before it sums rows with the same id. In both cases, the result would depend on how the
    batch is divided among replicas.

    Variables named in `NOT_DECAYED` are excluded from weight decay.

    Args:
        clip_norm: Maximum global norm. None disables clipping.
        settings: Arguments of the Keras optimizer.

    Raises:
        UserError: If an argument is given that this class replaces.

    Attributes:
        loss_scale: Loss scaling for float16, or None. Its variables are saved with the optimizer's.
        clips_rows: Whether sparse gradients stay sparse until they are clipped: rows with the same id are summed first.
            This saves time because a batch reads few rows of the embedding table. Only for one replica without XLA,
            because the number of rows is not known in advance.
        uses_kernel: Whether BertAdamW uses TensorFlow's Adam kernel, which reads memory only once and needs no
            compilation. Only for a single device with TensorFlow variables.
    """

    clips_rows = False
    uses_kernel = False
    loss_scale: DynamicLossScale | None = None
    # Arguments of Keras' optimizers that are refused, and what to use instead.
    _replaced: ClassVar = dict.fromkeys(("clipnorm", "clipvalue", "global_clipnorm"), "clip_norm") | {
        "gradient_accumulation_steps": "the argument gradient_accumulation_steps of the model",
        "loss_scale_factor": "a model with the dtype mixed_float16, which scales the loss",
    }

    def __init__(self, *, clip_norm: float | None, **settings: Any) -> None:
        for name, instead in self._replaced.items():
            if settings.get(name) is not None:
                raise UserError(f"{type(self).__name__} does not support {name}={settings[name]!r}; use {instead}")
        super().__init__(**settings)
        self.clip_norm = clip_norm

    @property
    def variables(self) -> list[Any]:
        own: list[Any] = super().variables  # type: ignore[misc]
        return [*own, *self.loss_scale.variables] if self.loss_scale else own

    def restart(self) -> None:
        """Resets the step count, the moments and the loss scale. The learning rate must be a schedule."""
        for variable in super().variables:  # type: ignore[misc]
            variable.assign(tf.zeros(variable.shape, variable.dtype))
        if self.loss_scale:
            self.loss_scale.restart()

    def scale_loss(self, loss: Any) -> Any:
        """Multiplies a loss by the loss scale before it is differentiated. Keras' fit calls this method."""
        return self.loss_scale.scale(loss) if self.loss_scale else super().scale_loss(loss)  # type: ignore[misc]

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Sums gradients over replicas, clips them and applies them. Keras' fit calls this method."""
        summed, _ = self.sum_and_clip(grads)
        self.apply_summed(summed, trainable_variables)

    def sum_and_clip(self, grads: Sequence[Any]) -> tuple[list[Any], Any]:
        """Sums gradients over replicas and clips them.

        Args:
            grads: The gradients of this replica. A gradient is None if the loss does not depend on the variable.

        Returns:
            The dense gradients, and their global norm before clipping. The norm is finite if and only if all gradients
            are finite (unless their squares overflow float32).
        """
        prepare = _sum_duplicate_rows if self.clips_rows else tf.convert_to_tensor
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
            grads: One gradient per variable.
            trainable_variables: The variables. None means the variables that the optimizer was built with.
            only_if: Bool scalar, equal on all replicas, such as whether the norm is finite. If it is False, the step is
                skipped: weights and moments do not change. The step count still increases, because the position in the
                data, the schedule and random numbers depend on it. The optimizer must be built before. None never
                skips.
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
            # Replicas of these strategies are threads that synchronize in each update, which is impossible inside a
            # branch. They therefore synchronize before the branch, and each branch runs on all replicas.
            context.merge_call(on_all_replicas, args=(only_if, grads))
        else:
            tf.cond(only_if, lambda: apply(grads), skip)

    def _use_weight_decay(self, variable: Any) -> bool:
        # Keras' hook. The variable may be one of TensorFlow, whose name differs.
        variable = self._trainable_variables[self._get_variable_index(variable)]  # type: ignore[attr-defined]
        return variable.name not in NOT_DECAYED and super()._use_weight_decay(variable)  # type: ignore[misc]

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        # Keras' hook for the sum over replicas. `apply` already computed it, before clipping.
        return grads_and_vars

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "clip_norm": self.clip_norm}  # type: ignore[misc]


def _sum_duplicate_rows(grad: Any) -> Any:
    """Sums the rows of a sparse gradient that have the same id. Dense gradients are returned unchanged."""
    if not isinstance(grad, tf.IndexedSlices):
        return grad
    ids, positions = tf.unique(grad.indices)
    values = tf.math.unsorted_segment_sum(grad.values, positions, tf.size(ids))
    return tf.IndexedSlices(values, ids, grad.dense_shape)
