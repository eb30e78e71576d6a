"""The file that describes a run, and its comparison with a later start of the same run.

It holds the run's options, and digests of the inputs that the options name. Options declared with
`option(..., resumable=True)` may change when a run is resumed: where the run is stored, which devices it uses, and what
is logged and kept. All other options are locked, so that a new option cannot change a run unnoticed.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from official_bert.errors import UserError
from official_bert.utils import files

Changes = dict[str, tuple[Any, Any]]  # Old and new value by name.


def locked_options(options: type) -> frozenset[str]:
    """Returns the names of the options that may not change when a run is resumed; `options` is a dataclass."""
    return frozenset(field.name for field in dataclasses.fields(options) if not field.metadata.get("resumable", False))


def locked_values(*options: Any) -> dict[str, Any]:
    """Returns the locked options of dataclass instances by name, in the form in which JSON returns them."""
    values = {name: getattr(each, name) for each in options for name in sorted(locked_options(type(each)))}
    return dict(json.loads(json.dumps(values)))


def read_run_file(path: str) -> dict[str, Any]:
    """Returns the description of a run, or {} if the file is missing.

    Raises:
        UserError: If the file does not hold a JSON object.
    """
    return files.read_json_object(path) if files.exists(path) else {}


def write_run_file(path: str, values: Mapping[str, Any]) -> None:
    """Writes the description of a run."""
    files.write_text(path, json.dumps(values, indent=1) + "\n")


def find_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Changes:
    """Returns the values in `now` that differ from the values of the same name in `before`."""
    return {name: (before.get(name), value) for name, value in now.items() if before.get(name) != value}


def describe_changes(changes: Changes, descriptions: Mapping[str, str] | None = None) -> str:
    """Returns the changes for an error message, as in "--name was 1 and is 2; --other was ...".

    `descriptions` replaces the text for values whose names are not flags, by name.
    """
    return "; ".join(
        (descriptions or {}).get(name) or f"--{name} was {old!r} and is {new!r}" for name, (old, new) in changes.items()
    )


def refuse_changes(where: str, changes: Changes, remedy: str, descriptions: Mapping[str, str] | None = None) -> None:
    """Raises a UserError if there are changes.

    Args:
        where: Folder or file of the earlier start.
        changes: Differences between the earlier start and this one.
        remedy: Sentence that tells the user what to do.
        descriptions: See `describe_changes`.
    """
    if changes:
        raise UserError(f"{where} holds a different run: {describe_changes(changes, descriptions)}. {remedy}")
