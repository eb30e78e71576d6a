"""The server against its own OpenAPI description, with requests that schemathesis makes up."""

import pathlib
import subprocess
import sys

import pytest

from tests.serving import served_models
from tests.serving.serving_client import Client, running


def test_the_description_names_every_model_with_its_limits(tmp_path: pathlib.Path):
    served_models.question_answering(tmp_path)
    with running({"answers": tmp_path}, max_instances=7) as (_, client):
        description = client.get("/openapi.json").json
    assert {path for path in description["paths"] if path.endswith(":predict")} == {
        f"/v1/models/answers{place}:predict" for place in ("", "/versions/1")
    }
    operation = description["paths"]["/v1/models/answers:predict"]["post"]
    rows, _ = operation["requestBody"]["content"]["application/json"]["schema"]["anyOf"]
    assert rows["properties"]["instances"]["maxItems"] == 7
    assert rows["properties"]["instances"]["items"]["anyOf"][0]["required"] == ["context", "question"]
    assert operation["summary"] == "Answers: answer, end, null_score_difference, probability, start"
    assert "security" not in description


def test_the_description_of_a_guarded_server_asks_for_the_token(tmp_path: pathlib.Path):
    served_models.versioned(tmp_path / "m")
    (tmp_path / "token").write_text("abc")
    with running({"m": tmp_path / "m"}, token_file=str(tmp_path / "token")) as (_, client):
        description = client.get("/openapi.json", Authorization="Bearer abc").json
    assert description["security"] == [{"token": []}]
    assert description["paths"]["/healthz"]["get"]["security"] == []
    assert "security" not in description["paths"]["/metrics"]["get"]


def schemathesis(client: Client, *flags: str) -> str:
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{client.url}/openapi.json", "--no-color",
               "--generation-deterministic", *flags]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_the_server_does_as_its_description_says(tmp_path: pathlib.Path):
    served_models.versioned(tmp_path / "size")
    with running({"size": tmp_path / "size"}, max_instances=20, max_text_bytes=200) as (_, client):
        told = schemathesis(client, "--checks=all", "--max-examples=40")
    assert "No issues found" in told


@pytest.mark.slow
def test_models_of_several_inputs_do_so_too(tmp_path: pathlib.Path):
    served_models.question_answering(tmp_path / "answers")
    served_models.multiple_choice(tmp_path / "endings")
    models = {name: tmp_path / name for name in ("answers", "endings")}
    with running(models, max_instances=20, max_text_bytes=200) as (_, client):
        # No description can say that columns must be of one length, so that some requests it allows are refused.
        schemathesis(client, "--checks=all", "--exclude-checks=positive_data_acceptance", "--max-examples=20",
                     "--include-path-regex=predict")  # fmt: skip
