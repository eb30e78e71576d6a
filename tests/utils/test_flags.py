import dataclasses

import pytest

from official_bert.utils.flags import ValidatedOptions, option
from tests.make import assert_refused


@dataclasses.dataclass(frozen=True)
class _Example(ValidatedOptions):
    share: float = option(0.5, "A share.", above=0, max=1)
    count: int | None = option(None, "A count.", min=1_000)
    names: list[str] = option(["a"], "Names.", ("a", "b"))
    sizes: list[str] = option([], "Whole numbers.", items=int, min=1)
    rates: list[str] = option([], "Numbers.", items=float)
    class_: str = option("x", "A name that Python reserves.", ("x",))


@pytest.mark.parametrize(("changes", "pattern"), [
    ({"share": 0.0}, "--share is 0.0;.*greater than 0.*at most 1"),
    ({"share": float("nan")}, "--share is nan;.*finite"),
    ({"count": 999}, "--count is 999;.*at least 1,000"),
    ({"names": ["a", "c"]}, "--names is c;.*a, b"),
    ({"sizes": ["1", "x"]}, "--sizes is x;.*a whole number"),
    ({"sizes": ["1", "0"]}, "--sizes is 0;.*at least 1"),
    ({"rates": ["1e-3", "fast"]}, "--rates is fast;.*a number"),
    ({"rates": ["inf"]}, "--rates is inf;.*finite"),
    ({"class_": "y"}, "--class is y;.*one of x"),
])  # fmt: skip
def test_an_error_names_flag_value_and_limits(changes: dict, pattern: str):
    assert_refused(pattern, _Example, **changes)


def test_values_at_the_limits_are_accepted():
    assert _Example(share=1.0, count=1_000, names=["b", "a"], class_="x").count == 1_000
