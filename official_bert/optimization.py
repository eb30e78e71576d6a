"""What changes the weights: BERT's optimizer, LAMB and Keras' AdamW, and the learning rate's schedule."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from official_bert.errors import UserError

OPTIMIZERS = ("adamw", "lamb", "keras_adamw")

# Biases and layer normalization are not decayed. These are the names of such variables in Keras; a rule on the number
# of dimensions would miss the biases that some layers keep as matrices.
NOT_DECAYED = frozenset({"bias", "gamma", "beta"})


def get_optimizer(
    name: str,
    learning_rate: Any,
    *,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-6,
    weight_decay_rate: float = 0.01,
    clip_norm: float | None = 1.0,
) -> Any:
    """Returns the optimizer of that name; all three have the same settings and differ in their rule alone.

    Args:
        name: "adamw" (the original's), "lamb" or "keras_adamw".
        learning_rate: a number or schedule.
        beta_1: decay of the mean of gradients.
        beta_2: decay of the mean of their squares.
        epsilon: added to the root.
        weight_decay_rate: share of a weight that is subtracted, times the learning rate.
        clip_norm: the greatest global norm; None for no clipping.

    Raises:
        UserError: the name is unknown.
    """
    settings: dict[str, Any] = {"beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon, "clip_norm": clip_norm}
    if name == "adamw":
        return BertAdamW(learning_rate, weight_decay_rate=weight_decay_rate, **settings)
    if name == "lamb":
        return Lamb(learning_rate, weight_decay_rate=weight_decay_rate, **settings)
    if name == "keras_adamw":
        return KerasAdamW(learning_rate, weight_decay=weight_decay_rate, **settings)
    raise UserError(f"unknown optimizer {name!r}; expected one of {', '.join(OPTIMIZERS)}")


@keras.saving.register_keras_serializable(package="official_bert")
class WarmupPolynomialDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Warm-up from 0 to the peak, then polynomial decay to the end rate at the last step; by default a line to 0.

    Of the way from the first step of the decay to the last, a share x is left; the rate then is
    `end_rate + (peak - end_rate) * x ** power`.

    As in the original, the decay counts from step 0, so that the rate jumps down when warm-up ends (with the line: from
    `peak` to `peak * (1 - warmup_steps / num_steps)`). With `jump=False` it decays from the peak instead, without a
    jump. The rate of the very first step is 0 where there is a warm-up.

    Args:
        peak: the highest rate.
        num_steps: when the rate reaches its end; it stays there.
        warmup_steps: the length of the warm-up; 0 for none.
        jump: whether the decay counts from step 0.
        power: of the polynomial; 1 for a line, 0.5 falls late, 2 early.
        end_rate: the last rate.
    """

    def __init__(
        self,
        peak: float,
        num_steps: int,
        warmup_steps: int = 0,
        jump: bool = True,
        power: float = 1.0,
        end_rate: float = 0.0,
    ) -> None:
        self.peak = peak
        self.num_steps = num_steps
        self.warmup_steps = warmup_steps
        self.jump = jump
        self.power = power
        self.end_rate = end_rate

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, "float32")
        start = 0 if self.jump else min(self.warmup_steps, self.num_steps - 1)
        left = 1.0 - ops.clip((step - start) / (self.num_steps - start), 0.0, 1.0)
        if self.power != 1.0:  # no power of 1 is computed, so that the line is the same to the bit everywhere
            left = ops.power(left, self.power)
        rate = self.end_rate + (self.peak - self.end_rate) * left
        if self.warmup_steps:
            rate = ops.where(step < self.warmup_steps, self.peak * step / self.warmup_steps, rate)
        return rate

    def get_config(self) -> dict[str, Any]:
        return {
            "peak": self.peak,
            "num_steps": self.num_steps,
            "warmup_steps": self.warmup_steps,
            "jump": self.jump,
            "power": self.power,
            "end_rate": self.end_rate,
        }


