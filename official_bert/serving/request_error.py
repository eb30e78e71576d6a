"""The error that a request is answered with."""


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
