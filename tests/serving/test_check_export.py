import json
import pathlib
import shutil

import pytest

from official_bert.checkpoints import checksums
from official_bert.errors import UserError
from official_bert.export.options import ONNX
from official_bert.inference import exports as layout
from official_bert.inference import replays
from official_bert.kinds.names import QUESTION_ANSWERING
from official_bert.serving.check_export import check
from official_bert.serving.options import TOKEN_VARIABLE, CheckOptions
from tests.export.exported_models import export, save_finetuned
from tests.make import assert_refused
from tests.serving.serving_client import running


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The export folder of a question answering model, the kind with the most outputs. Tests must not change it."""
    folder = tmp_path_factory.mktemp("checked")
    model_dir = save_finetuned(folder / "model", QUESTION_ANSWERING)
    export(model_dir, str(folder / "exports"), ONNX)
    return folder / "exports"


@pytest.fixture(scope="module")
def other(exported: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The same export with different stored answers."""
    folder = shutil.copytree(exported, tmp_path_factory.mktemp("other") / "exports")
    path = folder / "1" / layout.REPLAY_FILE
    content = json.loads(path.read_text())
    content["answers"]["start"] = [start + 1 for start in content["answers"]["start"]]
    content["margins"] = [1.0] * len(content["margins"])
    path.write_text(json.dumps(content))
    (folder / "1" / checksums.CHECKSUM_FILE).unlink()
    checksums.write(str(folder / "1"), [layout.ONNX_FILE], {})
    return folder


def test_a_folder_answers_as_it_did_when_it_was_written(exported: pathlib.Path):
    count = len(replays.read(str(exported / "1")))
    assert check(CheckOptions(), str(exported)).startswith(f"{exported} answers {count} texts as predict did when")


def test_a_folder_that_answers_otherwise_is_an_error_that_shows_some_texts(other: pathlib.Path):
    with pytest.raises(UserError, match="has different answers") as error:
        check(CheckOptions(), str(other))
    first, *lines = str(error.value).split("\n  ")
    assert first == f"{other} has different answers:"
    assert len(lines) == 6
    assert lines[0].startswith('for {"question": ')
    assert lines[-1].startswith("and ")


def test_a_damaged_export_and_one_without_texts_are_errors(exported: pathlib.Path, tmp_path: pathlib.Path):
    damaged = shutil.copytree(exported, tmp_path / "damaged")
    (damaged / "1" / layout.REPLAY_FILE).unlink()
    assert_refused(r"replay\.json", check, CheckOptions(), str(damaged))


def test_our_server_is_asked_with_its_token(exported: pathlib.Path, other: pathlib.Path, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    with running({"questions": exported}) as (_, client):
        url = f"{client.url}/v1/models/questions"
        assert "texts as predict did" in check(CheckOptions(str(exported)), url)
        assert "texts as predict did" in check(CheckOptions(str(exported)), f"{url}/versions/1:predict")
        assert_refused(", start is ", check, CheckOptions(str(other)), url)
        assert_refused(r"rejects \{.*: 404 ", check, CheckOptions(str(exported)), f"{client.url}/v1/models/none")
        monkeypatch.delenv(TOKEN_VARIABLE)
        assert_refused(r": 401 the bearer token is missing or wrong", check, CheckOptions(str(exported)), url)
    assert_refused("does not answer", check, CheckOptions(str(exported)), url)


def test_what_to_ask_must_be_clear(exported: pathlib.Path):
    assert_refused("also pass --export_dir", check, CheckOptions(), "http://localhost:1/v1/models/a")
    assert_refused("requires the URL of a server", check, CheckOptions(str(exported)), str(exported))


def test_the_replay_is_among_the_files_whose_damage_is_found(exported: pathlib.Path):
    assert str(exported / "1" / layout.REPLAY_FILE) in layout.list_model_files(str(exported / "1"))
