"""The pytest options used by `.ci/run`: test order, time limit, and allowed skips."""

import pathlib
import re
import shutil

from tests.make import ROOT, assert_mentions, run_python, write_text

TESTS = """
import pytest
def test_a(): pass
def test_b(): pass
def test_c(): pass
def test_d(): {last}
"""


def run(folder: pathlib.Path, last: str, *flags: str) -> tuple[int, str]:
    """Runs four tests, and returns the exit code and the output."""
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    write_text(folder / "test_four.py", TESTS.format(last=last))
    command = ("-m", "pytest", "-v", "-rs", "-p", "no:cacheprovider", *flags, str(folder))
    faster = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = run_python(*command, folder=folder, environment=faster)
    return done.returncode, done.stdout


def test_first_selects_the_first_test_and_unlisted_skips_fail(tmp_path: pathlib.Path):
    code, output = run(tmp_path, "pytest.skip('absent')", "--minutes=60", "--first=0.9", "--strict-skips")
    assert (code, re.findall(r"::test_(\w) (?:PASSED|SKIPPED)", output)) == (1, list("dabc"))
    assert_mentions(output, "tests/conftest.py", "Skipped: absent")
    assert run(tmp_path, "pytest.skip('the C library is not glibc')", "--strict-skips")[0] == 0


def test_tests_beyond_the_time_limit_are_skipped(tmp_path: pathlib.Path):
    code, output = run(tmp_path, "pass", "--minutes=-1", "--strict-skips")
    assert code == 0
    assert "4 skipped" in output
    assert_mentions(output, -1, "--minutes")
