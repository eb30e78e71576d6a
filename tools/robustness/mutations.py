"""Mutation testing: `make mutations` changes one place in the code at a time and expects a listed test to fail.

mutations.toml lists the mutations. Each one is tried in a copy of the checkout, not in the working tree. The command
exits with 1 if a mutation survives (all its tests pass) or cannot be tried because modules fail to import or a test
takes too long. tests/tools/robustness/test_mutations.py keeps the list up to date.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).parents[2]
_TIMEOUT = 1200  # seconds: a mutation may turn a loop into an endless one
# Errors of a line that is not valid Python or uses an undefined name: any test that runs it would fail.
_BROKEN = ("ImportError", "ModuleNotFoundError", "NameError", "SyntaxError", "IndentationError")


class Mutation(NamedTuple):
    """A change of one place in one file, and tests. At least one of the tests should fail because of the change."""

    path: str
    old: str
    new: str
    tests: str


MUTATIONS = [
    Mutation(*entry)
    for entry in tomllib.loads(pathlib.Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["mutations"]
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="try only the mutations of files whose path contains this text")
    parser.add_argument("--processes", type=int, default=2, help="number of mutations to try in parallel")
    arguments = parser.parse_args()
    chosen = [mutation for mutation in MUTATIONS if arguments.only in mutation.path]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(arguments.processes) as pool:
        copies = [_copy_tree(pathlib.Path(folder) / str(number)) for number in range(arguments.processes)]
        caught_by = []
        verdicts = pool.map(lambda mutation: _try(mutation, copies), chosen)
        for number, (mutation, verdict) in enumerate(zip(chosen, verdicts, strict=True), start=1):
            line = f"{number}/{len(chosen)} {mutation.path}: {mutation.old!r} -> {mutation.new!r}: {verdict.text()}"
            print(line, flush=True)
            caught_by += [verdict.caught_by] if verdict.caught_by else []
        # A test that fails without a mutation, too, proves nothing.
        broken = list(run_tests(copies[0], sorted(set(caught_by)))) if caught_by else []
    for test in broken:
        print(f"{test} fails without a mutation, too")
    minutes = (time.monotonic() - started) / 60
    num_not_caught = len(chosen) - len(caught_by)
    print(f"{len(chosen)} mutations, {len(caught_by)} caught, {num_not_caught} not caught, {minutes:.0f} minutes")
    return 1 if num_not_caught or broken else 0


def _copy_tree(target: pathlib.Path) -> pathlib.Path:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


class Verdict(NamedTuple):
    """The result of trying a mutation: the test that caught it, or why it could not be tried.

    Both are empty if all tests pass, so that the mutation survives.
    """

    caught_by: str = ""
    untried: str = ""

    def text(self) -> str:
        if self.caught_by:
            return f"caught by {self.caught_by}"
        return f"NOT TRIED: {self.untried}" if self.untried else "SURVIVES"


class UntriedError(Exception):
    """The tests of a mutation could not be run."""


def _try(mutation: Mutation, copies: list[pathlib.Path]) -> Verdict:
    """Applies a mutation in one of the copies of the checkout and runs its tests until one fails."""
    tree = copies.pop()
    path = tree / mutation.path
    source = path.read_text(encoding="utf-8")
    try:
        path.write_text(source.replace(mutation.old, mutation.new), encoding="utf-8")
        return judge(tree, mutation.tests.split())
    finally:
        path.write_text(source, encoding="utf-8")
        copies.append(tree)


def judge(tree: pathlib.Path, tests: list[str]) -> Verdict:
    """Runs tests in a tree that contains a mutation, and returns the verdict."""
    try:
        failed = run_tests(tree, ["-x", *tests])
    except UntriedError as error:
        return Verdict(untried=str(error))
    for test, reason in failed.items():
        if reason.startswith(_BROKEN):
            return Verdict(untried=f"{test}: {reason}")
        return Verdict(caught_by=test)
    return Verdict()


def run_tests(tree: pathlib.Path, arguments: list[str], timeout: float = _TIMEOUT) -> dict[str, str]:
    """Runs pytest in a tree. Returns the failed tests by name, with the first line of each error.

    Raises:
        UntriedError: If the tests take too long or modules cannot be imported.
    """
    # pytest cuts the lines of its summary to the width of the terminal.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "COLUMNS": "500"}
    command = [sys.executable, "-m", "pytest", "-q", *arguments]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=timeout
        )
    except subprocess.TimeoutExpired as error:
        raise UntriedError(f"a test did not end within {timeout:g} seconds") from error
    found = dict(re.findall(r"^(?:FAILED|ERROR) (tests/.+?)(?: - (.*))?$", done.stdout, re.MULTILINE))
    if done.returncode == pytest.ExitCode.INTERRUPTED:
        raise UntriedError("; ".join(f"{name}: {reason or 'cannot be imported'}" for name, reason in found.items()))
    if done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest ended with {done.returncode} for {arguments}: {done.stdout[-2000:]}")
    return found


if __name__ == "__main__":
    sys.exit(main())
