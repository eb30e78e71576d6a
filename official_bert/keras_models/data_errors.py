"""Converts TensorFlow's errors about invalid data to one-line UserErrors."""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from official_bert.errors import UserError

# Patterns of TensorFlow's messages and the replacements: our own checks, and unchecked values.
_MESSAGES: list[tuple[str, Callable[[Any], str]]] = [
    (r"\bUserError: (.*)$", lambda found: str(found[1])),
    (
        r"Received a label value of (\S+) which is outside the valid range of \[0, (\d+)\)",
        lambda found: f"a label is {found[1]}; expected a number from 0 to {int(found[2]) - 1}",
    ),
    (
        r"indices\[\S*\] = (\S+) is not in \[0, (\d+)\)",
        lambda found: f"x contains the id {found[1]}; expected numbers from 0 to {int(found[2]) - 1}",
    ),
]


@contextlib.contextmanager
def raise_one_line_errors() -> Iterator[None]:
    """In this context, TensorFlow errors about invalid labels or ids become UserErrors.

    Other errors are not changed.
    """
    try:
        yield
    except tf.errors.OpError as error:
        for pattern, format_message in _MESSAGES:
            if found := re.search(pattern, error.message, re.MULTILINE):
                raise UserError(format_message(found)) from error
        raise
