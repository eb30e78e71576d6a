import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

import pytest

import data_gen.options
import official_bert.commands
import tools.reproduce.experiment
import tools.tpu_check.options
import tools.tpu_check.recipes
from official_bert.errors import UserError
from official_bert.utils.flags import ValidatedOptions, option

_MODULES = (data_gen.options, official_bert.commands, tools.reproduce, tools.tpu_check)
_UNLIMITED = {"null_score_diff_threshold", "word_column", "scale", "margin", "max_loss", "max_position_embeddings",
              "max_words", "max_queue", "max_in_flight_bytes"}  # fmt: skip
_BEYOND = {"at least": -1, "greater than": 0, "at most": 1, "less than": 0}


def _option_classes(parent: type = ValidatedOptions) -> Iterator[type]:
    for child in parent.__subclasses__():
        if dataclasses.is_dataclass(child) and not child.__module__.startswith(("tests", "tools.benchmarks")):
            yield child
        yield from _option_classes(child)


def _options() -> list[Any]:
    """Returns every option of every command once, with its class."""
    pairs = [(cls, field) for cls in _option_classes() for field in dataclasses.fields(cls) if "help" in field.metadata]
    return [pytest.param(cls, field, id=f"{cls.__module__}.{cls.__name__}.{field.name}") for cls, field in pairs]


def _get_error(cls: type, name: str, value: Any) -> str:
    """Returns the error of a class whose other options have valid values."""
    instance = object.__new__(cls)
    for field in dataclasses.fields(cls):
        object.__setattr__(instance, field.name, None)
    object.__setattr__(instance, name, value)
    with pytest.raises(UserError) as error:
        ValidatedOptions.__post_init__(instance)
    return str(error.value)


@pytest.mark.parametrize(("cls", "field"), _options())
def test_values_outside_the_limits_and_choices_are_rejected(cls: type, field: dataclasses.Field):
    limits, choices = field.metadata["limits"], field.metadata["choices"]
    for name, limit in limits.items():
        value = limit + _BEYOND[name]
        message = _get_error(cls, field.name, value)
        assert f"--{field.name} is {value};" in message
        assert f"{name} {limit:,}" in message
    if limits:
        for value in (float("nan"), float("inf"), float("-inf")):
            assert f"--{field.name} is {value};" in _get_error(cls, field.name, value)
    if choices:
        for value in ("unheard-of", ["unheard-of"]):
            message = _get_error(cls, field.name, value)
            assert f"--{field.name} is unheard-of;" in message
            assert all(choice in message for choice in choices)


@pytest.mark.parametrize(("cls", "field"), _options())
def test_every_number_has_limits(cls: type, field: dataclasses.Field):
    hint = typing.get_type_hints(cls)[field.name]
    if {int, float} & {hint, *typing.get_args(hint)} and not field.metadata["limits"]:
        assert field.name in _UNLIMITED


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
