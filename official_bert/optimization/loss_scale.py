"""Dynamic loss scaling: small gradients do not vanish in float16."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf


class DynamicLossScale:
    """The factor by which the loss is multiplied before the backward pass, and the gradients divided after it.

    float16 ends at 65,504 and loses what is below 6e-8, bfloat16 and float32 do not. So the factor is as large as it
    may be: it doubles after `growth_steps` steps without an overflow, and halves in a step whose gradients overflow,
    which must be skipped. Factors are powers of two, which change no digit. A step differentiates
    `scaled(loss)`, and gives what `unscale` returns to the optimizer; its norm tells `update` whether all was finite.

    keras.optimizers.LossScaleOptimizer does not fit here: it looks for overflows in the gradients of the first replica
    alone, so that it needs summed gradients, but its inner optimizer then sums them again; and clipping would come
    before unscaling.

    Under a strategy it must be made within its scope.

    Args:
        initial: the first factor. The first steps are skipped until it has come down to what the model can bear.
        growth_steps: steps without an overflow after which the factor doubles.

    Attributes:
        variables: what a checkpoint must hold for training to go on the same.
    """

    LEAST, GREATEST = 1.0, 2.0**24  # at 1 it is no scaling; nothing more is won above the other

    def __init__(self, initial: float = 2.0**15, growth_steps: int = 2000) -> None:
        self.growth_steps = growth_steps
        settings = {"trainable": False, "aggregation": "only_first_replica"}
        with keras.name_scope("loss_scale"):
            self._factor = keras.Variable(initial, dtype="float32", name="factor", **settings)
            self._finite_steps = keras.Variable(0, dtype="int32", name="finite_steps", **settings)
        self.variables = [self._factor, self._finite_steps]

    @property
    def factor(self) -> Any:
        """The factor now, a float32 scalar."""
        return tf.convert_to_tensor(self._factor.value)

    def scaled(self, loss: Any) -> Any:
        """Returns the loss to differentiate."""
        return loss * tf.cast(self.factor, loss.dtype)

    def unscale(self, gradients: Sequence[Any]) -> list[Any]:
        """Returns the gradients of the loss itself, dense; None stays None."""
        inverse = 1.0 / self.factor
        return [
            None if gradient is None else tf.convert_to_tensor(gradient) * tf.cast(inverse, gradient.dtype)
            for gradient in gradients
        ]

    def update(self, finite: Any) -> None:
        """Adapts the factor to a step; `finite`, a bool scalar equal on all replicas, is whether its gradients were."""
        finite_steps = tf.where(finite, self._finite_steps.value + 1, 0)
        grows = finite_steps >= self.growth_steps
        change = tf.where(finite, tf.where(grows, 2.0, 1.0), 0.5)
        self._factor.assign(tf.clip_by_value(self.factor * change, self.LEAST, self.GREATEST))
        self._finite_steps.assign(tf.where(grows, 0, finite_steps))
