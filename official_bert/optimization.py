"""BERT's optimizer: Adam with decoupled weight decay, without bias correction, and its learning rate's schedule."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

# Biases and layer normalization are not decayed. These are the names of such variables in Keras; a rule on the number
# of dimensions would miss the biases that some layers keep as matrices.
NOT_DECAYED = frozenset({"bias", "gamma", "beta"})


@keras.saving.register_keras_serializable(package="official_bert")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Warm-up from 0 to the peak, then linear decay to 0 at the last step.

    As in the original, the decay counts from step 0, so that the rate jumps down from `peak` to
    `peak * (1 - warmup_steps / num_steps)` when warm-up ends. With `jump=False` it decays from the peak instead,
    without a jump. The rate of the very first step is 0 where there is a warm-up.

    Args:
        peak: the highest rate.
        num_steps: when the rate reaches 0.
        warmup_steps: the length of the warm-up; 0 for none.
        jump: whether the decay counts from step 0.
    """

    def __init__(self, peak: float, num_steps: int, warmup_steps: int = 0, jump: bool = True) -> None:
        self.peak = peak
        self.num_steps = num_steps
        self.warmup_steps = warmup_steps
        self.jump = jump

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, "float32")
        start = 0 if self.jump else min(self.warmup_steps, self.num_steps - 1)
        gone = ops.clip((step - start) / (self.num_steps - start), 0.0, 1.0)
        rate = self.peak * (1.0 - gone)
        if self.warmup_steps:
            rate = ops.where(step < self.warmup_steps, self.peak * step / self.warmup_steps, rate)
        return rate

    def get_config(self) -> dict[str, Any]:
        return {
            "peak": self.peak,
            "num_steps": self.num_steps,
            "warmup_steps": self.warmup_steps,
            "jump": self.jump,
        }


@keras.saving.register_keras_serializable(package="official_bert")
class BertAdamW(keras.optimizers.Optimizer):
    """The original's AdamWeightDecayOptimizer as a Keras optimizer.

    For each variable w with gradient g:

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g * g
        w = w - rate * (m / (sqrt(v) + epsilon) + weight_decay_rate * w)

    m and v start at 0 and their bias is not corrected. Variables named in `NOT_DECAYED` lack the last term.

    Gradients are made dense, summed over replicas, clipped once by their global norm, and applied, in that order. Keras
    by itself would clip each replica's share before summing (as the original did on TPUs), and would square the rows of
    a sparse gradient before adding up those of equal ids; both make the result depend on how a batch is laid out.

    Args:
        learning_rate: a number or schedule.
        beta_1: decay of the mean of gradients.
        beta_2: decay of the mean of their squares.
        epsilon: added to the root.
        weight_decay_rate: share of a weight that is subtracted, times the learning rate.
        clip_norm: the greatest global norm; None for no clipping.
    """

    def __init__(
        self,
        learning_rate: Any = 5e-5,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay_rate: float = 0.01,
        clip_norm: float | None = 1.0,
        name: str = "bert_adam_w",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.weight_decay_rate = weight_decay_rate
        self.clip_norm = clip_norm

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the two averages of each variable; under a strategy this must happen within its scope."""
        if self.built:
            return
        super().build(variables)
        self._means, self._squares = self.add_optimizer_variables(variables, ["adam_m", "adam_v"])

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        index = self._get_variable_index(variable)
        mean, square = self._means[index], self._squares[index]
        new_mean = self.beta_1 * mean + (1.0 - self.beta_1) * gradient
        new_square = self.beta_2 * square + (1.0 - self.beta_2) * ops.square(gradient)
        update = new_mean / (ops.sqrt(new_square) + self.epsilon)
        if is_decayed(self._trainable_variables[index]):
            update = update + self.weight_decay_rate * variable
        self.assign(mean, new_mean)
        self.assign(square, new_square)
        self.assign_sub(variable, learning_rate * update)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Sums over replicas, clips and applies: what Keras' fit calls."""
        summed, _ = self.sum_and_clip(grads)
        self.apply_summed(summed, trainable_variables)

    def sum_and_clip(self, grads: Sequence[Any]) -> tuple[list[Any], Any]:
        """Returns the dense gradients summed over replicas and clipped, and their global norm before clipping."""
        summed = [None if grad is None else tf.convert_to_tensor(grad) for grad in grads]
        present = [grad for grad in summed if grad is not None]
        context = tf.distribute.get_replica_context()
        if context is not None and context.num_replicas_in_sync > 1:
            present = context.all_reduce(tf.distribute.ReduceOp.SUM, present)
        norm = tf.linalg.global_norm(present)
        if self.clip_norm is not None:
            present, _ = tf.clip_by_global_norm(present, self.clip_norm, use_norm=norm)
        rest = iter(present)
        return [None if grad is None else next(rest) for grad in summed], norm

    def apply_summed(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Applies gradients that `sum_and_clip` returned."""
        super().apply(grads, trainable_variables)

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        # Keras' own hook for summing over replicas; `apply` has done it already, before clipping.
        return grads_and_vars

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        # Keras' own clipping and decay take no part; leaving them out keeps its checks of them out too.
        for key in ("weight_decay", "clipnorm", "global_clipnorm", "clipvalue"):
            config.pop(key, None)
        return {
            **config,
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "weight_decay_rate": self.weight_decay_rate,
            "clip_norm": self.clip_norm,
        }


def is_decayed(variable: Any) -> bool:
    """Whether weight decay applies to the variable."""
    return variable.name not in NOT_DECAYED
