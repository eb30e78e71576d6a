import dataclasses

import pytest

from official_bert.errors import UserError
from official_bert.utils.flags import ValidatedOptions, option


@dataclasses.dataclass(frozen=True)
class _Example(ValidatedOptions):
    share: float = option(0.5, "A share.", above=0, max=1)
    count: int | None = option(None, "A count.", min=1_000)
    names: list[str] = option(["a"], "Names.", ("a", "b"))
    sizes: list[str] = option([], "Whole numbers.", items=int, min=1)
    rates: list[str] = option([], "Numbers.", items=float)
    class_: str = option("x", "A name that Python reserves.", ("x",))


@pytest.mark.parametrize(("changes", "message"), [
    ({"share": 0.0}, "--share is 0.0; it must be greater than 0 and at most 1."),
    ({"share": float("nan")}, "--share is nan; it must be a finite number."),
    ({"count": 999}, "--count is 999; it must be at least 1,000."),
    ({"names": ["a", "c"]}, "--names is c; it must be one of a, b."),
    ({"sizes": ["1", "x"]}, "--sizes is x; it must be a whole number."),
    ({"sizes": ["1", "0"]}, "--sizes is 0; it must be at least 1."),
    ({"rates": ["1e-3", "fast"]}, "--rates is fast; it must be a number."),
    ({"rates": ["inf"]}, "--rates is inf; it must be a finite number."),
    ({"class_": "y"}, "--class is y; it must be one of x."),
])  # fmt: skip
def test_an_error_names_flag_value_and_limits(changes: dict, message: str):
    with pytest.raises(UserError) as error:
        _Example(**changes)
    assert str(error.value) == message


def test_values_at_the_limits_are_accepted():
    assert _Example(share=1.0, count=1_000, names=["b", "a"], class_="x").count == 1_000
