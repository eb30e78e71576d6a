"""The campaign itself: what is not held is seen, and a case of each kind runs."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tests.attack import campaign
from tests.attack.campaign import Result
from tests.attack.processes import Ended, NotHeldError
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("code", "output", "megabytes"),
    [
        (0, "Traceback (most recent call last):\n  ...\nKeyError: 1", 100),
        (70, "", 100),
        (-signal.SIGSEGV, "", 100),
        (1, "it did not work", 100),
        (0, "", 10_000),
    ],
)
def test_a_bad_end_is_not_held(code: int, output: str, megabytes: float):
    with pytest.raises(NotHeldError):
        Ended(code, output, 1.0, megabytes).check()


def test_a_result_or_a_line_is_held():
    Ended(0, "", 1.0, 100).check()
    Ended(1, "error: there is no file a\n", 1.0, 100).check()


def test_the_table_counts_attempts_and_what_was_not_held():
    results = [Result("fuzz", 0, "SQuAD", "", 5, "", 1.2), Result("fuzz", 1, "SQuAD", "", 3, "seen", 2.2)]
    assert campaign.table([*results, Result("kills", 0, "a", "", 1, "")]).splitlines()[2:] == [
        "| kills | a | 1 | 1 | 0 | 0 |", "| fuzz | SQuAD | 8 | 7 | 1 | 3 |",
        "| kills |  | 1 | 1 | 0 | 0 |", "| fuzz |  | 8 | 7 | 1 | 3 |", "| all |  | 9 | 8 | 1 | 3 |",
    ]  # fmt: skip


def test_a_crash_and_a_hang_are_not_held(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(campaign, "_CASE_SECONDS", 0.5)
    for action, message in (("os._exit(3)", "ended with 3"), ("time.sleep(600)", "more than")):
        program = f"import os, time; print('{{\"begins\": 7}}', flush=True); {action}"
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as worker:
            with open(os.devnull) as worker.log:
                (result,) = campaign._told_by(worker, "fuzz", 0)
            worker.kill()
        assert (result.number, message in result.seen) == (7, True)


def test_a_process_is_waited_for_killed_and_its_output_kept(tmp_path: pathlib.Path):
    # In a process without TensorFlow, which forks here.
    program = f"""
import sys, time
from tests.attack import processes
ended = processes.start_function(lambda: print("one")).done()
assert (ended.code, ended.output) == (0, "one\\n"), ended
ended = processes.start_function(lambda: 1 / 0).done()
assert ended.code == 70 and processes.TRACEBACK in ended.output, ended
running = processes.start_function(lambda: (print("begun"), time.sleep(600)))
running.wait(until=lambda: "begun" in running.output)
assert running.kill({signal.SIGKILL.value}, group=True).code == -{signal.SIGKILL.value}
try:
    processes.start_function(lambda: time.sleep(600)).done(seconds=0.1)
except processes.NotHeldError as error:
    assert "more than" in str(error)
else:
    raise AssertionError("a hang is not seen")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_cases_that_their_seed_repeats_are_held():
    # Kills and requests depend on moments as well: these are for the campaign itself.
    kinds = ("damage", "fuzz", "limits")
    command = [
        sys.executable,
        "-m",
        "tests.attack",
        f"--only={','.join(kinds)}",
        "--seed=1",
        "--cases=1",
        "--minutes=1",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    for kind in kinds:
        assert f"\n| {kind} | " in done.stdout
