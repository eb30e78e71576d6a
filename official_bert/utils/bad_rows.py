"""Handles invalid rows of data files: stops with an error, or skips and counts them."""

import collections
import contextlib
import sys
from collections.abc import Iterator
from typing import ClassVar

from official_bert.errors import UserError
from official_bert.utils.counting import pluralize

STOP, SKIP = "stop", "skip"
POLICIES = (STOP, SKIP)

_MAX_SHOWN = 5  # skipped rows of each file that are printed
_MAX_PROBLEM_LENGTH = 500  # characters


def format_position(path: str, line: int | str) -> str:
    """Returns the position of a row for messages, such as "train.csv, line 3".

    Args:
        path: The file.
        line: The line number. For files without lines, a description such as "row 3".
    """
    return f"{path}, line {line}" if isinstance(line, int) else f"{path}, {line}"


class BadRowError(UserError):
    """Raised if a row is invalid. The message describes what was received and what is expected."""


class BadRows:
    """Handles invalid rows: raises an error for the first one, or counts them.

    Args:
        policy: STOP raises a UserError for the first invalid row. SKIP counts invalid rows and prints the first few.
        silent: Whether to print nothing about skipped rows.

    Attributes:
        has_flags: Whether the command has flags such as --text_column and --on_bad_row, so that messages may suggest
            them.
        silent: The argument `silent`.
        counts: Number of skipped rows, by file.
    """

    has_flags: ClassVar[bool] = True

    def __init__(self, policy: str = STOP, silent: bool = False) -> None:
        self._policy = policy
        self.silent = silent
        self.counts: collections.Counter[str] = collections.Counter()
        self._first_problems: dict[str, str] = {}

    def add(self, path: str, line: int | str, problem: str) -> None:
        """Records an invalid row.

        Args:
            path: The file.
            line: The number of the row's first line, counted from 1. For files without lines, a description such as
                "row 3".
            problem: Description of what was received and what is expected.

        Raises:
            UserError: If the policy is STOP.
        """
        if len(problem) > _MAX_PROBLEM_LENGTH:  # it may quote the row
            problem = f"{problem[:_MAX_PROBLEM_LENGTH]}..."
        where = format_position(path, line)
        if self._policy == STOP:
            raise UserError(f"{where}: {problem}; correct it, or pass --on_bad_row=skip to leave such rows out")
        self.counts[path] += 1
        self._first_problems.setdefault(path, f"{where}: {problem}")
        if self.counts[path] <= _MAX_SHOWN and not self.silent:
            print(f"skipped {where}: {problem}", file=sys.stderr)

    @contextlib.contextmanager
    def handle_error(self, path: str, line: int | str) -> Iterator[None]:
        """A context that parses a row. Records the row if a BadRowError is raised (see `add` for the arguments)."""
        try:
            yield
        except BadRowError as error:
            self.add(path, line, str(error))

    def first_reason(self, path: str) -> str:
        """Returns text in parentheses to append to an error message: the number of invalid rows and the first problem.

        Returns "" if the file has no invalid rows.
        """
        if path not in self._first_problems:
            return ""
        return f" ({pluralize(self.counts[path], 'bad row')}; the first: {self._first_problems[path]})"

    def summary(self) -> list[str]:
        """Returns a message for each file that has skipped rows, with their number."""
        return [f"skipped {pluralize(count, 'bad row')} of {path}" for path, count in self.counts.items()]


class NoBadRows(BadRows):
    """A BadRows for commands without --on_bad_row: raises a UserError for every invalid row."""

    has_flags = False

    def add(self, path: str, line: int | str, problem: str) -> None:
        raise UserError(f"{format_position(path, line)}: {problem}")
