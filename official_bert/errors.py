"""The exception for errors that the user can fix, and messages of other errors."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

_Result = TypeVar("_Result")
_LONGEST, _LAST = 10_000, 2_000  # maximum characters of a message, and of its end, which says what to do


def shorten_error(error: Exception) -> str:
    """Returns the message of an error, without the positions in the graph that TensorFlow's messages contain."""
    noise = ("Graph execution error", "Detected at node", "<stack traces", "\t", " ")
    message = re.sub("{{function_node .*?}} ", "", getattr(error, "message", str(error).strip()))
    lines = [line.split(" [Op:")[0] for line in message.splitlines() if line and not line.startswith(noise)]
    return "; ".join(lines) or message


class UserError(ValueError):
    """Raised if something that the user passed is wrong: a flag, an argument, a file or a record.

    The message states what was received, what was expected and what to do. Scripts print it without a traceback. Any
    other exception is a bug in the program and keeps its traceback.

    Args:
        message: The message. If it is longer than 10,000 characters, its middle is left out.
    """

    def __init__(self, message: str = "") -> None:
        left_out = len(message) - _LONGEST
        if left_out > 0:
            message = f"{message[: -left_out - _LAST]}... ({left_out:,} characters) ...{message[-_LAST:]}"
        super().__init__(message)


class CollectedErrors:
    """Collects the UserErrors of several checks, so that all problems are reported together."""

    def __init__(self) -> None:
        self._messages: list[str] = []

    def attempt(self, function: Callable[..., _Result], *arguments: Any) -> _Result | None:
        """Returns the result of a call. If it raises a UserError, stores the error and returns None."""
        try:
            return function(*arguments)
        except UserError as error:
            if str(error) not in self._messages:
                self._messages.append(str(error))
            return None

    def raise_if_any(self) -> None:
        """Raises a UserError that lists all stored messages. Does nothing if there are none."""
        if len(self._messages) == 1:
            raise UserError(self._messages[0])
        if self._messages:
            lines = "".join(f"\n  {number}. {message}" for number, message in enumerate(self._messages, start=1))
            raise UserError(f"{len(self._messages)} errors:{lines}")
