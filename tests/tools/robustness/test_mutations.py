"""The list of mutations matches the code. `make mutations` runs them."""

import pathlib

import pytest

from tests.conftest import ROOT
from tools.robustness.mutations import MUTATIONS, Mutation, UntriedError, judge, run_tests


def test_there_are_enough_mutations_and_none_twice():
    assert len({(each.path, each.new) for each in MUTATIONS}) == len(MUTATIONS) >= 60


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: f"{each.path}: {each.old[:40]}")
def test_each_mutation_changes_one_place_and_names_tests_that_are_there(mutation: Mutation):
    assert (ROOT / mutation.path).read_text(encoding="utf-8").count(mutation.old) == 1
    assert mutation.old != mutation.new
    assert all((ROOT / name.split("::")[0]).exists() for name in mutation.tests.split())


@pytest.fixture
def few_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves pytest's startup time."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.mark.parametrize(
    ("module", "verdict"),
    [
        ("def one(): return 1", "SURVIVES"),
        ("def one(): return 2", "caught by tests/test_it.py::test_one"),
        (
            "def one(): return unknown",
            "NOT TRIED: tests/test_it.py::test_one: NameError: name 'unknown' is not defined",
        ),
        ("def two(): return 2", "NOT TRIED: tests/test_it.py: cannot be imported"),
        ("def one() return 1", "NOT TRIED: tests/test_it.py: cannot be imported"),
    ],
)
@pytest.mark.usefixtures("few_plugins")
def test_only_a_test_that_runs_and_fails_catches_a_mutation(module: str, verdict: str, tmp_path: pathlib.Path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "module.py").write_text(module)
    (tmp_path / "tests/test_it.py").write_text("from module import one\n\ndef test_one():\n    assert one() == 1\n")
    assert judge(tmp_path, ["tests/test_it.py"]).text() == verdict


@pytest.mark.usefixtures("few_plugins")
def test_a_test_that_does_not_end_has_not_been_tried(tmp_path: pathlib.Path):
    (tmp_path / "test_it.py").write_text("import time\n\ndef test_one():\n    time.sleep(60)\n")
    with pytest.raises(UntriedError, match="a test did not end within 1 seconds"):
        run_tests(tmp_path, ["test_it.py"], timeout=1)
