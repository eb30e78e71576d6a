"""Control of worker processes, and how they end."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from data_gen.pipelines import worker_pool
from tests.conftest import ROOT
from tests.make import assert_refused
from tests.processes import wait_for_exit


def test_ctrl_c_is_handled_only_by_the_command(tmp_path, capfd):
    workers = worker_pool.WorkerPool(str(tmp_path))
    workers.grow(1)
    (process,) = workers._processes
    process.send_signal(signal.SIGINT)  # arrives during the imports: a terminal sends it to all processes
    process.communicate()
    assert process.returncode == 0
    assert capfd.readouterr().err == ""


_PARENT = """
import sys, time
from data_gen.pipelines import worker_pool
workers = worker_pool.WorkerPool(sys.argv[1])
workers.grow(1)
try:
    worker_pool.ask(workers._processes[0], {"nothing": []}, "")
except RuntimeError:  # it answers: it is up
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


@pytest.mark.parametrize(("code", "words"), [
    ("import os; os.kill(os.getpid(), 9)", "was killed at .* fewer --num_workers to resume, or remove out.work and"),
    ("raise SystemExit(3)", "ended with code 3 at .* run the same command again"),
    ("input(); print('{\"result\": {', end=''); raise SystemExit(3)", "ended with code 3 at"),  # during its answer
])  # fmt: skip
def test_the_end_of_a_worker_is_explained(code: str, words: str):
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert_refused(words, worker_pool.ask, process, {"block": [0, 0]}, "out.work")
    with contextlib.suppress(BrokenPipeError):
        process.communicate()
