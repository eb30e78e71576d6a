"""Exports of earlier code: batch prediction and the server read them, and they answer as they did."""

import pathlib

import pytest

from official_bert.inference import exports
from official_bert.serving.saved_model import SavedModel
from tests.golden import make_older_models
from tests.golden.comparison import assert_alike, golden, unpacked
from tests.golden.make_older_models import EXPORTS


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with the earlier exports."""
    return unpacked("exports.tar.xz", tmp_path_factory.mktemp("older"))


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_of_earlier_code_answers_as_it_did(name: str, older: pathlib.Path, tmp_path: pathlib.Path):
    answers = make_older_models.answers_of_export(name, older / name, tmp_path)
    assert_alike(answers, golden("answers_of_exports.json")[name])


@pytest.mark.parametrize("name", EXPORTS)
def test_the_server_reads_an_export_of_earlier_code(name: str, older: pathlib.Path):
    model = SavedModel(exports.newest_version(str(older / name)))
    model.warm_up(max_batch_size=2)
    assert model.export_metadata["inputs"] == list(EXPORTS[name])
