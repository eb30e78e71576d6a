"""Training records, a configuration, and a finished run."""

import pathlib
import random
import shutil

import pytest

from official_bert.optimization.distribution import get_strategy
from official_bert.pretraining.run import PretrainingRun, pretrain
from tests.make import tiny_config, write_text
from tests.pretraining.pretraining_runs import make_run_options, random_record, write_records


@pytest.fixture(scope="session")
def shared_record_files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two files of 50 records. Tests must not change them."""
    folder, rng = tmp_path_factory.mktemp("records"), random.Random(0)
    return [write_records(folder / f"{name}.tfrecord", [random_record(rng) for _ in range(50)]) for name in (0, 1)]


@pytest.fixture
def record_files(shared_record_files: list[str], tmp_path: pathlib.Path) -> list[str]:
    return [shutil.copy(path, tmp_path) for path in shared_record_files]


@pytest.fixture(scope="session")
def config_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A configuration with one block. Tracing the step takes most of the time of a run here."""
    return write_text(tmp_path_factory.mktemp("config") / "config.json", tiny_config(num_hidden_layers=1).to_json())


@pytest.fixture
def make_options(record_files, config_file, tmp_path):
    """Builds options from a folder in `tmp_path`, the model's configuration and differences from `make_run_options`."""

    def make(folder="run", config=None, **changes):
        path = write_text(tmp_path / "config.json", config.to_json()) if config else config_file
        return make_run_options(record_files, path, tmp_path / folder, **changes)

    return make


@pytest.fixture
def eager_steps(monkeypatch):
    """Takes steps without a graph, which saves time if they are few."""
    monkeypatch.setattr("tensorflow.function", lambda function, **_: function)


@pytest.fixture
def set_up_run(make_options):
    """Sets up a run, without a step, from the arguments of `make_options`."""
    return lambda **changes: PretrainingRun(make_options(**changes), get_strategy("one_device"))


@pytest.fixture(scope="session")
def shared_run(shared_record_files, config_file, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A finished run of `make_run_options` with checkpoints at steps 10 and 20. Tests must not change it."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    pretrain(make_run_options(shared_record_files, config_file, folder))
    return folder


@pytest.fixture
def finished_run(shared_run: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of `shared_run` that a test may change, in the default folder of `make_options`."""
    return shutil.copytree(shared_run, tmp_path / "run")
