"""Training records, a configuration, and a finished run."""

import dataclasses
import functools
import pathlib
import random
import shutil

import pytest

from official_bert.modeling.config import BertConfig
from official_bert.pretraining.run import pretrain
from tests.pretraining.pretraining_runs import OptionsMaker, options_for, random_record, write_records


@pytest.fixture(scope="session")
def shared_record_files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two files of 50 records. Tests must not change them."""
    folder, rng = tmp_path_factory.mktemp("records"), random.Random(0)
    paths = []
    for number in range(2):
        paths.append(write_records(folder / f"{number}.tfrecord", [random_record(rng) for _ in range(50)]))
    return paths


@pytest.fixture
def record_files(shared_record_files: list[str], tmp_path: pathlib.Path) -> list[str]:
    return [shutil.copy(path, tmp_path) for path in shared_record_files]


@pytest.fixture
def config_file(tiny_config: BertConfig, tmp_path: pathlib.Path) -> str:
    return write_config(tiny_config, tmp_path)


@pytest.fixture
def make_options(record_files: list[str], config_file: str) -> OptionsMaker:
    """Builds the options of a run on these files from its folder and the differences from `options_for`."""
    return functools.partial(options_for, record_files, config_file)


def write_config(config: BertConfig, folder: pathlib.Path) -> str:
    """Writes a configuration with one block. Tracing the step takes most of the time of a run here."""
    path = folder / "config.json"
    path.write_text(dataclasses.replace(config, num_hidden_layers=1).to_json())
    return str(path)


@pytest.fixture(scope="session")
def shared_run(
    shared_record_files: list[str], tiny_config: BertConfig, tmp_path_factory: pytest.TempPathFactory
) -> pathlib.Path:
    """A finished run with the options of `options_for` and checkpoints at steps 10 and 20. Tests must not change it."""
    folder = tmp_path_factory.mktemp("runs")
    pretrain(options_for(shared_record_files, write_config(tiny_config, folder), folder / "run"))
    return folder / "run"


@pytest.fixture
def finished_run(shared_run: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of `shared_run` that a test may change."""
    shutil.copytree(shared_run, tmp_path / "run")
    return tmp_path / "run"
