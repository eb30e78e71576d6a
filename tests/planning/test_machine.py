"""How fast steps are on this machine, and in which precision."""

from collections.abc import Iterator
from typing import Any

import pytest

from official_bert.optimization import distribution
from official_bert.optimization.choices import ONE_DEVICE
from official_bert.pretraining import cost
from planning import machine, recipe
from planning.machine import Speed

CONFIG = recipe.SIZES[0].config(100)
BOTH = ("float32", "bfloat16")


@pytest.fixture(autouse=True)
def unmeasured() -> Iterator[None]:
    machine._precisions.cache_clear()
    yield
    machine._precisions.cache_clear()


@pytest.mark.parametrize(
    ("rates", "compiles_parts", "precisions"),
    [
        ((1.0, 1.1), True, BOTH), ((1.0, 1.0), True, BOTH[:1]), ((2.0, 1.0), True, BOTH[:1]),
        ((1.0, 9.0), False, BOTH[:1]),
    ],
)  # fmt: skip
def test_bfloat16_is_measured_on_a_cpu_whose_products_are_faster_in_it(
    monkeypatch: pytest.MonkeyPatch, rates: tuple[float, float], compiles_parts: bool, precisions: tuple[str, ...]
):
    monkeypatch.setattr(cost, "matmul_rate", lambda _, dtype: rates[BOTH.index(dtype)])
    monkeypatch.setattr(distribution, "compiles_parts", lambda _: compiles_parts)
    asked = []

    def measure(*given: Any) -> Speed:
        asked.append(given)
        return Speed(1.0, 1.0, given[-1])

    monkeypatch.setattr(machine, "_measure", measure)
    clock = iter(range(9)).__next__
    assert [each.dtype for each in machine.measure_each(CONFIG, recipe.PART, False, clock)] == list(precisions)
    assert asked == [(CONFIG, recipe.PART, False, clock, dtype) for dtype in precisions]


@pytest.mark.parametrize(("seconds", "fastest"), [((0.2, 0.1), "bfloat16"), ((0.2, 0.3), "float32")])
def test_the_precision_with_the_shorter_steps_is_taken(
    monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, float], fastest: str
):
    starts = (5.0, 50.0) if fastest == "bfloat16" else (50.0, 5.0)  # which is not looked at
    speeds = [Speed(*each) for each in zip(starts, seconds, BOTH, strict=True)]
    monkeypatch.setattr(machine, "measure_each", lambda *_: speeds)
    assert machine.measure(CONFIG, recipe.PART, True).dtype == fastest


@pytest.mark.parametrize("dtype", BOTH)
def test_steps_are_measured_as_the_commands_compile_them(monkeypatch: pytest.MonkeyPatch, dtype: str):
    asked: dict[str, Any] = {}

    class Pretrainer:
        """One that takes three seconds to be built, and half a second for a step."""

        now = 0.0

        def __init__(self, **given: Any) -> None:
            asked.update(given)
            self.train([], 6)

        def train(self, _: object, steps: int) -> None:
            Pretrainer.now += 0.5 * steps

    monkeypatch.setattr(machine, "Pretrainer", Pretrainer)
    speed = machine._measure(CONFIG, recipe.PART, False, lambda: Pretrainer.now, dtype)
    assert speed == Speed(3.5, 0.5, dtype)
    assert asked["dtype"] == {"float32": "float32", "bfloat16": "mixed_bfloat16"}[dtype]
    assert asked["jit_compile"] is (dtype == "float32")
    assert asked["compile_parts"] == distribution.compiles_parts(distribution.get_strategy(ONE_DEVICE))
    assert asked["next_sentence"] is False
