"""The examples, run as they stand, each with what the one before has left."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import nbclient
import nbformat
import pytest

from tests.conftest import ROOT


@pytest.fixture
def installed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder whose processes find the package and the command official-bert, as an installation makes them."""
    command = tmp_path / "bin" / "official-bert"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nfrom official_bert_cli import main\n\nmain()\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def run(folder: pathlib.Path, script: str, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / script), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_text_becomes_a_model_that_is_fine_tuned_and_served(installed: pathlib.Path):
    (installed / "text.txt").write_text(
        "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")), encoding="utf-8"
    )
    answers = run(installed, "pretrain.py", "text.txt").split("the [MASK] of a record .\n")[1]
    assert len(re.findall(r"^ +\d+\.\d %  \S+$", answers, re.MULTILINE)) == 5
    scored = run(installed, "finetune.py", str(ROOT / "examples" / "reviews.csv"), "pretrained/model")
    assert len(re.findall(r"^'.*': (?:good|bad) \(labelled (?:good|bad)\)$", scored, re.MULTILINE)) == 4
    # Two of the rows that it has learned.
    learned = ("The plot holds until the last minute.", "The plot falls apart after ten minutes.")
    served = run(installed, "serve.py", "exports/example", *learned)
    assert re.findall(r"^'.*': (\w+) \(\d\.\d\d\)$", served, re.MULTILINE) == ["good", "bad"]


@pytest.mark.slow
def test_the_notebook_goes_from_text_to_answers(installed: pathlib.Path):
    shutil.copy(ROOT / "examples" / "reviews.csv", installed)
    notebook = nbformat.read(ROOT / "examples" / "text_to_answers.ipynb", as_version=4)
    # Raises at the first cell that fails.
    nbclient.NotebookClient(notebook, timeout=1200, resources={"metadata": {"path": str(installed)}}).execute()
    outputs = ["".join(part.get("text", "") for part in cell.outputs) for cell in notebook.cells if "outputs" in cell]
    assert "[b'good' b'bad']" in outputs[-1]


def test_examples_are_short():
    for script in (ROOT / "examples").glob("*.py"):
        assert len(script.read_text(encoding="utf-8").splitlines()) <= 40, script
