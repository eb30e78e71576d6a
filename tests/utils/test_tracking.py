"""Runs in MLflow: against its own server, and what happens where it fails."""

import contextlib
import importlib.util
import os
import pathlib
import socket
import subprocess
import sys
import time
import types
import urllib.request

import pytest

from official_bert.errors import UserError
from official_bert.utils.tracking import tracked
from official_bert.utils.training_log import TRAIN, TrainingLog


class BrokenClient:
    """A client of MLflow whose server goes away after the first measurement."""

    measured = 0

    def get_experiment_by_name(self, _):
        return types.SimpleNamespace(experiment_id="1")

    def create_run(self, *_, **__):
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="a"))

    def log_batch(self, *_, **__):
        BrokenClient.measured += 1
        if BrokenClient.measured > 1:
            raise ConnectionError("no route\nto host")

    def set_terminated(self, *_):
        raise AssertionError("nothing more is asked of a tracker that has failed")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    entities = types.SimpleNamespace(Metric=lambda *values: values)
    module = types.SimpleNamespace(
        entities=entities, get_tracking_uri=lambda: "http://there", MlflowClient=BrokenClient
    )
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.setattr(BrokenClient, "measured", 0)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    return module


@pytest.mark.usefixtures("stand_in")
def test_a_tracker_that_fails_is_said_once_and_the_log_goes_on(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    with tracked("mlflow", str(tmp_path)) as tracker:
        log = TrainingLog(str(tmp_path), 0, tracker)
        for step in range(1, 5):
            log.write(TRAIN, step, {"loss": 1.0})
        tracker.files([str(tmp_path)], "model")
    assert capsys.readouterr().out == "note: mlflow gets nothing more of this run: no route\n"
    assert BrokenClient.measured == 2
    assert len((tmp_path / "train.jsonl").read_text().splitlines()) == 4


def test_a_tracker_that_cannot_be_reached_is_an_error_before_training(
    stand_in: types.SimpleNamespace, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    def unreachable() -> None:
        raise ConnectionError("refused")

    monkeypatch.setattr(stand_in, "MlflowClient", unreachable)
    with (
        pytest.raises(UserError, match=r"no run can be kept at http://there: refused; set MLFLOW_TRACKING_URI"),
        tracked("mlflow", str(tmp_path)),
    ):
        pass
    (tmp_path / "tracked_run.json").write_text('{"tracker": "mlflow", "run_id": "a"}')
    with (
        pytest.raises(UserError, match=r"to begin another tracked run, remove .*tracked_run\.json"),
        tracked("mlflow", str(tmp_path)),
    ):
        pass


@pytest.mark.slow
def test_a_run_is_kept_by_a_server_and_goes_on_there(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    if not (importlib.util.find_spec("mlflow") and importlib.util.find_spec("flask")):
        pytest.skip("the package mlflow, which has the server, is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
    command = [
        sys.executable, "-m", "mlflow", "server", f"--backend-store-uri=sqlite:///{tmp_path}/server.db",
        f"--artifacts-destination={tmp_path}/artifacts", f"--port={address.rpartition(':')[2]}", "--workers=1",
    ]  # fmt: skip
    # In a session of its own, since it starts workers.
    with open(tmp_path / "server.log", "w") as output:
        server = subprocess.Popen(
            command, cwd=tmp_path, stdout=output, stderr=output, start_new_session=True, env=dict(os.environ)
        )
    try:
        _wait_for(f"{address}/health", server)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        import mlflow

        folder = tmp_path / "run"
        folder.mkdir()
        with tracked("mlflow", str(folder)) as tracker:
            tracker.parameters({"learning_rate": 0.1, "layers": ["a", "b"]})
            TrainingLog(str(folder), 0, tracker).write(TRAIN, 1, {"loss": 2.0})
        client = mlflow.MlflowClient()
        TrainingLog(str(folder), 1).write(TRAIN, 2, {"loss": 1.5})  # as while the tracker was away
        with contextlib.suppress(UserError), tracked("mlflow", str(folder)) as tracker:
            tracker.parameters({"learning_rate": 0.2, "more": True})
            TrainingLog(str(folder), 2, tracker).write(TRAIN, 3, {"loss": 1.0})
            tracker.files([str(folder / "train.jsonl")], "report")
            raise UserError("the loss is not finite")
        (run,) = client.search_runs([client.get_experiment_by_name("official-bert").experiment_id])
        assert run.info.status == "KILLED"
        assert run.data.params == {"learning_rate": "0.1", "layers": "['a', 'b']", "more": "True"}
        history = client.get_metric_history(run.info.run_id, "train/loss")
        assert [(each.step, each.value) for each in history] == [(1, 2.0), (2, 1.5), (3, 1.0)]
        kept = client.download_artifacts(run.info.run_id, "report/train.jsonl", str(tmp_path))
        assert pathlib.Path(kept).read_bytes() == (folder / "train.jsonl").read_bytes()
    finally:
        os.killpg(server.pid, 15)
        server.wait(120)


def _wait_for(address: str, server: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except OSError:
            assert server.poll() is None, "the server has ended"
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.5)
