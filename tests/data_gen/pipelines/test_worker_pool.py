"""Tasks of worker processes, control of the processes, and how they end."""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from data_gen.pipelines import outputs, worker, worker_pool
from data_gen.text import formats
from tests.data_gen.samples import contents, make_options, make_records
from tests.make import ROOT, assert_rejected, write_text
from tests.processes import wait_for_exit
from tests.stored_texts import parquet


def test_ctrl_c_is_handled_only_by_the_command(tmp_path, capfd):
    workers = worker_pool.WorkerPool(str(tmp_path))
    workers.grow(1)
    (process,) = workers._processes
    process.send_signal(signal.SIGINT)  # arrives during the imports: a terminal sends it to all processes
    process.communicate()
    assert process.returncode == 0
    assert capfd.readouterr().err == ""


_PARENT = """
import contextlib, sys, time
from data_gen.pipelines import worker_pool
workers = worker_pool.WorkerPool(sys.argv[1])
workers.grow(1)
with contextlib.suppress(RuntimeError):  # it answers: it is up
    worker_pool.run_in_process(workers._processes[0], {"nothing": []}, "")
print(workers._processes[0].pid, flush=True)
time.sleep(60)
"""


def test_busy_worker_ends_with_its_parent(tmp_path):
    command = [sys.executable, "-c", _PARENT, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        os.kill(pid, signal.SIGSTOP)  # a slow task that ignores its input
        parent.kill()
    try:
        wait_for_exit(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_errors_of_a_task_are_raised_again(corpus, tmp_path):
    options = make_options((["none.txt"], corpus[1]), tmp_path)
    with worker_pool.WorkerPool(str(tmp_path)) as workers:
        workers.grow(1)
        assert_rejected(tmp_path / outputs.OPTIONS, workers.run_tasks, "reading", [{"file": [0]}], "files")
        write_text(tmp_path / outputs.OPTIONS, json.dumps(dataclasses.asdict(options)))
        for task, error, name in (("file", worker.TextError, "none.txt"), ("nothing", RuntimeError, "nothing")):
            with pytest.raises(error, match=name):
                workers.run_tasks("reading", [{task: [0]}], "files")
    assert worker.Worker(str(tmp_path)).describe({"block": [2, 3]}) == "block [2, 3]"


@pytest.mark.parametrize(("code", "names"), [
    ("import os; os.kill(os.getpid(), 9)", ["killed", "--num_workers", "--block_tokens"]),
    ("raise SystemExit(3)", ["code 3"]),
    ("input(); print('{\"result\": {', end=''); raise SystemExit(3)", ["code 3"]),  # during its answer
])  # fmt: skip
def test_the_end_of_a_worker_is_explained(code: str, names: list[str], corpus, tmp_path):
    options = make_options((["a.txt", "b.txt"], corpus[1]), tmp_path)
    write_text(tmp_path / outputs.OPTIONS, json.dumps(dataclasses.asdict(options)))
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert_rejected(("b.txt", *names), worker_pool.run_in_process, process, {"part": [1, 0]}, str(tmp_path))
    with contextlib.suppress(BrokenPipeError):
        process.communicate()


def test_a_large_file_is_shared_and_a_line_or_row_in_it_is_named(corpus, tmp_path, monkeypatch):
    text, blank = b"\n\n".join(pathlib.Path(path).read_bytes() for path in corpus[0]), b"\n" * 5000
    padded = write_text(tmp_path / "padded.txt", blank + text + blank)  # The first and the last part contain no text.
    make_records(([padded], corpus[1]), tmp_path / "whole")
    monkeypatch.setattr(worker, "_PART_BYTES", 2000)
    assert len(formats.find_ranges(padded, "sentences", 2000)) > 10
    make_records(([padded], corpus[1]), tmp_path / "parts")
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    path = write_text(tmp_path / "text.txt", text + b"\nthe \xe9\n")  # in the last part only
    names = (path, f"line {len(text.splitlines()) + 1}", "0xe9", "column 5")
    assert_rejected(names, make_records, ([path], corpus[1]), tmp_path / "bad", input_format="sentences")
    path = parquet(tmp_path, [*["some text. " * 300] * 20, None])
    assert len(formats.find_ranges(path, "parquet", 2000)) > 1
    for _ in range(2):
        assert_rejected((path, "row 21", "'text'", "null"), make_records, ([path], corpus[1]), tmp_path / "bad")
    assert not contents(tmp_path / "bad")
