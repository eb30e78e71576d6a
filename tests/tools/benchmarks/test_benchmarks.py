"""Every benchmark completes at the smallest size and prints its table."""

import json
import pathlib
import re
import sys

import pytest

from official_bert.modeling.config import BertConfig
from tests.conftest import WORDS
from tests.make import assert_refused
from tools.benchmarks import measuring


def read_rows(output: str) -> dict[str, list[float]]:
    """Returns the numbers in each row of a table, by row name."""
    cells = [line.strip("| ").split(" | ") for line in output.splitlines() if re.match(r"\| \w", line)]
    return {name: [float(value.replace(",", "")) for value in values] for name, *values in cells}


@pytest.fixture
def smallest(tiny_config: BertConfig, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of width 8 in place of BERT-Tiny, with the vocabulary of the benchmarks."""
    sizes = {**json.loads(tiny_config.to_json()), "vocab_size": 8000, "max_position_embeddings": 128}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    monkeypatch.setitem(measuring.MODELS, "tiny", str(tmp_path / "config"))


def test_programs_take_turns_and_medians_are_compared(capsys: pytest.CaptureFixture[str]):
    turns: list[str] = []

    def program(name: str, seconds: list[float]) -> measuring.Metrics:
        turns.append(name)
        return {"seconds": seconds.pop(0), "texts": 1234.5}

    seconds = {"a": [100.0, 2.0, 4.0, 3.0], "b": [0.0, 6.0, 5.0, 6.0]}
    programs = {name: lambda name=name: program(name, seconds[name]) for name in seconds}
    measuring.compare("A title", programs, 3, "seconds")
    assert "".join(turns) == "abababab"
    output = capsys.readouterr().out
    assert "A title, medians of 3 rounds\n" in output
    assert re.search(r"^\d{4}-\d\d-\d\d, .+, \d+ processors$", output, re.MULTILINE)
    assert output.endswith("| a | 3 | 1,234 | 1.00 |\n| b | 6 | 1,234 | 2.00 |\n")
    assert_refused("--rounds is 0", measuring.compare, "A title", programs, 0, "seconds")


def test_time_and_memory_of_a_process_and_its_children_are_measured():
    child = "import time; block = bytearray(300 << 20); time.sleep(0.5); sum(range(10**7))"
    parent = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}]); print('x'); print('{{\"a\": 1}}')"
    )
    usage = measuring.run([sys.executable, "-c", parent], watch_memory=True)
    assert usage.wall > 0.5
    assert usage.cpu > 0.05
    assert usage.memory > 300
    assert usage.own_memory > 300
    assert usage.result() == {"a": 1}


def test_a_process_that_fails_or_ends_too_early_is_an_error():
    with pytest.raises(SystemExit, match=r"exit code 3:\nwhy"):
        measuring.run([sys.executable, "-c", "print('why'); raise SystemExit(3)"])
    with pytest.raises(SystemExit, match="exit code 0"):
        measuring.run([sys.executable, "-c", ""], is_ready=lambda: False)
    usage = measuring.run([sys.executable, "-c", "import time; time.sleep(60)"], is_ready=lambda: True)
    assert usage.wall < 30


def test_a_corpus_is_the_text_repeated_up_to_the_end_of_a_document(tmp_path: pathlib.Path):
    from tools.benchmarks import generation

    document = b"the cat sat .\n" * 10 + b"\n"
    generation.write_corpus(document * 2000, str(tmp_path / "corpus"), 1)
    written = (tmp_path / "corpus").read_bytes()
    assert written == document * (1_000_000 // len(document))


@pytest.mark.slow
@pytest.mark.usefixtures("smallest")
def test_a_step_of_pretraining_is_measured_in_every_program(capsys: pytest.CaptureFixture[str]):
    from tools.benchmarks import pretraining

    pretraining.main(pretraining.Options(size="tiny", batch_size=2, steps=1, rounds=1))
    found = read_rows(capsys.readouterr().out)
    assert list(found) == list(pretraining.PROGRAMS)
    assert all(min(rate, rate_of_cpu) > 0 for rate, rate_of_cpu, *_ in found.values())


@pytest.mark.slow
@pytest.mark.usefixtures("smallest")
def test_finetuning_is_measured_in_every_program(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    from tools.benchmarks import finetuning

    rows = [f"{WORDS[10]} {'yes' if number % 2 else 'no'}\t{number % 2}" for number in range(40)]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    finetuning.main(finetuning.Options(
        train_file=str(tmp_path / "train.tsv"), eval_file=str(tmp_path / "dev.tsv"), size="tiny", rows=40, batch_size=1,
        max_seq_length=16, rounds=1,
    ))  # fmt: skip
    found = read_rows(capsys.readouterr().out)
    assert list(found) == ["official-bert finetune", *finetuning.PEERS]
    assert all(rate > 0 and 0 <= accuracy <= 100 for _, _, _, rate, _, accuracy, _ in found.values())


@pytest.mark.slow
@pytest.mark.usefixtures("smallest")
def test_answers_to_requests_are_measured(capsys: pytest.CaptureFixture[str]):
    from tools.benchmarks import serving

    serving.main(serving.Options(size="tiny", rounds=1, seconds=0.2))
    found = read_rows(capsys.readouterr().out)
    assert list(found) == [
        "Hugging Face pipeline", "Hugging Face pipeline, 32 texts at once", "ONNX Runtime",
        "SavedModel called in Python", "serve, SavedModel, 1 client", "serve, SavedModel, 32 clients",
        "serve, ONNX Runtime, 1 client", "serve, ONNX Runtime, 32 clients",
        "serve, ONNX Runtime, 8 bits, 1 client", "serve, ONNX Runtime, 8 bits, 32 clients",
    ]  # fmt: skip
    assert all(0 < median <= highest and rate > 0 for median, highest, rate, *_ in found.values())


@pytest.mark.slow
@pytest.mark.usefixtures("smallest")
def test_answers_to_a_file_are_measured_and_equal(capsys: pytest.CaptureFixture[str]):
    from tools.benchmarks import prediction

    prediction.main(prediction.Options(size="tiny", rows=70, rounds=1))
    found = read_rows(capsys.readouterr().out)
    assert list(found) == [
        "predict, SavedModel", "predict, ONNX Runtime", "predict, ONNX Runtime, 8 bits",
        "Hugging Face Trainer", "Hugging Face tokenizer, ONNX Runtime",
    ]  # fmt: skip
    assert all(min(values) > 0 for values in found.values())


@pytest.mark.slow
def test_record_generation_is_measured(tmp_path: pathlib.Path, vocab_file: str, capsys: pytest.CaptureFixture[str]):
    from tools.benchmarks import generation

    text = tmp_path / "text.txt"
    text.write_text(f"{' '.join(word for word in WORDS if word.isalpha())} .\nthe cat sat .\n\n" * 200)
    generation.main(
        generation.Options(text=[str(text)], vocab_file=vocab_file, sizes_mb=["1"], dupe_factor=1, rounds=1)
    )
    found = read_rows(capsys.readouterr().out)
    assert list(found) == ["1 MB, 1 worker", "1 MB, 2 workers"]
    assert len({instances for instances, *_ in found.values()}) == 1
    assert all(min(values) > 0 for values in found.values())


@pytest.mark.slow
@pytest.mark.usefixtures("smallest")
def test_starts_are_measured(capsys: pytest.CaptureFixture[str]):
    from tools.benchmarks import startup

    startup.main(startup.Options(size="tiny", rounds=1))
    found = read_rows(capsys.readouterr().out)
    assert len(found) == 6
    assert all(min(values) > 0 for values in found.values())
