import dataclasses

import pytest

from official_bert.utils.flags import ValidatedOptions, option
from tests.make import assert_rejected


@dataclasses.dataclass(frozen=True)
class _Example(ValidatedOptions):
    share: float = option(0.5, "A share.", above=0, max=1)
    count: int | None = option(None, "A count.", min=1_000)
    names: list[str] = option(["a"], "Names.", ("a", "b"))
    sizes: list[str] = option([], "Whole numbers.", items=int, min=1)
    rates: list[str] = option([], "Numbers.", items=float)
    class_: str = option("x", "A name that Python reserves.", ("x",))


@pytest.mark.parametrize(("changes", "names"), [
    ({"share": 0.0}, ("--share", 0.0, 0, 1)),
    ({"share": float("nan")}, ("--share", "nan", "finite")),
    ({"count": 999}, ("--count", 999, "1,000")),
    ({"names": ["a", "c"]}, ("--names", "c", "a, b")),
    ({"sizes": ["1", "x"]}, ("--sizes", "x", "whole")),
    ({"sizes": ["1", "0"]}, ("--sizes", 0, 1)),
    ({"rates": ["1e-3", "fast"]}, ("--rates", "fast", "number")),
    ({"rates": ["inf"]}, ("--rates", "inf", "finite")),
    ({"class_": "y"}, ("--class", "y", "x")),
])  # fmt: skip
def test_an_error_names_flag_value_and_limits(changes: dict, names: tuple[object, ...]):
    assert_rejected(names, lambda: _Example(**changes))


def test_values_at_the_limits_are_accepted():
    assert _Example(share=1.0, count=1_000, names=["b", "a"], class_="x").count == 1_000
