"""Comparing a run with a later start: every option is locked unless it is declared resumable."""

import dataclasses

from official_bert.runs import run_file
from official_bert.utils.flags import locked_options, option
from tests.make import assert_rejected


@dataclasses.dataclass(frozen=True)
class Options:
    rate: float = option(dataclasses.MISSING, "Required.")
    folder: str = option("here", "Resumable.", resumable=True)
    layers: list[str] = option([], "Locked, since it is not declared resumable.")
    power: float = option(1.0, "Locked too.")


@dataclasses.dataclass(frozen=True)
class MoreOptions:
    margin: float = option(2.0, "Locked.")


def test_options_are_locked_unless_they_are_declared_resumable():
    assert locked_options(Options) == {"rate", "layers", "power"}
    locked = {"rate": 0.1, "layers": ["a"], "power": 1.0, "margin": 2.0}
    assert run_file.locked_values(Options(0.1, "there", ["a"]), MoreOptions()) == locked


def test_only_locked_options_are_compared_and_unrecorded_ones_count_as_changed(tmp_path):
    path = str(tmp_path / "run.json")
    assert run_file.read_run_file(path) == {}
    run_file.write_run_file(path, {"rate": 0.1, "folder": "here", "layers": []})
    now = run_file.locked_values(Options(0.1, "elsewhere", ["a"]))
    changes = {"layers": ([], ["a"]), "power": (None, 1.0)}
    assert run_file.find_changes(run_file.read_run_file(path), now) == changes


def test_errors_about_changes_show_both_values_or_a_description():
    changes = {"rate": (0.1, 0.2), "data": ("abc", "def")}
    advice, descriptions = "ADVICE", {"data": "DESCRIPTION"}
    run_file.refuse_changes("runs/a", {}, advice, descriptions)
    names = ("runs/a", "--rate", 0.1, 0.2, "DESCRIPTION", advice)
    assert_rejected(names, run_file.refuse_changes, "runs/a", changes, advice, descriptions)
