"""TensorFlow's errors of many lines on what a user's data hold, in one line."""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from official_bert.errors import UserError

# What TensorFlow says, and how to say it: of checks of ours, in graphs and in Python, and of values without a check.
_WORDS: list[tuple[str, Callable[[Any], str]]] = [
    (r"assertion failed: \[(a \w+ of the data set .*)\]$", lambda found: str(found[1])),
    (r"^UserError: (.*)$", lambda found: str(found[1])),
    (
        r"Received a label value of (\S+) which is outside the valid range of \[0, (\d+)\)",
        lambda found: f"a label is {found[1]}; expected a number from 0 to {int(found[2]) - 1}",
    ),
    (
        r"indices\[\S*\] = (\S+) is not in \[0, (\d+)\)",
        lambda found: f"the ids have {found[1]}; expected numbers from 0 to {int(found[2]) - 1}",
    ),
]


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """Raises a UserError in place of an error of TensorFlow on data; other errors as they are."""
    try:
        yield
    except tf.errors.OpError as error:
        for pattern, words in _WORDS:
            if found := re.search(pattern, error.message, re.MULTILINE):
                raise UserError(words(found)) from error
        raise
