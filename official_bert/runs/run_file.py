"""Reads and writes the file that describes a run, and compares it with a later start of the same run.

The file contains the run's options, and digests of the inputs that the options name. Options that are declared with
`option(..., resumable=True)` may change when a run is resumed: where the run is stored, which devices it uses, and what
is logged and kept. All other options are locked: by default, a new option must not change.
"""

import json
from collections.abc import Mapping
from typing import Any

from official_bert.errors import UserError
from official_bert.utils import files
from official_bert.utils.flags import locked_options

Changes = dict[str, tuple[Any, Any]]  # Old and new value by name.


def locked_values(*options: Any) -> dict[str, Any]:
    """Returns the values of the locked options in some dataclass instances, by name, as if read from a JSON file."""
    values = {name: getattr(each, name) for each in options for name in sorted(locked_options(type(each)))}
    return dict(json.loads(json.dumps(values)))


def read_run_file(path: str) -> dict[str, Any]:
    """Returns the contents of the file that describes a run, or {} if the file is missing.

    Raises:
        UserError: If the file does not contain a JSON object.
    """
    return files.read_json_object(path) if files.exists(path) else {}


def write_run_file(path: str, values: Mapping[str, Any]) -> None:
    """Writes the file that describes a run."""
    files.write_text(path, json.dumps(values, indent=1) + "\n")


def find_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Changes:
    """Compares the values in `now` with the values of the same names in `before`.

    Returns:
        The old and the new value of each name whose value differs.
    """
    return {name: (before.get(name), value) for name, value in now.items() if before.get(name) != value}


def describe_changes(changes: Changes, descriptions: Mapping[str, str] | None = None) -> str:
    """Describes changes for an error message, as in "--name was 1 and is 2; --other was ...".

    Args:
        changes: The old and the new value, by name.
        descriptions: Texts for changes of values that are not flags, by name.
    """
    return "; ".join(
        (descriptions or {}).get(name) or f"--{name} was {old!r} and is {new!r}" for name, (old, new) in changes.items()
    )


def refuse_changes(where: str, changes: Changes, remedy: str, descriptions: Mapping[str, str] | None = None) -> None:
    """Raises a UserError if there are changes. Returns if `changes` is empty.

    Args:
        where: Folder or file of the earlier start, for the message.
        changes: Old and new values that differ between the earlier start and this one.
        remedy: Sentence that tells the user what to do.
        descriptions: See `describe_changes`.
    """
    if changes:
        raise UserError(f"{where} holds a different run: {describe_changes(changes, descriptions)}. {remedy}")
