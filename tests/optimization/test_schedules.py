"""Learning-rate schedules."""

import numpy as np
import pytest
import tensorflow as tf

from official_bert.optimization.schedules import WarmupPolynomialDecay


def list_rates(schedule, steps):
    return [float(schedule(step)) for step in range(steps)]


SQUARE = {"jump": False, "power": 2.0, "end_rate": 0.2}
SCHEDULES = [
    # The warm-up jumps to the line from step zero, or without a jump, the rate decays from the peak.
    ((1.0, 10, 4), {}, [0.0, 0.25, 0.5, 0.75, *(1 - step / 10 for step in range(4, 11)), 0.0]),
    ((1.0, 10, 4), {"jump": False}, [0.0, 0.25, 0.5, 0.75, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0.0]),
    ((2.0, 4), {}, [2.0, 1.5, 1.0, 0.5, 0.0]),
    ((1.0, 3, 6), {}, [*(step / 6 for step in range(6)), 0.0, 0.0]),
    ((1.0, 3, 6), {"jump": False}, [*(step / 6 for step in range(6)), 0.0, 0.0]),
    ((1.0, 10, 2), SQUARE, [0.0, 0.5, *(0.2 + 0.8 * (1 - (step - 2) / 8) ** 2 for step in range(2, 11)), 0.2, 0.2]),
    ((1.0, 10, 2), {"power": 0.5}, [0.0, 0.5, *((1 - step / 10) ** 0.5 for step in range(2, 11)), 0.0]),
]


@pytest.mark.parametrize(("arguments", "settings", "expected"), SCHEDULES)
def test_rate_warms_up_and_decays(arguments, settings, expected):
    assert list_rates(WarmupPolynomialDecay(*arguments, **settings), len(expected)) == pytest.approx(expected)


@pytest.mark.parametrize("settings", [{}, SQUARE])
def test_a_restarted_schedule_has_the_same_rates_as_a_new_one(settings):
    restarted = WarmupPolynomialDecay(0.5, 1, **settings)
    for num_steps, warmup_steps in ((10, 4), (4, 0), (6, 1), (3, 6)):
        restarted.restart(num_steps, warmup_steps)
        new = WarmupPolynomialDecay(0.5, num_steps, warmup_steps, **settings)
        assert list_rates(restarted, 12) == pytest.approx(list_rates(new, 12))
        assert restarted.get_config() == new.get_config()


@pytest.mark.parametrize("jump", [True, False])
def test_linear_decay_equals_the_formula_without_a_power_bit_for_bit(jump):
    peak, steps, warmup = np.float32(8.12e-4), 7506, 2133
    start = 0 if jump else warmup
    for step in range(warmup, steps, 97):
        gone = np.float32(step - start) / np.float32(steps - start)
        assert float(WarmupPolynomialDecay(8.12e-4, steps, warmup, jump=jump)(step)) == peak * (np.float32(1) - gone)


@pytest.mark.slow  # so that TensorFlow's graph optimizer is active
@pytest.mark.parametrize(("num_steps", "warmup_steps"), [(1, 0), (7, 2), (2552, 638), (300, 30)])
def test_restarting_a_schedule_is_exact_and_does_not_retrace(num_steps, warmup_steps):
    restarted, new = WarmupPolynomialDecay(5e-5, 1), WarmupPolynomialDecay(5e-5, num_steps, warmup_steps)
    restarted.restart(3, 1)
    rate, expected = (tf.function(lambda step, schedule=each: schedule(step)) for each in (restarted, new))
    rate(tf.constant(0, tf.int64))
    restarted.restart(num_steps, warmup_steps)
    for step in range(0, num_steps + 2, max(1, num_steps // 50)):
        number = tf.constant(step, tf.int64)
        assert rate(number).numpy() == expected(number).numpy(), step
    assert rate.experimental_get_tracing_count() == 1
    assert WarmupPolynomialDecay(**restarted.get_config())(num_steps // 2) == new(num_steps // 2)
