"""The pytest options used by `.ci/run`: test order, time limit, and allowed skips."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

TESTS = """
import pytest
def test_a(): pass
def test_b(): pass
def test_c(): pass
def test_d(): {last}
"""


def run(folder: pathlib.Path, last: str, *flags: str) -> tuple[int, str]:
    """Runs four tests, and returns the exit code and the output."""
    shutil.copy(pathlib.Path(__file__).parent / "conftest.py", folder)
    (folder / "test_four.py").write_text(TESTS.format(last=last))
    command = [sys.executable, "-m", "pytest", "-v", "-rs", "-p", "no:cacheprovider", *flags, str(folder)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # takes half the time
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize(("first", "order"), [("0", "abcd"), ("0.5", "cdab"), ("0.9", "dabc")])
def test_the_tests_begin_where_first_says(tmp_path: pathlib.Path, first: str, order: str):
    code, output = run(tmp_path, "pass", "--minutes=60", f"--first={first}")
    assert (code, re.findall(r"::test_(\w) PASSED", output)) == (0, list(order))


def test_what_time_did_not_allow_is_skipped_with_that_reason(tmp_path: pathlib.Path):
    code, output = run(tmp_path, "pass", "--minutes=-1", "--strict-skips")
    assert code == 0
    assert "4 skipped" in output
    assert "not reached within the -1 minutes of --minutes" in output


def test_a_skip_that_is_not_listed_fails(tmp_path: pathlib.Path):
    assert run(tmp_path, "pytest.skip('no such package')")[0] == 0
    code, output = run(tmp_path, "pytest.skip('no such package')", "--strict-skips")
    assert code == 1
    assert "error: a test was skipped for a reason that tests/conftest.py does not list: Skipped: no such" in output
    assert run(tmp_path, "pytest.skip('the C library is not glibc')", "--strict-skips")[0] == 0
