"""The comparison of two versions of the package detects differences."""

import json
import pathlib
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tools import baseline


def test_differences_are_found_within_lists_and_dicts():
    old = {"losses": [1.0, 2.0], "same": "x", "gone": 1}
    new = {"losses": [1.0, 2.5], "same": "x", "new": 2}
    assert list(baseline.find_differences(old, new)) == [
        ("[losses][1]", 2.0, 2.5),
        ("[gone]", 1, "missing"),
        ("[new]", "missing", 2),
    ]


def test_a_list_of_another_length_differs():
    assert list(baseline.find_differences([1], [1, 1])) == [("", [1], [1, 1])]


def test_the_size_of_a_rounding_difference_is_printed(capsys: pytest.CaptureFixture[str]):
    assert baseline.print_differences({"loss": [1.0, 2.0]}, {"loss": [1.0, 2.25]}) == 1
    assert "(1 places, numbers by at most 0.25)" in capsys.readouterr().out


def test_flags_of_today_are_given_to_commands_that_list_them(monkeypatch: pytest.MonkeyPatch):
    flags = "--adam_bias_correction=false --group_by_length --random_seed=7"
    assert baseline.command_line("finetune", flags)[-3:] == flags.split()
    renamed = [["finetune", "--flag_of_tomorrow=1", "--flag_of_today=2"], ["finetune", "--other_of_tomorrow", ""]]
    monkeypatch.setitem(baseline.CASES, "renamed", renamed)
    words = baseline.command_line("finetune", "--flag_of_tomorrow=1 --other_of_tomorrow --random_seed=7")
    assert words[-3:] == ["finetune", "--flag_of_today=2", "--random_seed=7"]


@pytest.mark.slow
def test_a_changed_record_is_a_difference(tmp_path: pathlib.Path):
    def run(action: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "tools/baseline.py", action, str(tmp_path), "--only=records"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert run("record").returncode == 0
    assert "\n0 values differ" in run("compare").stdout
    recorded = json.loads((tmp_path / "records.json").read_text())
    recorded["gzip"] = ["another digest"]
    (tmp_path / "records.json").write_text(json.dumps(recorded))
    compared = run("compare")
    assert compared.returncode == 1
    assert compared.stdout.startswith("gzip: ")
