"""The learning rate as a function of the step: warm-up and decay, and one schedule after another."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops


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
        *,
        jump: bool = True,
        power: float = 1.0,
        end_rate: float = 0.0,
    ) -> None:
        self.peak, self.num_steps, self.warmup_steps = peak, num_steps, warmup_steps
        self.jump, self.power, self.end_rate = jump, power, end_rate

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
        return dict(vars(self))


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
