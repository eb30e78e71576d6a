"""The error that a request is answered with, and what refuses the same over HTTP and gRPC."""

from typing import NoReturn

from official_bert.serving.options import Options


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


def check_text(value: bytes, what: str, is_utf8: bool, options: Options) -> None:
    """Refuses a string that is too long or, where it must be, not UTF-8.

    Args:
        value: the string.
        what: of which input, and what it has, for errors: "text has a text".
        is_utf8: whether it must be UTF-8.
        options: what is too long.
    """
    if len(value) > options.max_text_bytes:
        refuse(f"{what} of {len(value)} bytes; at most {options.max_text_bytes} are taken")
    if is_utf8:
        try:
            value.decode()
        except UnicodeDecodeError as error:
            refuse(f"{what} that is not UTF-8: byte 0x{value[error.start]:02x} at {error.start}")