class SumThenClip:
    """How every optimizer here applies gradients; to be mixed into a Keras optimizer.

    Gradients are made dense, summed over replicas, clipped once by their global norm, and applied, in that order. Keras
    by itself would clip each replica's share before summing (as the original did on TPUs), and would square the rows of
    a sparse gradient before adding up those of equal ids; both make the result depend on how a batch is laid out.

    Attributes:
        clip_norm: the greatest global norm; None for no clipping.
    """

    clip_norm: float | None
    _compiled: Any = None

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Sums over replicas, clips and applies: what Keras' fit calls."""
        if self._compiled is not None:
            # Dense already here: a sparse gradient has a row for each token, so that XLA would compile each length.
            self._compiled([None if grad is None else tf.convert_to_tensor(grad) for grad in grads])
            return
        summed, _ = self.sum_and_clip(grads)
        self.apply_summed(summed, trainable_variables)

    def compile_apply(self) -> None:
        """Has XLA compile `apply`, to pass over the weights once: for one device, after the optimizer is built.

        The rest of a step is not compiled, as it would be anew for each length of a batch; this is the same for all.
        """

        def apply(grads: Sequence[Any]) -> None:
            summed, _ = self.sum_and_clip(grads)
            self.apply_summed(summed)

        self._compiled = tf.function(apply, jit_compile=True, autograph=False)

    def sum_and_clip(self, grads: Sequence[Any]) -> tuple[list[Any], Any]:
        """Returns the dense gradients summed over replicas and clipped, and their global norm before clipping.

        The norm is finite if and only if all gradients are (short of float32's overflow in their squares).
        """
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

    def apply_summed(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None, only_if: Any = None
    ) -> None:
        """Applies gradients that `sum_and_clip` returned.

        Args:
            grads: one for each variable.
            trainable_variables: the variables; None for those that the optimizer was built with.
            only_if: a bool scalar, equal on all replicas, such as whether the norm is finite. Where it is False the
                step is skipped: weights and averages stay, and only the number of steps goes up, which stands for the
                place in the data, in the schedule and in the random numbers. The optimizer must have been built. None
                always applies.
        """
        if only_if is None:
            super().apply(grads, trainable_variables)  # type: ignore[misc]
            return

        def apply(grads: Sequence[Any]) -> None:
            super(SumThenClip, self).apply(grads, trainable_variables)  # type: ignore[misc]

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


@keras.saving.register_keras_serializable(package="official_bert")
class BertAdamW(SumThenClip, keras.optimizers.Optimizer):
    """The original's AdamWeightDecayOptimizer as a Keras optimizer: Adam with decoupled decay, no bias correction.

    For each variable w with gradient g:

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g * g
        w = w - rate * (m / (sqrt(v) + epsilon) + weight_decay_rate * w)

    m and v start at 0 and their bias is not corrected. Variables named in `NOT_DECAYED` lack the last term.

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
        mean, square = self._averages(index, gradient)
        update = mean / (ops.sqrt(square) + self.epsilon)
        if is_decayed(self._trainable_variables[index]):
            update = update + self.weight_decay_rate * variable
        self.assign_sub(variable, learning_rate * update)

    def _averages(self, index: int, gradient: Any) -> tuple[Any, Any]:
        """Takes the gradient into a variable's two averages and returns them."""
        mean = self.beta_1 * self._means[index] + (1.0 - self.beta_1) * gradient
        square = self.beta_2 * self._squares[index] + (1.0 - self.beta_2) * ops.square(gradient)
        self.assign(self._means[index], mean)
        self.assign(self._squares[index], square)
        return mean, square

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.pop("weight_decay", None)  # Keras' own, which takes no part
        return {
            **config,
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "weight_decay_rate": self.weight_decay_rate,
        }


@keras.saving.register_keras_serializable(package="official_bert")
class LayerwiseAdamW(BertAdamW):
    """BertAdamW with a learning rate of its own for some variables.

    Args:
        learning_rate: a number or schedule.
        factors: what the rate of a variable is multiplied with, by the variable's path; 1 for the others.
        name: the optimizer's.
        **kwargs: as BertAdamW's, with its defaults.
    """

    def __init__(
        self,
        learning_rate: Any = 5e-5,
        factors: dict[str, float] | None = None,
        name: str = "layerwise_adam_w",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.factors = dict(factors or {})

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        path = self._trainable_variables[self._get_variable_index(variable)].path
        super().update_step(gradient, variable, learning_rate * self.factors.get(path, 1.0))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "factors": self.factors}


