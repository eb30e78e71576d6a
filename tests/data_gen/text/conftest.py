"""Text files of a content."""

import pathlib
from collections.abc import Callable

import pytest


@pytest.fixture
def written(tmp_path: pathlib.Path) -> Callable[[str | bytes], str]:
    def write(content: str | bytes) -> str:
        path = tmp_path / "text"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


Written = Callable[[str | bytes], str]
