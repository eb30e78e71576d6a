"""How a request is refused."""


class RefusedError(Exception):
    """A request that gets no answer, and why.

    Args:
        status: the HTTP status.
        message: what was received, what was expected, how to mend it.
        retry_after: seconds after which to try again; None where that would not help.
    """

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after
