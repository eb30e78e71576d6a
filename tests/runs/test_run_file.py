"""Comparing a run with a later start: every option is locked unless it is declared resumable."""

import dataclasses
import pathlib

import pytest

from official_bert.runs import run_file
from official_bert.utils.flags import option
from tests.make import assert_refused


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
    assert run_file.locked_options(Options) == {"rate", "layers", "power"}
    assert run_file.locked_values(Options(0.1, "there", ["a"]), MoreOptions()) == {
        "rate": 0.1, "layers": ["a"], "power": 1.0, "margin": 2.0,
    }  # fmt: skip


def test_only_locked_options_are_compared(tmp_path: pathlib.Path):
    path = str(tmp_path / "run.json")
    assert run_file.read_run_file(path) == {}
    run_file.write_run_file(path, {"rate": 0.1, "folder": "here", "layers": [], "power": 1.0})
    before = run_file.read_run_file(path)
    assert run_file.find_changes(before, run_file.locked_values(Options(0.1, "elsewhere"))) == {}
    changes = run_file.find_changes(before, run_file.locked_values(Options(0.2, layers=["a"])))
    assert changes == {"rate": (0.1, 0.2), "layers": ([], ["a"])}


def test_an_option_that_was_not_recorded_has_changed():
    now = run_file.locked_values(Options(0.1))
    assert run_file.find_changes({"rate": 0.1, "layers": []}, now) == {"power": (None, 1.0)}


@pytest.mark.parametrize("changes", [{}, {"rate": (0.1, 0.2)}, {"rate": (0.1, 0.2), "data": ("abc", "def")}])
def test_changes_are_refused_with_both_values_or_a_description(changes: run_file.Changes):
    arguments = ("runs/a", changes, "Pass another folder.", {"data": "the text differs"})
    if not changes:
        run_file.refuse_changes(*arguments)
        return
    described = r"--rate was 0\.1 and is 0\.2" + "; the text differs" * ("data" in changes)
    assert_refused(rf"runs/a .*: {described}\. Pass another folder\.", run_file.refuse_changes, *arguments)
