"""Learning-rate schedules: warmup with polynomial decay, and a sequence of schedules."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops


@keras.saving.register_keras_serializable(package="official_bert")
class WarmupPolynomialDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warmup from 0 to the peak learning rate, followed by polynomial decay to the end rate.

    The decay is `end_rate + (peak - end_rate) * x ** power`, where x falls linearly from 1 to 0. As in the original, x
    is 1 at step 0, so the rate drops at the end of the warmup: with linear decay, from `peak` to `peak * (1 -
    warmup_steps / num_steps)`. With `jump=False`, x is 1 at the end of the warmup, so the rate does not drop. With a
    warmup, the rate of the first step is 0.

    Args:
        peak: Maximum learning rate.
        num_steps: Step at which the decay ends. Later steps use `end_rate`.
        warmup_steps: Number of warmup steps.
        jump: Whether the decay starts at step 0, as in the original, instead of after the warmup.
        power: Exponent of the decay. 1 is linear decay.
        end_rate: Learning rate after the decay.
    """

    def __init__(
        self,
        peak: float,
        num_steps: int,
        warmup_steps: int = 0,
        *,
        jump: bool = True,
        power: float = 1.0,
        end_rate: float = 0.0,
    ) -> None:
        self.peak, self.num_steps, self.warmup_steps = peak, num_steps, warmup_steps
        self.jump, self.power, self.end_rate = jump, power, end_rate
        self._variables: list[keras.Variable] = []

    def restart(self, num_steps: int, warmup_steps: int) -> None:
        """Changes the number of steps and of warmup steps, also for functions that were already traced.

        Functions must be traced after the first call, which creates variables. Make the first call in the scope of the
        distribution strategy.
        """
        self.num_steps, self.warmup_steps = num_steps, warmup_steps
        start = self._get_start()
        one, peak = np.float32(1.0), np.float32(self.peak)
        slope = peak * (one / np.float32(max(warmup_steps, 1)))
        values = {"start": start, "inverse_length": one / np.float32(num_steps - start)}
        values |= {"warmup_steps": warmup_steps, "slope": slope}
        if not self._variables:
            settings = {"dtype": "float32", "trainable": False, "aggregation": "only_first_replica"}
            self._variables = [keras.Variable(0.0, name=name, **settings) for name in values]
        for variable, value in zip(self._variables, values.values(), strict=True):
            variable.assign(value)

    def _get_start(self) -> int:
        return 0 if self.jump else min(self.warmup_steps, self.num_steps - 1)

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, "float32")
        warmup_steps: Any = self.warmup_steps
        if self._variables:
            # The same bits as below, because TensorFlow's graph optimizer turns divisions by constants into products.
            start, inverse_length, warmup_steps, slope = self._variables
            done, warmup_rate = (step - start) * inverse_length, step * slope
        else:
            done = (step - self._get_start()) / (self.num_steps - self._get_start())
            warmup_rate = self.peak * step / max(warmup_steps, 1)
        left = 1.0 - ops.clip(done, 0.0, 1.0)
        if self.power != 1.0:  # Linear decay then has the same bits on every device.
            left = ops.power(left, self.power)
        rate = self.end_rate + (self.peak - self.end_rate) * left
        if self._variables or warmup_steps:
            rate = ops.where(step < warmup_steps, warmup_rate, rate)
        return rate

    def get_config(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_variables"}


class PhasedSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A sequence of schedules, such as one for each sequence length. Each one counts steps from the start of its phase.

    Args:
        phases: First step and schedule of each phase, in order. The first phase starts at step 0.
    """

    def __init__(self, phases: Sequence[tuple[int, Any]]) -> None:
        self.phases = list(phases)

    def __call__(self, step: Any) -> Any:
        rate = self.phases[0][1](step)
        for first, schedule in self.phases[1:]:
            rate = ops.where(ops.cast(step, "int64") >= first, schedule(step - first), rate)
        return rate
