"""Import paths of an earlier version, which work for one release and warn."""

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def moved(old: str, new: str | Mapping[str, str], renamed: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a module whose contents have moved.

    Args:
        old: the module's name, which users still import.
        new: the module that has all of its contents now; or, of each name that moved, the module that has it.
        renamed: new names by old ones, where names have changed as well.
    """

    def get(name: str) -> Any:
        target = new if isinstance(new, str) else new.get(name)
        if target is None or name.startswith("__"):
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        new_name = (renamed or {}).get(name, name)
        try:
            value = getattr(importlib.import_module(target), new_name)
        except AttributeError as error:
            raise AttributeError(f"module {old!r} has no attribute {name!r}") from error
        warnings.warn(
            f"{old}.{name} is {target}.{new_name} now; the old path goes with the next release",
            DeprecationWarning,
            stacklevel=2,
        )
        return value

    return get
