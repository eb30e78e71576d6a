import json
import pathlib
import shutil

import pytest

from official_bert.export.options import ONNX
from official_bert.inference import exports as layout
from official_bert.inference import reference_answers
from official_bert.kinds.names import QUESTION_ANSWERING
from official_bert.serving.check_export import check
from official_bert.serving.options import TOKEN_VARIABLE, CheckOptions
from tests.make import assert_mentions, assert_rejected, refusal
from tests.serving.serving_client import running


@pytest.fixture(scope="module")
def exported(export_kind) -> pathlib.Path:
    """The export folder of a question answering model, the kind with the most outputs."""
    return pathlib.Path(export_kind(QUESTION_ANSWERING, ONNX)).parent


@pytest.fixture
def other(exported: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """The same export with different stored answers."""
    folder = shutil.copytree(exported, tmp_path / "exports")
    path = folder / "1" / layout.REPLAY_FILE
    content = json.loads(path.read_text())
    content["answers"]["start"] = [start + 1 for start in content["answers"]["start"]]
    content["margins"] = [1.0] * len(content["margins"])
    path.write_text(json.dumps(content))
    (folder / "1" / "checksums.json").unlink()
    return folder


def test_check_export_reproduces_the_stored_answers(exported: pathlib.Path, other: pathlib.Path):
    count = len(reference_answers.read(str(exported / "1")))
    assert check(CheckOptions(), str(exported)).startswith(f"{exported} answers {count} texts as predict did when")
    first, *lines = refusal(check, CheckOptions(), str(other)).split("\n  ")
    assert_mentions(first, other)
    assert len(lines) == 6
    assert_mentions(lines[0], '{"question"')
    (other / "1" / layout.REPLAY_FILE).unlink()
    assert_rejected((other / "1", layout.REPLAY_FILE), check, CheckOptions(), str(other))
    assert str(exported / "1" / layout.REPLAY_FILE) in layout.list_model_files(str(exported / "1"))  # has a checksum


def test_check_export_sends_the_token(exported: pathlib.Path, other: pathlib.Path, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    with running({"questions": exported}) as (_, client):
        url = f"{client.url}/v1/models/questions"
        for place in (url, f"{url}/versions/1:predict"):
            assert "texts as predict did" in check(CheckOptions(str(exported)), place)
        assert_rejected((url, "start"), check, CheckOptions(str(other)), url)
        assert_rejected(('{"question"', 404), check, CheckOptions(str(exported)), f"{client.url}/v1/models/none")
        monkeypatch.delenv(TOKEN_VARIABLE)
        assert_rejected((f"{url}:predict", 401, TOKEN_VARIABLE), check, CheckOptions(str(exported)), url)
    assert_rejected((f"{url}:predict", "http://HOST:PORT/v1/models/NAME"), check, CheckOptions(str(exported)), url)
    assert_rejected((url, "--export_dir"), check, CheckOptions(), url)
    assert_rejected(("--export_dir", "URL", exported), check, CheckOptions(str(exported)), str(exported))
