"""A fixture that writes a text file."""

import functools
from collections.abc import Callable

import pytest

from tests.make import write_text


@pytest.fixture
def written(tmp_path) -> Callable[[str | bytes], str]:
    """Writes the content of the file `text` and returns its path."""
    return functools.partial(write_text, tmp_path / "text")
