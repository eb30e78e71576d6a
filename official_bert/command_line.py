"""Command-line flags from dataclasses: a field's default and help stand in one place, its owner."""

import dataclasses
import os
import sys
import tempfile
import typing
from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags, logging

from official_bert.errors import UserError


def _import_tensorflow_quietly() -> None:
    """Imports TensorFlow without its remarks about the processor, and about GPUs that a machine does not have.

    It writes them to file descriptor 2 before any setting can reach it. They are shown after all if the import fails,
    and by a user who sets TF_CPP_MIN_LOG_LEVEL.
    """
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    kept = os.dup(2)
    with tempfile.TemporaryFile() as remarks:
        os.dup2(remarks.fileno(), 2)
        try:
            import tensorflow  # noqa: F401
        except BaseException:
            remarks.seek(0)
            os.write(kept, remarks.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


_import_tensorflow_quietly()


def option(default: Any, help: str, choices: Sequence[str] | None = None, repeated: bool = False) -> Any:
    """A dataclass field that is also a flag.

    Args:
        default: the default; None makes the flag optional, `dataclasses.MISSING` makes it required.
        help: one sentence for --help.
        choices: the values allowed, for text.
        repeated: for a list: the flag is given once for each value, instead of once with commas between them.
    """
    metadata = {"help": help, "choices": choices, "repeated": repeated}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def _flag(field: Any) -> str:
    """The flag of a field: its name; a field named like a word of Python's ends in an underscore, the flag does not."""
    return str(field.name).removesuffix("_")


def define(options: type) -> None:
    """Defines a flag for each field of the dataclass `options`."""
    hints = typing.get_type_hints(options)
    for field in dataclasses.fields(options):
        kinds = [
            kind for kind in (typing.get_args(hints[field.name]) or (hints[field.name],)) if kind is not type(None)
        ]
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        default: Any = None if field.default is dataclasses.MISSING else field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        text = field.metadata["help"]
        # Under the script's name, so that --help lists the flag.
        owner: Any = {"module_name": sys.argv[0]}
        if field.metadata["repeated"]:
            flags.DEFINE_multi_string(_flag(field), default, text, **owner)
        elif typing.get_origin(hints[field.name]) is list:
            flags.DEFINE_list(_flag(field), default, text, **owner)
        elif field.metadata["choices"]:
            flags.DEFINE_enum(_flag(field), default, field.metadata["choices"], text, **owner)
        else:
            definers: dict[Any, Callable[..., Any]] = {
                bool: flags.DEFINE_bool,
                int: flags.DEFINE_integer,
                float: flags.DEFINE_float,
                str: flags.DEFINE_string,
            }
            definers[kinds[0]](_flag(field), default, text, **owner)
        if required:
            flags.mark_flag_as_required(_flag(field))  # type: ignore[no-untyped-call]


Options = typing.TypeVar("Options")


def read(options: type[Options]) -> Options:
    """Returns the dataclass filled from the parsed flags."""
    values = {field.name: getattr(flags.FLAGS, _flag(field)) for field in dataclasses.fields(options)}  # type: ignore[arg-type]
    return options(**values)


def run(main: Callable[[list[str]], int | None], positional: str | None = None) -> None:
    """Runs a script's main: parses the flags, and shows a UserError as one line, with exit code 1.

    Args:
        main: takes the arguments that are not flags, returns the exit code (None for 0).
        positional: what such arguments are; None where there are none, so that one given is an error.
    """

    def guarded(arguments: list[str]) -> int | None:
        logging.set_verbosity(logging.WARNING)
        try:
            if arguments[1:] and not positional:
                raise UserError(f"unexpected argument {arguments[1]!r}; flags are given as --name=value")
            return main(arguments[1:])
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1

    app.run(guarded)
