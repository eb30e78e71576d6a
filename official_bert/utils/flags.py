"""Options: a dataclass field is a flag, with its default, help, range, choices and group in one place.

    @dataclasses.dataclass(frozen=True)
    class Options(ValidatedOptions):
        input_file: list[str] = option(dataclasses.MISSING, "TFRecord files.", group=DATA)
        learning_rate: float = option(5e-5, "Peak learning rate.", above=0, group=TRAINING)

Modules that define options must not import TensorFlow or other slow packages, so that flags are parsed and --help is
printed without waiting for them.
"""

import dataclasses
import math
import numbers
import operator
import os
import re
import textwrap
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from absl import flags

from official_bert.errors import UserError
from official_bert.utils.counting import refuse_unknown

# The headings of --help, in the order in which a command's fields use them.
DATA, MODEL, TRAINING, EVALUATION, HARDWARE = ("data", "model", "training", "evaluation", "hardware")
OTHER = "flags"

_COLUMNS = 100


def option(
    default: Any,
    help: str,
    choices: Sequence[str] | None = None,
    *,
    min: float | None = None,
    max: float | None = None,
    above: float | None = None,
    below: float | None = None,
    repeated: bool = False,
    items: type[int] | type[float] | None = None,
    group: str | None = None,
    resumable: bool = False,
    shown_default: str | None = None,
) -> Any:
    """Returns a dataclass field that is also a flag.

    Args:
        default: Default value. None makes the flag optional and `dataclasses.MISSING` makes it required.
        help: One sentence for --help, which adds the default and the choices.
        choices: Allowed values of a string, or of each item of a list.
        min: Smallest allowed number.
        max: Largest allowed number.
        above: Number that the value must exceed.
        below: Number that the value must be less than.
        repeated: For a list: whether users repeat the flag for each item. If false, they separate items by commas.
        items: For a list of strings that must be numbers: their type. The limits apply to each item.
        group: Heading in --help: DATA, MODEL, TRAINING, EVALUATION, HARDWARE, or another.
        resumable: Whether a run may be resumed with another value (see runs.run_file).
        shown_default: Description of the default for --help, in place of a default such as None.
    """
    limits = {"at least": min, "greater than": above, "at most": max, "less than": below}
    metadata = {
        "help": help, "choices": choices, "repeated": repeated, "items": items, "group": group, "resumable": resumable,
        "shown_default": shown_default, "limits": {name: limit for name, limit in limits.items() if limit is not None},
    }  # fmt: skip
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


_MEETS_LIMIT: dict[str, Callable[[float, float], bool]] = {
    "at least": operator.ge,
    "greater than": operator.gt,
    "at most": operator.le,
    "less than": operator.lt,
}


class ValidatedOptions:
    """Base class of option dataclasses. Checks every field against the limits and choices given to `option`.

    Subclasses that check relations between fields extend `__post_init__`.

    Raises:
        UserError: If a value is outside its limits, not finite, or not one of the choices.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            value = getattr(self, field.name)
            for item in value if isinstance(value, list) else [value]:
                if expected := _describe_violation(item, field.metadata):
                    raise UserError(f"--{field.name.removesuffix('_')} is {item}; it must be {expected}.")


def _describe_violation(value: Any, metadata: Mapping[str, Any]) -> str | None:
    """Returns what the value of an option must be if it violates a limit, such as "at least 1". None if it is allowed.

    Args:
        value: The value, or one item of a list.
        metadata: The metadata of the dataclass field, which `option` created.
    """
    choices, limits, items = metadata.get("choices"), metadata.get("limits", {}), metadata.get("items")
    if items and value is not None:
        try:
            value = items(value)
        except (ValueError, OverflowError):
            return "a whole number" if items is int else "a number"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            return "a finite number"
        if not all(_MEETS_LIMIT[name](value, limit) for name, limit in limits.items()):
            return " and ".join(f"{name} {limit:,}" for name, limit in limits.items())
    if isinstance(value, str) and choices and value not in choices:
        return f"one of {', '.join(choices)}"
    return None


class _ListParser(flags.ListParser):
    """A flag parser that splits the value at commas. Unlike absl's parser, it allows line breaks within items."""

    def parse(self, argument: str | list[str]) -> list[str]:
        if isinstance(argument, list) or not argument or re.search('(^|,)"', argument):
            return super().parse(argument)  # commas within quotes do not separate
        return [part.strip() for part in argument.split(",")]


