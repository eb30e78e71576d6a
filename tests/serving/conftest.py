"""Fixtures of the server tests."""

import asyncio
import inspect
import pathlib

import pytest

from tests.serving import served_models
from tests.serving.serving_client import running


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with a versioned model folder for each of served_models.ALL."""
    folder = tmp_path_factory.mktemp("exports")
    for name, write in served_models.ALL.items():
        (folder / name).mkdir()
        write(folder / name)
    return folder


@pytest.fixture(scope="session")
def client(exports: pathlib.Path):
    """The client of a server of all these models, with small limits."""
    limits = {"max_instances": 8, "max_text_bytes": 1000, "max_body_bytes": 20_000}
    with running({name: exports / name for name in served_models.ALL}, **limits) as (_, client):
        yield client


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs an asynchronous test in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), timeout=60))
    return True
