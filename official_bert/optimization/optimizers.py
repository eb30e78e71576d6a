"""The optimizers: BERT's AdamW, LAMB, and Keras' AdamW with BERT's exclusions from weight decay."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf
from keras import ops

from official_bert.optimization.all_reduce_clip import AllReduceClipMixin


def get_optimizer(name: str, learning_rate: Any, **settings: Any) -> Any:
    """Creates the optimizer with a name from choices.OPTIMIZERS.

    Args:
        name: "adamw" (BertAdamW), "lamb" or "keras_adamw".
        learning_rate: A number or a schedule.
        settings: Other arguments of BertAdamW. adam_bias_correction is ignored for the other optimizers, which always
            correct the bias of their moments.
    """
    classes = {"adamw": BertAdamW, "lamb": Lamb, "keras_adamw": KerasAdamW}
    if name != "adamw":
        settings.pop("adam_bias_correction", None)
    if name == "keras_adamw" and "weight_decay_rate" in settings:
        settings["weight_decay"] = settings.pop("weight_decay_rate")
    return classes[name](learning_rate, **settings)


@keras.saving.register_keras_serializable(package="official_bert")
class BertAdamW(AllReduceClipMixin, keras.optimizers.Optimizer):
    """The original's AdamWeightDecayOptimizer as a Keras optimizer: Adam with decoupled weight decay.

    For each variable w with gradient g:

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g * g
        w = w - rate * (m / (sqrt(v) + epsilon) + weight_decay_rate * w)

    m and v start at 0. With `adam_bias_correction`, m is divided by 1 - beta_1 ** t and v by 1 - beta_2 ** t at step t
    (counted from 1). The original has no bias correction, so its first step is three times as large. Variables named
    bias, gamma or beta, and variables passed to `exclude_from_weight_decay`, have no weight decay.

    Args:
        learning_rate: A number or a schedule.
        beta_1: Decay rate of the mean of the gradients.
        beta_2: Decay rate of the mean of the squared gradients.
        epsilon: Number added to the square root for numerical stability.
        weight_decay_rate: Fraction of a weight that is subtracted per step, multiplied by the learning rate.
        clip_norm: Maximum global norm of the gradients. None disables clipping.
        adam_bias_correction: Whether to correct the bias of m and v. Skipped steps count in t.
        name: Name of the optimizer.
        kwargs: Other arguments of keras.optimizers.Optimizer, such as use_ema.
    """

    _replaced: ClassVar = {**AllReduceClipMixin._replaced, "weight_decay": "weight_decay_rate"}

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
        super().__init__(learning_rate=learning_rate, clip_norm=clip_norm, name=name, **kwargs)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.weight_decay_rate = weight_decay_rate
        self.adam_bias_correction = adam_bias_correction

    def build(self, variables: Sequence[Any]) -> None:
        """Creates the two moments of each variable.

        Call it in the scope of the distribution strategy, if there is one.
        """
        if self.built:
            return
        super().build(variables)
        self._means, self._squares = self.add_optimizer_variables(variables, ["adam_m", "adam_v"])

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        index = self._get_variable_index(variable)
        learning_rate = learning_rate * self._rate_factor(index)
        mean = self.beta_1 * self._means[index] + (1.0 - self.beta_1) * gradient
        square = self.beta_2 * self._squares[index] + (1.0 - self.beta_2) * ops.square(gradient)
        self.assign(self._means[index], mean)
        self.assign(self._squares[index], square)
        mean_correction, square_correction = self._bias_corrections()
        update = (mean / mean_correction) / (ops.sqrt(square / square_correction) + self.epsilon)
        if self._use_weight_decay(variable):
            update = self._scale_update(variable, update + self.weight_decay_rate * variable)
        self.assign_sub(variable, learning_rate * update)

    def _scale_update(self, variable: Any, update: Any) -> Any:
        """Scales the update of a variable with weight decay, before it is multiplied by the learning rate."""
        return update

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        # Keras' hook that updates all variables. The kernel would ignore the update_step of other subclasses.
        if not self.uses_kernel or type(self) not in (BertAdamW, LayerwiseAdamW):
            super()._backend_update_step(grads, trainable_variables, learning_rate)
            return
        rate = tf.convert_to_tensor(learning_rate)
        decay = rate * self.weight_decay_rate
        # The kernel adds epsilon to the root before bias correction, and computes the powers of beta less exactly.
        mean_correction, square_correction = self._bias_corrections()
        rate = rate * (square_correction**0.5 / mean_correction)
        epsilon = self.epsilon * square_correction**0.5
        settings = {"beta1": self.beta_1, "beta2": self.beta_2, "epsilon": epsilon}
        settings |= {"beta1_power": 0.0, "beta2_power": 0.0}
        # Tensors, because Python numbers would be added to the graph once per variable.
        settings = {name: tf.convert_to_tensor(value) for name, value in settings.items()}
        for variable, gradient in zip(trainable_variables, grads, strict=True):
            index = self._get_variable_index(variable)
            weights, factor = variable.value, self._rate_factor(index)
            if self._use_weight_decay(variable):
                weights.assign_sub((decay if factor == 1.0 else decay * factor) * weights)
            tf.raw_ops.ResourceApplyAdam(
                var=weights.handle,
                m=self._means[index].value.handle,
                v=self._squares[index].value.handle,
                lr=rate if factor == 1.0 else rate * factor,
                grad=gradient,
                **settings,
            )

    def _rate_factor(self, index: int) -> float:
        """Returns the learning rate multiplier of the variable with this index."""
        return 1.0

    def _bias_corrections(self) -> list[Any]:
        """Returns the divisors of both moments: 1 - beta ** t, or 1 without bias correction.

        Exact even if beta ** t is near 1.
        """
        if not self.adam_bias_correction:
            return [1.0, 1.0]
        step = ops.cast(self.iterations + 1, "float32")
        return [-ops.expm1(step * math.log(beta)) if beta else 1.0 for beta in (self.beta_1, self.beta_2)]

    def get_config(self) -> dict[str, Any]:
        own = ("beta_1", "beta_2", "epsilon", "weight_decay_rate", "adam_bias_correction")
        return {**super().get_config(), **{name: getattr(self, name) for name in own}}


@keras.saving.register_keras_serializable(package="official_bert")
class LayerwiseAdamW(BertAdamW):
    """BertAdamW that multiplies the learning rate of each variable by a factor, as for layer-wise decay.

    Args:
        learning_rate: A number or a schedule.
        factors: Factors of the learning rate, by path of the variable. The factor of all other variables is 1.
        name: Name of the optimizer.
        kwargs: Other arguments of BertAdamW.
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
    """LAMB for large batches (You et al., arXiv:1904.00962): algorithm 2 with bias correction and the identity as phi.

    For each variable w with gradient g, at step t counted from 1:

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g * g
        u = m / (1 - beta_1 ** t) / (sqrt(v / (1 - beta_2 ** t)) + epsilon) + weight_decay_rate * w
        w = w - rate * |w| / |u| * u

    Each variable is a layer in the sense of the paper, as in other implementations. The trust ratio `|w| / |u|` is 1 if
    one of the norms is 0. Variables without weight decay have no trust ratio either, as in the TensorFlow Model Garden
    and MLPerf. (NVIDIA's implementation applies the trust ratio to them.) The paper does not clip gradients; pass
    `clip_norm=None` for that. Skipped steps count in t.

    Args:
        learning_rate: A number or a schedule.
        name: Name of the optimizer.
        kwargs: Other arguments of BertAdamW. adam_bias_correction defaults to True.
    """

    def __init__(self, learning_rate: Any = 1e-3, name: str = "lamb", **kwargs: Any) -> None:
        super().__init__(learning_rate=learning_rate, name=name, **{"adam_bias_correction": True, **kwargs})

    def _scale_update(self, variable: Any, update: Any) -> Any:
        return compute_trust_ratio(variable, update) * update


