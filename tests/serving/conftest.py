"""Fixtures of the server tests."""

import pathlib

import pytest

from tests.serving import served_models


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with a versioned model folder for each of served_models.ALL."""
    folder = tmp_path_factory.mktemp("exports")
    for name, write in served_models.ALL.items():
        (folder / name).mkdir()
        write(folder / name)
    return folder