@dataclasses.dataclass(frozen=True)
class Flag:
    """A flag of a command, described by a dataclass field that `option` created.

    Attributes:
        name: The name without dashes, and without the underscore at the end of fields such as `from_`.
        field: The name of the field.
        kind: The type of the value, or of each item of a list: bool, int, float or str.
        is_list: Whether the flag takes several values.
        required: Whether the user must pass the flag.
        default: The default. None if the flag is required, or optional without a default value.
        shown_default: The default that --help shows.

    The other attributes are the arguments of `option` with the same names.
    """

    name: str
    field: str
    kind: type
    is_list: bool
    repeated: bool
    required: bool
    default: Any
    shown_default: Any
    choices: Sequence[str] | None
    help: str
    group: str

    def define(self, values: flags.FlagValues) -> None:
        """Defines the flag in absl's `values`."""
        if self.repeated:
            flags.DEFINE_multi_string(self.name, self.default, self.help, flag_values=values)
        elif self.is_list:
            flags.DEFINE(_ListParser(), self.name, self.default, self.help, values, flags.CsvListSerializer(","))
        elif self.choices:
            flags.DEFINE_enum(self.name, self.default, self.choices, self.help, flag_values=values)
        else:
            definers: dict[type, Any] = {bool: flags.DEFINE_bool, int: flags.DEFINE_integer, float: flags.DEFINE_float}
            definers.get(self.kind, flags.DEFINE_string)(self.name, self.default, self.help, flag_values=values)

    def expected(self) -> str:
        """Returns a description of valid values, such as "a whole number", for error messages."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.is_list and not self.repeated:
            return "values separated by commas; a value that begins with a double quote must end with one"
        return {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[self.kind]

    def convert(self, value: Any) -> Any:
        """Converts a Python argument to the type of the flag. Raises a UserError if its type is wrong."""
        if self.is_list:
            is_single = not isinstance(value, Iterable) or isinstance(value, str | bytes)
            items = [] if value is None else [value] if is_single else value
            return [dataclasses.replace(self, is_list=False).convert(item) for item in items]
        if value is None and self.default is None and not self.required:
            return None
        accepted: Any = {bool: bool, int: numbers.Integral, float: numbers.Real, str: str | os.PathLike}[self.kind]
        if not isinstance(value, accepted) or (isinstance(value, bool) and self.kind is not bool):
            raise UserError(f"--{self.name} is {value!r}; it must be {self.expected()}.")
        return os.fspath(value) if self.kind is str else self.kind(value)

    def describe(self) -> str:
        """Returns the paragraph of --help about the flag."""
        value = "|".join(self.choices) if self.choices else {int: "N", float: "X"}.get(self.kind, "TEXT")
        if self.is_list and not self.repeated:
            value += ",..."
        usage = f"--[no]{self.name}" if self.kind is bool else f"--{self.name}={value}"
        default = self.shown_default
        if isinstance(default, list):
            default = ",".join(map(str, default))
        if self.required:
            usage += "  (required)"
        elif self.kind is bool and default is not None:
            usage += f"  (default: {str(default).lower()})"
        elif default not in (None, ""):
            usage += f"  (default: {default})"
        text = textwrap.fill(self.help, _COLUMNS, initial_indent=" " * 6, subsequent_indent=" " * 6)
        return f"  {usage}\n{text}"


def list_flags(options: type, shown_defaults: Mapping[str, Any] | None = None, group: str = OTHER) -> list[Flag]:
    """Returns the flags of a dataclass: one for each field that was created by `option`.

    Args:
        options: The dataclass with the options.
        shown_defaults: Defaults to show in --help in place of None, by field name.
        group: The heading in --help for fields whose `option` has no group.
    """
    hints = typing.get_type_hints(options)
    flags = []
    # Python puts inherited fields first. Here, the fields of mixins such as AdamOptions come last.
    mixins = {field.name for base in options.__bases__[1:] for field in dataclasses.fields(base)}
    for field in sorted(dataclasses.fields(options), key=lambda field: field.name in mixins):
        if "help" not in field.metadata:  # not made by `option`
            continue
        default: Any = None if field.default is dataclasses.MISSING else field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        hint = hints[field.name]
        kinds = [kind for kind in (typing.get_args(hint) or (hint,)) if kind is not type(None)]
        flags.append(
            Flag(
                name=field.name.removesuffix("_"),
                field=field.name,
                kind=kinds[0],
                is_list=typing.get_origin(hint) is list,
                repeated=field.metadata["repeated"],
                required=field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
                default=default,
                shown_default=(shown_defaults or {}).get(field.name, field.metadata["shown_default"] or default),
                choices=field.metadata["choices"],
                help=field.metadata["help"],
                group=field.metadata["group"] or group,
            )
        )
    return flags


def locked_options(options: type) -> frozenset[str]:
    """Returns the names of the options in a dataclass that must not change when a run is resumed."""
    return frozenset(field.name for field in dataclasses.fields(options) if not field.metadata.get("resumable", False))


def convert_arguments(function: str, options: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the keyword arguments of a Python function to the types of the flags in a dataclass.

    Raises:
        UserError: If an argument is unknown or has a wrong type.
    """
    known = {flag.field: flag for flag in list_flags(options)}
    refuse_unknown(function, values, known, {})
    return {name: known[name].convert(value) for name, value in values.items()}


def describe(flags: Sequence[Flag]) -> str:
    """Returns the text of --help about the flags, under the headings of their groups."""
    groups = dict.fromkeys(flag.group for flag in flags)
    return "\n\n".join(
        "\n".join([f"{group}:", *(flag.describe() for flag in flags if flag.group == group)]) for group in groups
    )
