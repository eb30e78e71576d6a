"""Which options may differ when a run is resumed: those declared with `option(..., resumable=True)`.

All others are locked, so that an overlooked option cannot change a run silently. Resumable options set where the run
is stored, which devices it uses, and what is logged and kept.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any


def locked_options(options: type) -> frozenset[str]:
    """Returns the names of the fields of an options dataclass that may not change in the middle of a run."""
    return frozenset(field.name for field in dataclasses.fields(options) if not field.metadata.get("resumable", False))


def locked_values(options: Any) -> dict[str, Any]:
    """Returns the locked options of an instance by name, as JSON gives them back."""
    names = locked_options(type(options))
    return dict(json.loads(json.dumps({name: getattr(options, name) for name in sorted(names)})))


def changed_options(options: Any, before: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns the locked options that differ from those that a run was begun with: old and new value by name."""
    return changed_values(before, locked_values(options))


def changed_values(before: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns the values that differ from those of the same name before: old and new value by name."""
    pairs = {name: (before.get(name), value) for name, value in values.items()}
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}


def described(changes: Mapping[str, tuple[Any, Any]]) -> str:
    """Returns a line on changes for an error: `--name was 1 and is 2; --other was ...`."""
    return "; ".join(f"--{name} was {old!r} and is {new!r}" for name, (old, new) in changes.items())
