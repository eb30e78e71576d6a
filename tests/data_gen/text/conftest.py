"""A fixture that writes text files with given content."""

import pathlib
from collections.abc import Callable

import pytest

from tests.make import write_text


@pytest.fixture
def written(tmp_path: pathlib.Path) -> Callable[[str | bytes], str]:
    def write(content: str | bytes) -> str:
        return write_text(tmp_path / "text", content)

    return write


Written = Callable[[str | bytes], str]
