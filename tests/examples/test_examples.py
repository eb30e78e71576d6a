"""Runs the examples, the tutorials and the code of docs/guides/python.md and README.md unchanged and in order."""

import csv
import gzip
import itertools
import json
import os
import pathlib
import re
import sys

import numpy as np
import pytest
import tensorflow as tf
import yaml

from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert_cli import load
from tests.make import ROOT, run_python, tiny_config, write_run, write_text


@pytest.fixture
def installed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder in which processes find the package and the official-bert command, as after an installation."""
    program = f"#!{sys.executable}\nfrom official_bert_cli import main\n\nmain()\n"
    command = write_text(tmp_path / "bin" / "official-bert", program)
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


def read_outputs(notebook) -> list[list[str]]:
    """Returns the output of each code cell: pictures by their type, and text without numbers and spaces.

    For a cell tagged "varies", whose words depend on the Python version, returns the number of lines instead.
    """
    cells = []
    for cell in (each for each in notebook.cells if each.cell_type == "code"):
        parts = [kind for each in cell.outputs for kind in sorted(each.get("data", ())) if kind.startswith("image/")]
        text = "".join(each.text for each in cell.outputs if each.output_type == "stream").replace("\r\n", "\n")
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


@pytest.fixture
def folder(vocab_file: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A reader's working directory: a pre-trained model in `model`, and the configs of the repository."""
    config = tiny_config(max_position_embeddings=128)
    write_run(tmp_path / "model", build_pretraining_model(config, seed=0), config, vocab_file)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read_code_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:(currentThread|getName):DeprecationWarning")  # of Keras Tuner
def test_the_examples_of_the_python_guide_run(capsys: pytest.CaptureFixture[str], folder):
    names: dict = {}
    blocks = read_code_blocks("docs/guides/python.md")
    assert len(blocks) == 17
    for block in blocks:
        exec(block, names)
    assert names["outputs"]["sequence_output"].shape == (1, 5, 8)
    shapes = {"values": (1,), "probabilities": (1, 3), "choice_probabilities": (2, 4), "vectors": (2, 8)}
    assert {name: names[name].shape for name in shapes} == shapes
    inputs = {name: np.ones((1, 5), "int32") for name in names["attention"].input}
    for probabilities in names["attention"](inputs):
        np.testing.assert_allclose(np.sum(probabilities, axis=-1), np.ones((1, 2, 5)), atol=1e-5)
    assert names["span"].text == "."  # the last word printed by the loop
    assert names["span"].label in {"DET", "NOUN", "VERB"}
    answer = names["answer"]
    assert "the cat sat on the mat"[answer.start : answer.end] == answer.text != ""
    assert names["choices"][0] in range(4)
    assert {"loss", "accuracy"} <= set(names["tagging_scores"])
    assert len(names["tagged_words"]) == len(names["found_answers"]) == 2
    assert {"exact_match", "f1"} <= set(names["answer_scores"])
    assert 0 <= names["choice_scores"]["accuracy"] <= 1
    for export in ("tags", "answers", "choices"):
        assert list(pathlib.Path("exports", export).rglob("saved_model.pb"))
    assert 1e-5 <= names["best_rate"] <= 1e-3
    assert len(names["study"].trials) == len(names["fillings"][0][0]) == 3
    assert 0 < names["found"]["mrr"] <= 1
    assert names["nearest"] in range(3)
    assert capsys.readouterr().out.count("(2, 8)") == 2  # the vectors of two texts


@pytest.mark.slow
def test_the_python_example_of_the_readme_runs(folder):
    names: dict = {}
    for block in read_code_blocks("README.md"):
        assert len(block.strip().splitlines()) <= 10
        exec(block, names)
    assert set(names["classifier"].classify(["a dull film"])) <= {"bad", "good"}


FOLDER = ROOT / "examples" / "container"
SERVE = {flag.name: flag for flag in load("serve").flags()}


def test_files_use_flags_of_the_server():
    for path in FOLDER.iterdir():
        settings = re.sub(r"^\s*#.*", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        flags = set(re.findall(r"--(\w+_\w+|host|model)\b", settings))
        assert flags <= SERVE.keys(), path
        assert "model" in flags


def test_the_guide_shows_the_dockerfile():
    page = (ROOT / "docs" / "guides" / "container.md").read_text(encoding="utf-8")
    dockerfile = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    assert re.sub(r"^#.*\n", "", dockerfile, flags=re.MULTILINE) in page


def test_the_server_may_drain_before_it_is_killed():
    deployment, service = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8"))
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    drain_seconds = float(re.search(r"--drain_seconds=(\d+)", " ".join(container["args"]))[1])
    sleep_seconds = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > sleep_seconds + drain_seconds
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    user = re.findall(r"^USER (.*)$", (FOLDER / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)[-1]
    assert container["securityContext"]["runAsNonRoot"]
    assert int(user) > 0, "Kubernetes compares only numbers with root"
    unit = (FOLDER / "bert.service").read_text(encoding="utf-8")
    assert int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[1]) > SERVE["drain_seconds"].default
