"""The error that a person can mend."""

import contextlib
from collections.abc import Iterator

_LONGEST, _LAST = 10_000, 2_000  # characters of a message, and of its end, which says how to mend it


class UserError(ValueError):
    """Something given to the program is wrong: a flag, a file, a record.

    Its message says what was received, what was expected and how to mend it. Scripts print it without a traceback;
    any other exception is a defect of the program and keeps its traceback.

    Args:
        message: what is wrong. Of a very long one, as a quoted value can make it, the middle is left out.
    """

    def __init__(self, message: str = "") -> None:
        left_out = len(message) - _LONGEST
        if left_out > 0:
            message = f"{message[: -left_out - _LAST]}... ({left_out:,} characters) ...{message[-_LAST:]}"
        super().__init__(message)


class CollectedErrors:
    """Collects the UserErrors of several checks, so that all mistakes are named at once, in the order of the checks."""

    def __init__(self) -> None:
        self._messages: list[str] = []

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Keeps a UserError that is raised within this context, and goes on after it."""
        try:
            yield
        except UserError as error:
            if str(error) not in self._messages:
                self._messages.append(str(error))

    def raise_if_any(self) -> None:
        """Raises a UserError with all that was collected; a single one as it was."""
        if len(self._messages) == 1:
            raise UserError(self._messages[0])
        if self._messages:
            lines = "".join(f"\n  {number}. {message}" for number, message in enumerate(self._messages, start=1))
            raise UserError(f"{len(self._messages)} things are wrong:{lines}")
