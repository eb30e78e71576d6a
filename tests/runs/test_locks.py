"""Two processes never write the same output."""

import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from official_bert.errors import UserError
from official_bert.finetuning import runner
from official_bert.finetuning.options import Options as FineTuningOptions
from official_bert.inference import batch_prediction, feature_extraction
from official_bert.inference.options import BatchPredictionOptions, FeatureOptions
from official_bert.runs import locks
from official_bert.tasks.options import TableOptions
from official_bert.utils import files
from tests.conftest import ROOT

HOLD = """
import sys, time
from official_bert.runs import locks
from official_bert.utils import files
with locks.lock_folder(sys.argv[1], "output_dir"):
    print("locked", flush=True)
    time.sleep(600)
"""


def test_a_folder_in_use_is_refused_with_host_and_process_until_its_process_is_killed(tmp_path: pathlib.Path):
    folder = tmp_path / "run[1]"
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        in_use = rf"--output_dir: .* in use \(process {holder.pid} on {platform.node()}"
        with pytest.raises(UserError, match=in_use), locks.lock_folder(str(folder), "output_dir"):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert os.listdir(folder) == [locks.LOCK_FILE]  # files left by the kill lock nothing
    with locks.lock_folder(str(folder), "output_dir"):
        (folder / "result").touch()
    assert os.listdir(folder) == ["result"]


def test_what_a_kill_has_left_in_a_folder_is_removed_though_it_is_not_written_again(tmp_path: pathlib.Path):
    left = [tmp_path / f"{name}.writing-0123456789ab" for name in ("checkpoint", "line\nbreak")]
    for path in left:
        path.mkdir()
        (path / "half").touch()
    others = [tmp_path / "my.writing-notes", tmp_path / "result"]
    for path in others:
        path.touch()
    with (
        files.create_temporary_folder(str(tmp_path / "other")) as beside,
        locks.lock_folder(str(tmp_path), "output_dir"),
    ):
        assert pathlib.Path(beside).exists()  # another process is writing it
        assert not [path for path in left if path.exists()]
    assert sorted(tmp_path.iterdir()) == others


def test_a_folder_in_which_nothing_was_written_does_not_stay(tmp_path: pathlib.Path):
    with locks.lock_folder(str(tmp_path / "run"), "output_dir"):
        pass
    assert not (tmp_path / "run").exists()


def test_a_file_is_locked_under_all_its_names(tmp_path: pathlib.Path):
    (tmp_path / "link").symlink_to(tmp_path / "out.jsonl")
    with (
        locks.lock_file(str(tmp_path / "out.jsonl"), "output_file"),
        pytest.raises(UserError, match="--output_file: .*out.jsonl is in use"),
        locks.lock_file(str(tmp_path / "link"), "output_file"),
    ):
        pass
    with locks.lock_file(str(tmp_path / "link"), "output_file"):
        pass
    assert os.listdir(tmp_path) == ["link"]


def answer(output: str) -> None:
    batch_prediction.predict(BatchPredictionOptions(export_dir="none", input_file="no.csv", output_file=output))


def extract_features(output: str) -> None:
    feature_extraction.write_features(FeatureOptions(init="none", input_file=__file__, output_file=output))


def fine_tune(output: str) -> None:
    options = FineTuningOptions(
        task="table", task_options=TableOptions(), init="none", output_dir=output, do_train=True
    )
    runner.run(options)


@pytest.mark.parametrize("command", [answer, extract_features])
def test_commands_that_write_a_file_refuse_one_in_use(command: Callable[[str], None], tmp_path: pathlib.Path):
    output = str(tmp_path / "out.jsonl")
    with (
        locks.lock_file(output, "output_file"),
        pytest.raises(UserError, match=f"--output_file: .* is in use .process {os.getpid()} "),
    ):
        command(output)
    with pytest.raises(UserError, match="there is no|holds no export"):  # later checks cover the rest
        command(output)


def test_fine_tuning_refuses_a_folder_in_use(tmp_path: pathlib.Path):
    with locks.lock_folder(str(tmp_path), "output_dir"), pytest.raises(UserError, match="--output_dir: .* is in use"):
        fine_tune(str(tmp_path))


def mark(path: pathlib.Path, age: float = 0.0, **changes: object) -> None:
    """Writes a lock file that was last renewed `age` seconds ago."""
    path.write_text(json.dumps({"host": "elsewhere", "process": 1, "time": time.time() - age, "token": "x", **changes}))


@pytest.mark.parametrize(("changes", "is_refused"), [
    ({}, True),
    ({"age": 500.0}, True),
    ({"age": 700.0}, False),  # the owner stopped renewing it
    ({"host": platform.node(), "process": os.getpid()}, True),
    ({"host": platform.node(), "process": 2**22 + 1}, False),  # larger than any Linux process id
])  # fmt: skip
def test_where_there_is_no_flock_a_mark_counts_while_its_owner_may_live(
    changes: dict[str, object], is_refused: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    def no_locks(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", no_locks)
    mark(tmp_path / locks.LOCK_FILE, **changes)
    if is_refused:
        with pytest.raises(UserError, match="is in use"), locks.lock_folder(str(tmp_path), "output_dir"):
            pass
        assert (tmp_path / locks.LOCK_FILE).exists()
    else:
        with locks.lock_folder(str(tmp_path), "output_dir"):
            assert json.loads((tmp_path / locks.LOCK_FILE).read_text())["process"] == os.getpid()
        assert not (tmp_path / locks.LOCK_FILE).exists()


def test_a_mark_is_renewed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(locks, "_RENEWAL_SECONDS", 0.001)
    path = tmp_path / locks.LOCK_FILE
    with locks._hold_lock_file(str(path), "out", "output_dir"):
        first = path.read_text()
        deadline = time.monotonic() + 60
        while path.read_text() == first and time.monotonic() < deadline:
            time.sleep(0.001)
        assert path.read_text() != first
