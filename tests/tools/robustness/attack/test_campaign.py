"""The campaign: what is not held is seen, and a case of each kind runs."""

import os
import select
import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tools.robustness.attack import __main__ as attack
from tools.robustness.attack import campaign
from tools.robustness.attack.campaign import Result


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
            select.select([worker.stdout], [], [])  # Python is imported, which may take its time
            with open(os.devnull) as worker.log:  # type: ignore[attr-defined]
                (result,) = campaign._told_by(worker, "fuzz", 0)
            worker.kill()
        assert (result.number, message in result.seen) == (7, True)


@pytest.mark.slow
def test_cases_that_their_seed_repeats_are_held():
    # Kills and requests depend on moments as well: these are for the campaign itself.
    kinds = ("damage", "fuzz", "limits")
    command = [
        sys.executable,
        "-m",
        "tools.robustness.attack",
        f"--only={','.join(kinds)}",
        "--seed=1",
        "--cases=1",
        "--minutes=1",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    for kind in kinds:
        assert f"\n| {kind} | " in done.stdout


def test_without_a_browser_nothing_counts_as_tried(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["attack", "--only=browser", "--cases=1"])
    assert attack.main() == 1
    assert "browser is left out: there is no chromium" in capsys.readouterr().out
