import pathlib

import pytest

from official_bert.serving.options import Options
from tests.make import assert_refused


@pytest.mark.parametrize(("options", "message"), [
    ({"model": ["exports/a b"]}, "pass NAME=FOLDER"),
    ({"model": ["size="]}, "pass NAME=FOLDER"),
    ({"model": ["/"]}, "pass NAME=FOLDER"),
    ({"model": ["exports/a", "a=c"]}, "uses the name a twice"),
    ({"model": ["a/b=c"]}, "pass NAME=FOLDER"),
    ({"model": ["a=b", "a=c"]}, "uses the name a twice"),
    ({"max_queue": 10}, "raise --max_queue or lower --max_instances"),
    ({"max_in_flight_bytes": 1000}, "raise --max_in_flight_bytes or lower --max_body_bytes"),
])  # fmt: skip
def test_options_that_cannot_be_are_refused(options: dict, message: str):
    assert_refused(message, Options, **{"model": ["a=b"]} | options)


def test_a_folder_alone_goes_by_its_name(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    models = ["exports/mine", "exports/yours/", "gs://bucket/exports/remote/", "name=exports/other"]
    assert Options(models).folders() == {
        "mine": "exports/mine", "yours": "exports/yours", "remote": "gs://bucket/exports/remote",
        "name": "exports/other",
    }  # fmt: skip
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert Options(["."]).folders() == {"here": "."}
