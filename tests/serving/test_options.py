import pathlib

import pytest

from official_bert.serving.options import ServingOptions


def test_a_model_without_a_name_gets_the_name_of_its_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    models = ["exports/mine", "exports/yours/", "gs://bucket/exports/remote/", "name=exports/other"]
    assert ServingOptions(models).folders() == {
        "mine": "exports/mine", "yours": "exports/yours", "remote": "gs://bucket/exports/remote",
        "name": "exports/other",
    }  # fmt: skip
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert ServingOptions(["."]).folders() == {"here": "."}
