"""Shared fixtures of the record tests."""

import pathlib

import pytest

from tests.data.record_samples import write


@pytest.fixture
def shards(tmp_path: pathlib.Path) -> list[str]:
    return [write(tmp_path / f"{i}.tfrecord", range(10 * i, 10 * i + 7 + i)) for i in range(5)]
