"""Attacked processes are monitored, killed and judged."""

import pathlib
import signal

import pytest

from tests.make import run_python
from tools.robustness.attack.cases import NotHeldError
from tools.robustness.attack.processes import Ended


def test_a_traceback_a_crash_and_an_unclear_error_are_failures():
    traceback = "Traceback (most recent call last):\n  ...\nKeyError: 1"
    for code, output in ((0, traceback), (70, ""), (-signal.SIGSEGV, ""), (1, "it did not work")):
        with pytest.raises(NotHeldError):
            Ended(code, output, 100).check()
    with pytest.raises(NotHeldError):
        Ended(0, "", 10_000).check()


def test_a_result_or_a_clear_error_message_passes():
    Ended(0, "", 100).check()
    Ended(1, "error: a does not exist\n", 100).check()


def test_a_process_is_waited_for_killed_and_its_output_kept(tmp_path: pathlib.Path):
    # The program runs in a separate process because it forks, which is not safe once TensorFlow is running.
    program = f"""
import sys, time
from tools.robustness.attack import processes
ended = processes.start_function(lambda: print("one")).finish()
assert (ended.code, ended.output) == (0, "one\\n"), ended
ended = processes.start_function(lambda: 1 / 0).finish()
assert ended.code == 70 and processes.TRACEBACK in ended.output, ended
running = processes.start_function(lambda: (print("begun"), time.sleep(600)))
running.wait(until=lambda: "begun" in running.output)
assert running.kill({signal.SIGKILL.value}, group=True).code == -{signal.SIGKILL.value}
try:
    processes.start_function(lambda: time.sleep(600)).finish(seconds=0.1)
except processes.NotHeldError as error:
    assert "0.1" in str(error)
else:
    raise AssertionError("a hang is not detected")
"""
    done = run_python("-c", program, environment={"TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
