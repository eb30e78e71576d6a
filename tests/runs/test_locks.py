"""Two processes never write the same output."""

import json
import os
import pathlib
import platform
import subprocess
import sys
import time
from unittest import mock

import pytest

from official_bert.finetuning import runner
from official_bert.finetuning.options import FinetuningOptions
from official_bert.runs import locks
from official_bert.runs.locks import lock_file, lock_folder
from official_bert.tasks.options import TableOptions
from official_bert.utils import files
from tests.make import ROOT, assert_rejected, write_text

HOLD = """
import sys, time
from official_bert.runs import locks
with locks.lock_folder(sys.argv[1], "output_dir"):
    print("locked", flush=True)
    time.sleep(600)
"""


def hold(path, lock=lock_folder, flag="output_dir"):
    """Acquires a lock and releases it."""
    with lock(str(path), flag):
        pass


def test_a_folder_is_locked_until_its_process_is_killed(tmp_path):
    folder = tmp_path / "run[1]"
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "locked\n"
            assert_rejected(("--output_dir", folder, holder.pid, platform.node()), hold, folder)
        finally:
            holder.kill()
    assert os.listdir(folder) == [locks.LOCK_FILE]  # files left by the kill lock nothing
    with lock_folder(str(folder), "output_dir"):
        (folder / "result").touch()
    assert os.listdir(folder) == ["result"]


def test_locking_a_folder_removes_temporary_files_of_killed_processes(tmp_path):
    left = [tmp_path / f"{name}.writing-0123456789ab" for name in ("checkpoint", "line\nbreak")]
    others = [tmp_path / "my.writing-notes", tmp_path / "result"]
    for path in (*others, *(path / "half" for path in left)):
        write_text(path, "")
    with files.create_temporary_folder(str(tmp_path / "other")) as beside, lock_folder(str(tmp_path), "output_dir"):
        assert os.path.exists(beside)  # another process is writing it
        assert not [path for path in left if path.exists()]
    assert sorted(tmp_path.iterdir()) == others


def test_an_empty_folder_is_removed_when_its_lock_is_released(tmp_path):
    (tmp_path / "made_by_the_user").mkdir()
    for name in ("run", "made_by_the_user"):
        hold(tmp_path / name)
    assert os.listdir(tmp_path) == ["made_by_the_user"]


def test_a_folder_on_a_file_system_that_cannot_hold_runs_is_refused():
    assert_rejected(("--output_dir", "memory://bucket/run"), hold, "memory://bucket/run")
    assert not files.exists("memory://bucket/run")


def test_a_lock_holds_for_all_names_of_a_file(tmp_path):
    path, link = str(tmp_path / "out.jsonl"), tmp_path / "link"
    link.symlink_to(path)
    with lock_file(path, "output_file"):
        assert_rejected(("--output_file", path), hold, link, lock_file, "output_file")
    hold(link, lock_file, "output_file")
    assert os.listdir(tmp_path) == ["link"]


def test_fine_tuning_refuses_a_folder_in_use(tmp_path):
    options = {"task": "table", "task_options": TableOptions(), "init": "none", "output_dir": str(tmp_path)}
    with lock_folder(str(tmp_path), "output_dir"):
        options = FinetuningOptions(do_train=True, **options)
        assert_rejected(("--output_dir", tmp_path, os.getpid()), runner.run, options)


@pytest.fixture
def no_flock(tmp_path, monkeypatch):
    """Returns a folder on a file system without flock."""
    monkeypatch.setattr("fcntl.flock", mock.Mock(side_effect=OSError(95, "Operation not supported")))
    return tmp_path


ELSEWHERE, OTHER_USERS_PROCESS = {"host": "elsewhere", "process": 7, "token": "x"}, 1
LOCK_FILES = [
    ({}, 500.0, True),
    ({}, 700.0, False),  # the owner stopped renewing it
    ({"time": None}, 0.0, False),  # damaged
    ({"host": platform.node(), "process": os.getpid()}, 0.0, True),
    ({"host": platform.node(), "process": 2**22 + 1}, 0.0, False),  # larger than any Linux process id
    ({"host": platform.node(), "process": OTHER_USERS_PROCESS}, 500.0, True),
    ({"host": platform.node(), "process": OTHER_USERS_PROCESS}, 700.0, False),  # the number is used again
]


@pytest.mark.parametrize(("changes", "age", "is_refused"), LOCK_FILES)
def test_without_flock_a_lock_file_is_valid_while_its_owner_may_run(changes, age, is_refused, no_flock, monkeypatch):
    def kill(process, number):
        if process == OTHER_USERS_PROCESS:
            raise PermissionError
        send_signal(process, number)

    send_signal = os.kill
    monkeypatch.setattr(os, "kill", kill)
    path = no_flock / locks.LOCK_FILE
    path.write_text(json.dumps({**ELSEWHERE, "time": time.time() - age, **changes}))
    if is_refused:
        assert_rejected((no_flock, changes.get("process", 7)), hold, no_flock)
        assert path.exists()
    else:
        with lock_folder(str(no_flock), "output_dir"):
            assert json.loads(path.read_text())["process"] == os.getpid()
        assert not path.exists()


def test_a_lock_file_that_another_process_replaces_is_not_held(no_flock, monkeypatch):
    owner = json.dumps({**ELSEWHERE, "time": time.time()})
    monkeypatch.setattr(files, "write_text", lambda path, _: pathlib.Path(path).write_text(owner))
    assert_rejected(("--output_dir", no_flock, 7), hold, no_flock)


def test_a_lock_file_is_renewed(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "_RENEWAL_SECONDS", 0.001)
    path, deadline = tmp_path / locks.LOCK_FILE, time.monotonic() + 60
    with locks._hold_lock_file(str(path), "out", "output_dir"):
        first = path.read_text()
        while path.read_text() == first:
            assert time.monotonic() < deadline
            time.sleep(0.001)
