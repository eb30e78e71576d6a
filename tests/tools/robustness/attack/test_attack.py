"""`make attack` detects crashes, hangs and wrong results, and its cases can be repeated.

Attacked processes are monitored, killed and judged.
"""

import os
import pathlib
import signal

import pytest

from official_bert_cli import load
from tests.make import run_python, write_text
from tools.robustness.attack import __main__, damage, processes, samples
from tools.robustness.attack.cases import Case, NotHeldError


def test_the_table_counts_attempts_and_failures():
    rows = (("damage", "export", 5, "", 1.2), ("damage", "export", 3, "an error", 2.2), ("kills", "a", 1, "", 0.0))
    cases = [Case(kind, 0, 1, pathlib.Path(), pathlib.Path(), what, "", *figures) for kind, what, *figures in rows]
    expected = """
| kills | a | 1 | 1 | 0 | 0 |
| damage | export | 8 | 7 | 1 | 3 |
| kills |  | 1 | 1 | 0 | 0 |
| damage |  | 8 | 7 | 1 | 3 |
| all |  | 9 | 8 | 1 | 3 |
"""
    assert __main__.format_table(cases).split("\n", 2)[2].strip() == expected.strip()


def test_crashes_hangs_and_errors_are_failures(tmp_path: pathlib.Path):
    # The program runs in a separate process because it forks, which is not safe once TensorFlow is running.
    program = f"""
import os, pathlib, tempfile, time
from tools.robustness.attack import __main__ as attack
from tools.robustness.attack.cases import NotHeldError
tempfile.tempdir = "{tmp_path}"

def misbehave(case):
    case.what = "misbehaves"
    if case.number == 0:
        os._exit(3)
    if case.number == 1:
        time.sleep(600)
    if case.number == 2:
        raise NotHeldError(f"drew {{case.rng.random()}}")
    if case.number == 3:
        print("Traceback (most recent call last)")

attack.KINDS = {{"misbehaves": attack.Kind(misbehave, 1)}}
attack._CASE_SECONDS = 1.0
for _ in range(2):
    for case in sorted(attack.run_cases(["misbehaves"], 1, 0, 5, 60, pathlib.Path()), key=lambda case: case.number):
        print(case.error.split(":")[0])
"""
    lines = run_python("-c", program).stdout.splitlines()
    first, second = lines[:5], lines[5:]
    assert first[:2] + first[3:] == ["exit code 3", "the case takes more than 1 seconds", "a traceback", ""]
    assert first[2].startswith("drew 0.")
    assert first == second  # the seed determines the random choices
    assert not os.listdir(tmp_path)


def test_damage_file_changes_one_file_in_various_ways(tmp_path: pathlib.Path):
    kinds = set()
    for number in range(100):
        case = Case("damage", number, 1, tmp_path / str(number), tmp_path)
        for name in ("a", "b", "c.log"):
            write_text(case.folder / name, name * 100)
        name, kind = damage.damage_file(case.folder, case.rng, (".log",)).split()[:2]
        assert name in ("a:", "b:")
        assert (case.folder / "c.log").read_text() == "c.log" * 100
        kinds.add(kind)
    assert kinds == {"flip", "cut", "insert", "zero", "empty", "swap", "remove"}


def test_attacked_commands_have_the_flags_that_are_passed():
    for command in samples.COMMANDS:
        load(command.name).parse(command.arguments(pathlib.Path("samples"), pathlib.Path("out")))


@pytest.mark.slow
def test_cases_of_every_kind_pass():
    done = run_python("-m", "tools.robustness.attack", "--seed=1", "--cases=1", "--minutes=0")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    for kind in ("kills", "damage", "requests", "contradictions"):
        assert f"\n| {kind} | " in done.stdout


def test_a_traceback_a_crash_and_an_unclear_error_are_failures_and_a_clear_error_is_not():
    traceback = "Traceback (most recent call last):\n  ...\nKeyError: 1"
    for code, output in ((0, traceback), (70, ""), (-signal.SIGSEGV, ""), (1, "it did not work")):
        with pytest.raises(NotHeldError):
            processes.Ended(code, output, 100).check()
    with pytest.raises(NotHeldError):
        processes.Ended(0, "", 10_000).check()
    processes.Ended(0, "", 100).check()
    processes.Ended(1, "error: a does not exist\n", 100).check()


def test_a_process_is_waited_for_killed_and_its_output_kept(tmp_path):
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