@keras.saving.register_keras_serializable(package="official_bert")
class Lamb(BertAdamW):
    """LAMB (You et al., arXiv:1904.00962), algorithm 2 with bias correction and the identity as phi: for large batches.

    For each variable w with gradient g, at step t counted from 1:

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g * g
        u = m / (1 - beta_1 ** t) / (sqrt(v / (1 - beta_2 ** t)) + epsilon) + weight_decay_rate * w
        w = w - rate * |w| / |u| * u

    The paper's layer is a variable here, as in published implementations, and the trust ratio |w| / |u| is 1 where
    either norm is 0. Variables named in `NOT_DECAYED` have neither decay nor trust ratio, as in the implementations of
    the TensorFlow models and of MLPerf; NVIDIA's has the ratio for them too. The paper does not clip gradients; that is
    `clip_norm=None`. A skipped step counts in t.

    Args:
        learning_rate: a number or schedule.
        name: the optimizer's.
        **kwargs: as BertAdamW's, with its defaults.
    """

    def __init__(self, learning_rate: Any = 1e-3, name: str = "lamb", **kwargs: Any) -> None:
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        index = self._get_variable_index(variable)
        mean, square = self._averages(index, gradient)
        mean, square = mean / self._correction(self.beta_1), square / self._correction(self.beta_2)
        update = mean / (ops.sqrt(square) + self.epsilon)
        if is_decayed(self._trainable_variables[index]):
            update = update + self.weight_decay_rate * variable
            update = trust_ratio(variable, update) * update
        self.assign_sub(variable, learning_rate * update)

    def _correction(self, beta: float) -> Any:
        """1 - beta ** t, what the gradients up to now weigh in an average; exact where beta ** t is close to 1."""
        if not beta:
            return 1.0
        step = ops.cast(self.iterations + 1, "float32")
        return -ops.expm1(step * math.log(beta))


def trust_ratio(weights: Any, update: Any) -> Any:
    """LAMB's share of the learning rate: the weights' norm by the update's, 1 where either is 0."""
    weights_norm, update_norm = (ops.sqrt(ops.sum(ops.square(value))) for value in (weights, update))
    usable = ops.logical_and(weights_norm > 0.0, update_norm > 0.0)
    return ops.where(usable, weights_norm / ops.where(usable, update_norm, 1.0), 1.0)


@keras.saving.register_keras_serializable(package="official_bert")
class KerasAdamW(SumThenClip, keras.optimizers.AdamW):
    """keras.optimizers.AdamW with the decay's exclusions of BERT: for comparison.

    It corrects the averages' bias, adds epsilon to a root that is not corrected, and decays before the update rather
    than together with it.

    Args:
        learning_rate: a number or schedule.
        weight_decay: share of a weight that is subtracted, times the learning rate.
        epsilon: added to the root.
        clip_norm: the greatest global norm; None for no clipping.
        name: the optimizer's.
        **kwargs: as those of keras.optimizers.AdamW.
    """

    def __init__(
        self,
        learning_rate: Any = 5e-5,
        weight_decay: float = 0.01,
        epsilon: float = 1e-6,
        clip_norm: float | None = 1.0,
        name: str = "keras_adam_w",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, epsilon=epsilon, name=name, **kwargs)
        self.clip_norm = clip_norm

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the two averages of each variable; under a strategy this must happen within its scope."""
        if self.built:
            return
        # By the variables themselves: Keras would search in all of a name, so that "beta" excludes more than it means.
        self.exclude_from_weight_decay(var_list=[variable for variable in variables if not is_decayed(variable)])
        super().build(variables)


def is_decayed(variable: Any) -> bool:
    """Whether weight decay applies to the variable."""
    return variable.name not in NOT_DECAYED


@keras.saving.register_keras_serializable(package="official_bert")
class PhasedSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """One schedule after the other, each counting from its own first step.

    Args:
        phases: first step and schedule of each phase, in order; the first begins at 0.
    """

    def __init__(self, phases: Sequence[tuple[int, Any]]) -> None:
        self.phases = list(phases)

    def __call__(self, step: Any) -> Any:
        rate = self.phases[0][1](step)
        for first, schedule in self.phases[1:]:
            rate = ops.where(ops.cast(step, "int64") >= first, schedule(step - first), rate)
        return rate

    def get_config(self) -> dict[str, Any]:
        return {"phases": [(first, keras.saving.serialize_keras_object(each)) for first, each in self.phases]}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "PhasedSchedule":
        return cls([(first, keras.saving.deserialize_keras_object(each)) for first, each in config["phases"]])
