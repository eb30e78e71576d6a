"""Runs the examples unchanged and in order. Each uses the files left by the one before."""

import csv
import gzip
import itertools
import json
import os
import pathlib
import re
import sys
from typing import Any

import pytest
import tensorflow as tf

from tests.conftest import ROOT
from tests.make import run_python, write_text


@pytest.fixture
def installed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder in which processes find the package and the official-bert command, as after an installation."""
    command = write_text(
        tmp_path / "bin" / "official-bert", f"#!{sys.executable}\nfrom official_bert_cli import main\n\nmain()\n"
    )
    os.chmod(command, 0o755)
    monkeypatch.setenv("PATH", os.path.dirname(command), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def run(folder: pathlib.Path, script: str, *arguments: str) -> str:
    done = run_python(ROOT / "examples" / script, *arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_text_becomes_a_model_that_is_fine_tuned_and_served(installed: pathlib.Path):
    pages = (page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    write_text(installed / "text.txt", "".join(pages))
    answers = run(installed, "pretrain.py", "text.txt").split("the [MASK] of a record .\n")[1]
    assert len(re.findall(r"^ +\d+\.\d %  \S+$", answers, re.MULTILINE)) == 5
    scored = run(installed, "finetune.py", str(ROOT / "examples" / "reviews.csv"), "pretrained/model")
    assert len(re.findall(r"^'.*': (?:good|bad) \(labelled (?:good|bad)\)$", scored, re.MULTILINE)) == 4
    # Two of the training rows.
    learned = ("The plot holds until the last minute.", "The plot falls apart after ten minutes.")
    served = run(installed, "serve.py", "exports/example", *learned)
    assert re.findall(r"^'.*': (\w+) \(\d\.\d\d\)$", served, re.MULTILINE) == ["good", "bad"]


NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
# Lines that report time, and numbers, which differ between runs.
PROGRESS = re.compile(r".*( left| so far)(; .*)?\n")
NUMBER = re.compile(r"\d[\d,.:]*(e-?\d+)?s?")


def read_outputs(notebook: Any) -> list[list[str]]:
    """Returns the output of each code cell: pictures by their type, and text without numbers and spaces.

    For a cell tagged "varies", whose words depend on the Python version, returns the number of lines instead.
    """
    cells = []
    for cell in (each for each in notebook.cells if each.cell_type == "code"):
        parts, text = [], ""
        for output in cell.outputs:
            if output.output_type == "stream":
                text += output.text.replace("\r\n", "\n")
            else:
                parts += sorted(kind for kind in output.data if kind.startswith("image/"))
        lines = [" ".join(NUMBER.sub("0", line).split()) for line in PROGRESS.sub("", text).splitlines()]
        varies = "varies" in cell.metadata.get("tags", ())
        cells.append([*parts, str(len(lines))] if varies else [*parts, *lines])
    return cells


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_outputs_are_up_to_date(path: pathlib.Path, installed: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    import nbclient  # here, since only slow tests have these packages
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    cells, stored = [cell for cell in notebook.cells if cell.cell_type == "code"], read_outputs(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert "image/png" in itertools.chain(*stored)
    assert all(map(any, stored))
    shown = json.dumps([cell.outputs for cell in cells])
    for remark in ("oneDNN", "cuInit", "0000 00:00", "cuda", "Warning", "WARNING", str(pathlib.Path.home()), "/tmp/"):
        assert remark not in shown, remark
    folder = installed / "docs" / "tutorials"
    folder.mkdir(parents=True)
    write_text(installed / "examples" / "make_table.py", (ROOT / "examples" / "make_table.py").read_bytes())
    (installed / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)  # not set in a reader's environment
    # Raises an error at the first cell that fails.
    nbclient.NotebookClient(notebook, timeout=1200, resources={"metadata": {"path": str(folder)}}).execute()
    assert read_outputs(notebook) == stored


def test_the_table_has_two_parts_without_a_common_text(tmp_path: pathlib.Path):
    # Uses fewer modules to save time.
    script = (ROOT / "examples" / "make_table.py").read_text(encoding="utf-8")
    write_text(tmp_path / "make_table.py", script.replace("os pathlib shutil tarfile", "shutil"))
    shown = run_python("make_table.py", "train.csv", "dev.csv", folder=tmp_path).stdout
    bodies = []
    for name in ("train.csv", "dev.csv"):
        with open(tmp_path / name, newline="", encoding="utf-8") as file:
            titles, texts, labels = zip(*csv.reader(file), strict=True)
        assert (titles[0], texts[0], labels[0]) == ("title", "body", "label")
        assert {*labels[1:]} == {"files", "mail", "network", "numbers", "tasks"}
        bodies.append({*texts[1:]})
        assert f"{name} files " in shown
    assert 300 < len(bodies[1]) < len(bodies[0])
    assert not bodies[0] & bodies[1]


@pytest.mark.slow
def test_web_archives_and_tfrecord_files_become_json_lines(installed: pathlib.Path):
    texts = ["A page,\nof two lines.", "“Another”.", "A feature."]
    pages = [("warcinfo", "Software-Info: none"), ("conversion", texts[0]), ("conversion", texts[1])]
    with gzip.open(installed / "a.warc.wet.gz", "wb") as file:
        for kind, text in pages:
            header = f"WARC/1.0\r\nWARC-Type: {kind}\r\nContent-Length: {len(text.encode())}\r\n\r\n"
            file.write(f"{header}{text}\r\n\r\n".encode())
    feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[texts[2].encode()]))
    with tf.io.TFRecordWriter(str(installed / "b.tfrecord")) as writer:
        writer.write(tf.train.Example(features=tf.train.Features(feature={"text": feature})).SerializeToString())
    run(installed, "texts_to_json_lines.py", "texts.jsonl", "a.warc.wet.gz", "b.tfrecord")
    lines = (installed / "texts.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"text": text} for text in texts]


def test_examples_are_short():
    for script in (ROOT / "examples").glob("*.py"):
        assert len(script.read_text(encoding="utf-8").splitlines()) <= 40, script
