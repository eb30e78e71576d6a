"""What changes the weights: BERT's optimizer, LAMB and Keras' AdamW."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from official_bert.errors import UserError
from official_bert.optimization.all_reduce_clip import AllReduceClipMixin
from official_bert.optimization.choices import OPTIMIZERS

# Biases and layer normalization are not decayed. These are the names of such variables in Keras; a rule on the number
# of dimensions would miss the biases that some layers keep as matrices.
NOT_DECAYED = frozenset({"bias", "gamma", "beta"})


def get_optimizer(name: str, learning_rate: Any, **settings: Any) -> Any:
    """Returns the optimizer of a name of choices.OPTIMIZERS, with settings of its class; UserError for another name."""
    classes = {"adamw": BertAdamW, "lamb": Lamb, "keras_adamw": KerasAdamW}
    if name not in classes:
        raise UserError(f"unknown optimizer {name!r}; expected one of {', '.join(OPTIMIZERS)}")
    return classes[name](learning_rate, **settings)


@keras.saving.register_keras_serializable(package="official_bert")
class BertAdamW(AllReduceClipMixin, keras.optimizers.Optimizer):
    """The original's AdamWeightDecayOptimizer as a Keras optimizer: Adam with decoupled weight decay.

    For each variable w with gradient g:

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g * g
        w = w - rate * (m / (sqrt(v) + epsilon) + weight_decay_rate * w)

    m and v start at 0. Their bias is corrected only if `adam_bias_correction` is set, since the original does not: at
    step t, counted from 1, m is divided by 1 - beta_1 ** t and v by 1 - beta_2 ** t. Without it the first steps are
    larger, the first one three times. Variables named in `NOT_DECAYED` lack the last term.

    Args:
        learning_rate: a number or schedule.
        beta_1: decay of the mean of gradients.
        beta_2: decay of the mean of their squares.
        epsilon: added to the root.
        weight_decay_rate: share of a weight that is subtracted, times the learning rate.
        clip_norm: the greatest global norm; None for no clipping.
        adam_bias_correction: Whether to correct the bias of m and v. Skipped steps count in t.
    """

    def __init__(
        self,
        learning_rate: Any = 5e-5,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay_rate: float = 0.01,
        clip_norm: float | None = 1.0,
        adam_bias_correction: bool = False,
        name: str = "bert_adam_w",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.weight_decay_rate, self.clip_norm = weight_decay_rate, clip_norm
        self.adam_bias_correction = adam_bias_correction

    def build(self, variables: Sequence[Any]) -> None:
        """Creates the two moments of each variable; under a strategy this must happen within its scope."""
        if self.built:
            return
        super().build(variables)
        self._means, self._squares = self.add_optimizer_variables(variables, ["adam_m", "adam_v"])

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        index = self._get_variable_index(variable)
        learning_rate = learning_rate * self._rate_factor(index)
        mean, square = self._update_moments(index, gradient)
        update = mean / (ops.sqrt(square) + self.epsilon)
        if is_decayed(self._trainable_variables[index]):
            update = update + self.weight_decay_rate * variable
        self.assign_sub(variable, learning_rate * update)

    def apply_summed(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None, only_if: Any = None
    ) -> None:
        if not self.uses_kernel or only_if is not None:
            super().apply_summed(grads, trainable_variables, only_if)
            return
        rate = tf.convert_to_tensor(self.learning_rate)
        decay = rate * self.weight_decay_rate
        # The kernel adds epsilon to the root of a square that is not corrected, and its powers are less exact.
        of_mean, of_square = self._corrections()
        rate, epsilon = rate * (of_square**0.5 / of_mean), self.epsilon * of_square**0.5
        settings = {"beta1": self.beta_1, "beta2": self.beta_2, "epsilon": epsilon}
        settings |= {"beta1_power": 0.0, "beta2_power": 0.0}
        # Tensors, or the graph would have them once for each variable.
        settings = {name: tf.convert_to_tensor(value) for name, value in settings.items()}
        for variable, gradient in zip(trainable_variables or self._trainable_variables, grads, strict=True):
            if gradient is None:
                continue
            index = self._get_variable_index(variable)
            weights, factor = variable.value, self._rate_factor(index)
            if is_decayed(variable):
                weights.assign_sub((decay if factor == 1.0 else decay * factor) * weights)
            tf.raw_ops.ResourceApplyAdam(
                var=weights.handle,
                m=self._means[index].value.handle,
                v=self._squares[index].value.handle,
                lr=rate if factor == 1.0 else rate * factor,
                grad=gradient,
                **settings,
            )
        self.iterations.assign_add(1)

    def _rate_factor(self, index: int) -> float:
        """What the learning rate of a variable is multiplied with."""
        return 1.0

    def _update_moments(self, index: int, gradient: Any) -> tuple[Any, Any]:
        """Updates a variable's two moments with its gradient and returns them, corrected if the optimizer does so."""
        mean = self.beta_1 * self._means[index] + (1.0 - self.beta_1) * gradient
        square = self.beta_2 * self._squares[index] + (1.0 - self.beta_2) * ops.square(gradient)
        self.assign(self._means[index], mean)
        self.assign(self._squares[index], square)
        of_mean, of_square = self._corrections()
        return mean / of_mean, square / of_square

    def _corrections(self) -> list[Any]:
        """Returns 1 - beta ** t of both moments, exact where beta ** t is close to 1; 1 where the bias remains."""
        if not self.adam_bias_correction:
            return [1.0, 1.0]
        step = ops.cast(self.iterations + 1, "float32")
        return [-ops.expm1(step * math.log(beta)) if beta else 1.0 for beta in (self.beta_1, self.beta_2)]

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.pop("weight_decay", None)  # Keras' own, which takes no part
        own = ("beta_1", "beta_2", "epsilon", "weight_decay_rate", "adam_bias_correction")
        return {**config, **{name: getattr(self, name) for name in own}}


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

    def _rate_factor(self, index: int) -> float:
        return self.factors.get(self._trainable_variables[index].path, 1.0)

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
        **kwargs: as BertAdamW's, with its defaults, but with bias correction.
    """

    def __init__(self, learning_rate: Any = 1e-3, name: str = "lamb", **kwargs: Any) -> None:
        super().__init__(learning_rate=learning_rate, name=name, **{"adam_bias_correction": True, **kwargs})

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        index = self._get_variable_index(variable)
        mean, square = self._update_moments(index, gradient)
        update = mean / (ops.sqrt(square) + self.epsilon)
        if is_decayed(self._trainable_variables[index]):
            update = update + self.weight_decay_rate * variable
            update = trust_ratio(variable, update) * update
        self.assign_sub(variable, learning_rate * update)


def trust_ratio(weights: Any, update: Any) -> Any:
    """LAMB's share of the learning rate: the weights' norm by the update's, 1 where either is 0."""
    weights_norm, update_norm = (ops.sqrt(ops.sum(ops.square(value))) for value in (weights, update))
    usable = ops.logical_and(weights_norm > 0.0, update_norm > 0.0)
    return ops.where(usable, weights_norm / ops.where(usable, update_norm, 1.0), 1.0)


@keras.saving.register_keras_serializable(package="official_bert")
class KerasAdamW(AllReduceClipMixin, keras.optimizers.AdamW):
    """keras.optimizers.AdamW with the decay's exclusions of BERT: for comparison.

    It corrects the moments' bias, adds epsilon to a root that is not corrected, and decays before the update rather
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
        """Creates the two moments of each variable; under a strategy this must happen within its scope."""
        if self.built:
            return
        # By the variables themselves: Keras would search in all of a name, so that "beta" excludes more than it means.
        self.exclude_from_weight_decay(var_list=[variable for variable in variables if not is_decayed(variable)])
        super().build(variables)


def is_decayed(variable: Any) -> bool:
    """Whether weight decay applies to the variable."""
    return variable.name not in NOT_DECAYED
