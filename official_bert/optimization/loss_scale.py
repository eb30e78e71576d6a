"""Dynamic loss scaling, which prevents small gradients from vanishing in float16."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf


class DynamicLossScale:
    """Dynamic loss scaling: a factor multiplies the loss before the backward pass and divides the gradients after it.

    float16 overflows above 65,504 and loses values below 6e-8, so the factor should be as large as possible. It doubles
    after `growth_steps` steps without an overflow, and halves if gradients overflow; that step must be skipped. Factors
    are powers of two, which cause no rounding. A training step differentiates `scale(loss)`, passes the result of
    `unscale` to the optimizer, and passes to `update` whether the norm of the gradients is finite.

    keras.optimizers.LossScaleOptimizer cannot be used instead. It checks only the first replica for overflows, so it
    needs summed gradients, but its inner optimizer sums them again. It also clips before it unscales.

    Create it in the scope of the distribution strategy, if there is one.

    Args:
        initial: Initial factor. If it is too large for the model, the first steps are skipped until it is small enough.
        growth_steps: Number of steps without an overflow after which the factor doubles.

    Attributes:
        variables: Variables that a checkpoint must contain to resume exactly.
    """

    MIN, MAX = 1.0, 2.0**24  # 1 means no scaling. Factors larger than MAX have no benefit.

    def __init__(self, initial: float = 2.0**15, growth_steps: int = 2000) -> None:
        self._initial, self.growth_steps = initial, growth_steps
        settings = {"trainable": False, "aggregation": "only_first_replica"}
        with keras.name_scope("loss_scale"):
            self._factor = keras.Variable(initial, dtype="float32", name="factor", **settings)
            self._finite_steps = keras.Variable(0, dtype="int32", name="finite_steps", **settings)
        self.variables = [self._factor, self._finite_steps]

    def restart(self) -> None:
        """Resets the factor and the count of finite steps to their initial values."""
        self._factor.assign(self._initial)
        self._finite_steps.assign(0)

    @property
    def factor(self) -> Any:
        """The current factor, a float32 scalar."""
        return tf.convert_to_tensor(self._factor.value)

    def scale(self, loss: Any) -> Any:
        """Multiplies the loss by the factor, before it is differentiated."""
        return loss * tf.cast(self.factor, loss.dtype)

    def unscale(self, gradients: Sequence[Any]) -> list[Any]:
        """Divides gradients by the factor, and makes them dense. None stays None."""
        inverse = 1.0 / self.factor
        return [
            None if gradient is None else tf.convert_to_tensor(gradient) * tf.cast(inverse, gradient.dtype)
            for gradient in gradients
        ]

    def update(self, finite: Any) -> None:
        """Doubles or halves the factor after a step if necessary.

        Args:
            finite: Whether all gradients are finite, a bool scalar that is equal on all replicas.
        """
        finite_steps = tf.where(finite, self._finite_steps.value + 1, 0)
        grows = finite_steps >= self.growth_steps
        change = tf.where(finite, tf.where(grows, 2.0, 1.0), 0.5)
        self._factor.assign(tf.clip_by_value(self.factor * change, self.MIN, self.MAX))
        self._finite_steps.assign(tf.where(grows, 0, finite_steps))
