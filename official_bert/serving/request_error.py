"""The error that becomes the answer to a refused request."""

from typing import NoReturn


class RequestError(Exception):
    """A request that gets an error as its answer.

    Args:
        status: the HTTP status.
        message: what was received, what was expected, how to mend it.
        retry_after: seconds after which to try again; None where that would not help.
    """

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after


def refuse(message: str) -> NoReturn:
    """Raises the RequestError of a request that is not as it should be."""
    raise RequestError(400, message)
