"""What happens to a row of the data that is wrong: reading stops there, or passes it over and counts."""

import collections
import sys
from typing import ClassVar

from official_bert.errors import UserError
from official_bert.utils.counting import pluralize

STOP, SKIP = "stop", "skip"
POLICIES = (STOP, SKIP)

_MOST_SHOWN = 5  # of each file, that are shown in full
_LONGEST_SHOWN = 500  # characters of what is wrong with a row


def format_position(path: str, line: int | str) -> str:
    """Returns where a row is, by the number of its line or, in files without lines, by what else says it."""
    return f"{path}, line {line}" if isinstance(line, int) else f"{path}, {line}"


class BadRows:
    """Collects the rows that cannot be read.

    Args:
        policy: "stop": the first one is a UserError. "skip": they are counted, and the first ones shown.
        silent: whether to show none.

    Attributes:
        has_flags: Whether the command has the flags of finetune that name columns and skip rows.
        silent: whether to show none.
        counts: how many rows of each file were passed over.
    """

    has_flags: ClassVar[bool] = True

    def __init__(self, policy: str = STOP, silent: bool = False) -> None:
        self._policy = policy
        self.silent = silent
        self.counts: collections.Counter[str] = collections.Counter()
        self._first_reasons: dict[str, str] = {}

    def add(self, path: str, line: int | str, problem: str) -> None:
        """Takes note of a bad row.

        Args:
            path: the file.
            line: the row's first line, from 1; or, in files without lines, what else says where it is.
            problem: what was received and what was expected.

        Raises:
            UserError: the policy is to stop.
        """
        problem = problem if len(problem) <= _LONGEST_SHOWN else f"{problem[:_LONGEST_SHOWN]}..."  # it quotes the row
        where = format_position(path, line)
        if self._policy == STOP:
            raise UserError(f"{where}: {problem}; correct it, or pass --on_bad_row=skip to leave such rows out")
        self.counts[path] += 1
        self._first_reasons.setdefault(path, f"{where}: {problem}")
        if self.counts[path] <= _MOST_SHOWN and not self.silent:
            print(f"skipped {where}: {problem}", file=sys.stderr)

    def first_reason(self, path: str) -> str:
        """Returns the count of a file's bad rows and what is wrong with the first, to end an error; "" for none."""
        if path not in self._first_reasons:
            return ""
        return f" ({pluralize(self.counts[path], 'bad row')}; the first: {self._first_reasons[path]})"

    def summary(self) -> list[str]:
        """Returns a line for each file that has bad rows."""
        return [f"skipped {pluralize(count, 'bad row')} of {path}" for path, count in self.counts.items()]


class NoBadRows(BadRows):
    """Refuses every bad row, where none may be left out."""

    has_flags = False

    def add(self, path: str, line: int | str, problem: str) -> None:
        raise UserError(f"{format_position(path, line)}: {problem}")
