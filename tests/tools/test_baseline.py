"""The comparison of two versions of the package detects differences."""

import json

import pytest

from tests.make import run_python, write_text
from tools import baseline


@pytest.mark.parametrize(("old", "new", "differences"), [
    ({"losses": [1.0, 2.0], "same": "x"}, {"losses": [1.0, 2.5], "same": "x"}, [("[losses][1]", 2.0, 2.5)]),
    ({"gone": 1}, {"new": 2}, [("[gone]", 1, "missing"), ("[new]", "missing", 2)]),
    ([1], [1, 1], [("", [1], [1, 1])]),
])  # fmt: skip
def test_differences_are_found_within_lists_and_dicts(old, new, differences):
    assert list(baseline.find_differences(old, new)) == differences


def test_the_size_of_a_rounding_difference_is_printed(capsys: pytest.CaptureFixture[str]):
    assert baseline.print_differences({"loss": [1.0, 2.0]}, {"loss": [1.0, 2.25]}) == 1
    assert "(1 places, numbers by at most 0.25)" in capsys.readouterr().out


def test_renamed_flags_are_passed_in_the_form_that_a_command_lists(monkeypatch: pytest.MonkeyPatch):
    flags = "--adam_bias_correction=false --group_by_length --random_seed=7"
    assert baseline.command_line("finetune", flags)[-3:] == flags.split()
    renamed = [["finetune", "--flag_of_tomorrow=1", "--flag_of_today=2"], ["finetune", "--other_of_tomorrow", ""]]
    monkeypatch.setitem(baseline.CASES, "renamed", renamed)
    words = baseline.command_line("finetune", "--flag_of_tomorrow=1 --other_of_tomorrow --random_seed=7")
    assert words[-3:] == ["finetune", "--flag_of_today=2", "--random_seed=7"]


@pytest.mark.slow
def test_a_changed_record_is_a_difference(tmp_path):
    def run(action: str):
        return run_python("tools/baseline.py", action, tmp_path, "--only=records")

    assert run("record").returncode == 0
    assert "\n0 values differ" in run("compare").stdout
    recorded = json.loads((tmp_path / "records.json").read_text())
    write_text(tmp_path / "records.json", json.dumps({**recorded, "gzip": ["another digest"]}))
    compared = run("compare")
    assert compared.returncode == 1
    assert compared.stdout.startswith("gzip: ")
