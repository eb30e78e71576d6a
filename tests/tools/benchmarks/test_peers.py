"""The benchmarks that compare with other programs run to their end, at the smallest sizes, and print their tables."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

from official_bert.modeling.config import BertConfig
from tests.conftest import ROOT, WORDS
from tools.benchmarks import pretraining

pytestmark = pytest.mark.slow


def run(program: str, *flags: str) -> dict[str, list[float]]:
    """Runs a benchmark; returns the numbers of each row of its tables by the row's name."""
    command = [sys.executable, "-m", f"tools.benchmarks.{program}", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return rows_of(done.stdout)


def rows_of(output: str) -> dict[str, list[float]]:
    cells = [line.strip("| ").split(" | ") for line in output.splitlines() if re.match(r"\| \w", line)]
    return {name: [float(value.replace(",", "")) for value in values] for name, *values in cells}


@pytest.fixture
def smallest(tiny_config: BertConfig, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of width 8 in place of BERT-Tiny, with the vocabulary of the benchmark's records."""
    sizes = {**json.loads(tiny_config.to_json()), "vocab_size": 8000, "max_position_embeddings": 128}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    monkeypatch.setitem(pretraining.MODELS, "tiny", str(tmp_path / "config"))


@pytest.mark.usefixtures("smallest")
def test_a_step_of_pretraining_is_measured_in_every_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    options = pretraining.Options(sizes=["tiny"], batch_size=2, steps=1, rounds=1, ways="float32")
    ways = pretraining.chosen_ways(options)
    assert len(ways) == 8
    one_by_one = pretraining.measure

    def measure(ways: dict[str, pretraining.Way], *rest: object) -> dict[str, dict[str, float]]:
        # Eight processes at once would take eight gigabytes.
        return {name: one_by_one({name: way}, *rest)[name] for name, way in ways.items()}  # type: ignore[arg-type]

    monkeypatch.setattr(pretraining, "measure", measure)
    pretraining.main(options)
    found = rows_of(capsys.readouterr().out)
    assert list(found) == list(ways)
    assert all(rate > 0 and rate_of_cpu > 0 for rate, _, _, rate_of_cpu, _ in found.values())


def test_answers_to_requests_are_measured():
    found = run("serving", "--sizes=tiny", "--rounds=1", "--seconds=0.2")
    assert list(found) == [
        "Hugging Face pipeline", "ONNX Runtime", "the SavedModel called in Python", "serve, 1 client",
        "serve without batches, 32 clients", "serve, 32 clients",
        "serve of ONNX Runtime, 1 client", "serve of ONNX Runtime, 32 clients",
        "serve of ONNX Runtime, 8-bit matrices, 1 client", "serve of ONNX Runtime, 8-bit matrices, 32 clients",
        "Hugging Face pipeline, 32 texts at once",
    ]  # fmt: skip
    assert all(0 < median <= highest and rate > 0 for median, highest, rate, _ in found.values())


def test_answers_to_a_file_are_measured_and_equal():
    found = run("prediction", "--rows=70", "--rounds=1")
    assert list(found) == [
        "predict, a SavedModel", "predict, ONNX Runtime", "predict, ONNX Runtime with 8-bit matrices",
        "Hugging Face Trainer", "Hugging Face's tokenizer and ONNX Runtime",
    ]  # fmt: skip
    assert all(min(values) > 0 for values in found.values())


def test_starts_are_measured():
    found = run("startup", "--rounds=1")
    assert len(found) == 6
    assert all(min(values) > 0 for values in found.values())


def test_fine_tuning_is_measured_in_both_programs(tmp_path: pathlib.Path):
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(WORDS) + "\n")
    # Steps are timed twenty at a time.
    rows = ["sentence\tlabel", *(f"the {'cat' if number % 2 else 'dog'} sat\t{number % 2}" for number in range(704))]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("\n".join(rows[: 705 if name == "train" else 40]) + "\n")
    sentence = "1\tthe\t_\tDET\n2\tcat\t_\tNOUN\n\n"
    for name, count in (("train", 200), ("eval", 20)):
        (tmp_path / f"{name}.conllu").write_text(sentence * count)
    found = run(
        "finetuning_peers", f"--data_dir={tmp_path}", f"--tagged_train={tmp_path}/train.conllu", "--size=tiny",
        f"--tagged_eval={tmp_path}/eval.conllu", f"--vocab_file={vocabulary}", "--rows=704", "--rounds=1",
    )  # fmt: skip
    assert list(found) == ["official_bert", "Hugging Face Trainer"]  # the second table's, of tags
    assert all(0 <= accuracy <= 100 and rate > 0 for _, _, rate, _, _, accuracy in found.values())