def compute_trust_ratio(weights: Any, update: Any) -> Any:
    """Returns LAMB's trust ratio: the norm of the weights divided by the norm of their update, or 1 if either is 0."""
    weights_norm, update_norm = (ops.sqrt(ops.sum(ops.square(value))) for value in (weights, update))
    is_valid = ops.logical_and(weights_norm > 0.0, update_norm > 0.0)
    return ops.where(is_valid, weights_norm / ops.where(is_valid, update_norm, 1.0), 1.0)


@keras.saving.register_keras_serializable(package="official_bert")
class KerasAdamW(AllReduceClipMixin, keras.optimizers.AdamW):
    """keras.optimizers.AdamW with BERT's exclusions from weight decay, for comparison.

    Unlike BertAdamW, it corrects the bias of the moments, adds epsilon before this correction, and applies weight decay
    before the update.

    Args:
        learning_rate: A number or a schedule.
        weight_decay: Fraction of a weight that is subtracted per step, multiplied by the learning rate.
        epsilon: Number added to the square root for numerical stability.
        clip_norm: Maximum global norm of the gradients. None disables clipping.
        name: Name of the optimizer.
        kwargs: Other arguments of keras.optimizers.AdamW.
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
        settings = {"weight_decay": weight_decay, "epsilon": epsilon, "clip_norm": clip_norm, **kwargs}
        super().__init__(learning_rate=learning_rate, name=name, **settings)
