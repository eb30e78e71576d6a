"""The list of mutations matches the code. `make mutations` runs them."""

import pytest

from tests.make import ROOT, write_text
from tests.test_structure import read
from tools.robustness.mutations import MUTATIONS, UntriedError, judge, run_tests


def test_there_are_enough_mutations_without_duplicates():
    assert len({(each.path, each.new) for each in MUTATIONS}) == len(MUTATIONS) >= 60


def test_each_mutation_changes_one_place_and_names_existing_tests():
    for mutation in MUTATIONS:
        assert read(ROOT / mutation.path).count(mutation.old) == 1, mutation
        assert mutation.old != mutation.new, mutation
        assert all((ROOT / name.split("::")[0]).exists() for name in mutation.tests.split()), mutation


@pytest.fixture
def few_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves pytest's startup time."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


NOT_IMPORTED = "NOT TRIED: tests/test_it.py: cannot be imported"
VERDICTS = {
    "def one(): return 1": "SURVIVES",
    "def one(): return 2": "caught by tests/test_it.py::test_one",
    "def one(): return x": "NOT TRIED: tests/test_it.py::test_one: NameError: name 'x' is not defined",
    "def two(): return 2": NOT_IMPORTED,
    "def one() return 1": NOT_IMPORTED,
}


@pytest.mark.parametrize(("module", "verdict"), VERDICTS.items())
def test_only_a_test_that_runs_and_fails_catches_a_mutation(module: str, verdict: str, tmp_path, few_plugins):
    write_text(tmp_path / "module.py", module)
    write_text(tmp_path / "tests/test_it.py", "from module import one\n\ndef test_one():\n    assert one() == 1\n")
    assert judge(tmp_path, ["tests/test_it.py"]).text() == verdict


def test_a_mutation_whose_tests_time_out_was_not_tried(tmp_path, few_plugins):
    write_text(tmp_path / "test_it.py", "import time\n\ndef test_one():\n    time.sleep(60)\n")
    with pytest.raises(UntriedError, match="1 seconds"):
        run_tests(tmp_path, ["test_it.py"], timeout=1)
