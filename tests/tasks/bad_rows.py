from collections.abc import Callable
from typing import Any

from official_bert.utils.bad_rows import SKIP, BadRows


class KeptRows(BadRows):
    """Bad rows are passed over, and their problems kept."""

    def __init__(self) -> None:
        super().__init__(SKIP)
        self.problems: list[str] = []

    def add(self, path: str, line: int | str, problem: str) -> None:
        place = f"line {line}" if isinstance(line, int) else line
        self.problems.append(f"{path}, {place}: {problem}")


def read_kept(read: Callable[..., list], path: str, **options: Any) -> tuple[list[Any], list[str]]:
    """Returns the good examples of a file, and the problems of the bad ones."""
    bad_rows = KeptRows()
    return read(path, bad_rows=bad_rows, **options), bad_rows.problems
