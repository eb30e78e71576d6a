"""Every benchmark completes at the smallest size and prints its table."""

import importlib
import re
import sys

import pytest

from official_bert.utils.command_line import Command
from tests.make import WORDS, assert_rejected, tiny_config, write_text, write_vocab
from tools.benchmarks import finetuning, generation, measuring, pretraining


def read_rows(output: str) -> dict[str, list[float]]:
    """Returns the numbers in each row of a table, by row name."""
    cells = [line.strip("| ").split(" | ") for line in output.splitlines() if re.match(r"\| \w", line)]
    return {name: [float(value.replace(",", "")) for value in values] for name, *values in cells}


@pytest.fixture
def smallest(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """A folder of small data. A model of width 8 replaces BERT-Tiny, with the vocabulary of the benchmarks."""
    write_text(tmp_path / "config.json", tiny_config(vocab_size=8000, max_position_embeddings=128).to_json())
    monkeypatch.setitem(measuring.MODELS, "tiny", str(tmp_path / "config"))
    rows = [f"{WORDS[10]} {'yes' if number % 2 else 'no'}\t{number % 2}" for number in range(40)]
    write_text(tmp_path / "rows.tsv", "\n".join(["sentence\tlabel", *rows]) + "\n")
    write_text(tmp_path / "text.txt", f"{' '.join(filter(str.isalpha, WORDS))} .\nthe cat sat .\n\n" * 200)
    write_vocab(tmp_path / "vocab.txt")
    return tmp_path


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
    assert re.search(r"A title, medians of 3 rounds\n(.*\n)*\d{4}-\d\d-\d\d, .+, \d+ processors\n", output)
    assert output.endswith("| a | 3 | 1,234 | 1.00 |\n| b | 6 | 1,234 | 2.00 |\n")
    assert_rejected(("--rounds", 0, 1), measuring.compare, "A title", programs, 0, "seconds")


def test_time_and_memory_of_a_process_and_its_children_are_measured():
    child = "import time; block = bytearray(300 << 20); time.sleep(0.3); sum(range(10**7))"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}]); print('{{\"a\": 1}}')"
    usage = measuring.run([sys.executable, "-c", f"print('x'); {parent}"], watch_memory=True)
    assert usage.wall > 0.3
    assert usage.cpu > 0.05
    assert min(usage.memory, usage.own_memory) > 300
    assert usage.result() == {"a": 1}


def test_a_process_that_fails_or_ends_too_early_is_an_error():
    with pytest.raises(SystemExit, match="3:\nwhy"):
        measuring.run([sys.executable, "-c", "print('why'); raise SystemExit(3)"])
    with pytest.raises(SystemExit, match=" 0:"):
        measuring.run([sys.executable, "-c", ""], is_ready=lambda: False)
    usage = measuring.run([sys.executable, "-c", "import time; time.sleep(60)"], is_ready=lambda: True)
    assert usage.wall < 30


def test_a_corpus_is_the_text_repeated_up_to_the_end_of_a_document(tmp_path):
    document = b"the cat sat .\n" * 10 + b"\n"
    generation.write_corpus(document * 2000, str(tmp_path / "corpus"), 1)
    written = (tmp_path / "corpus").read_bytes()
    assert written == document * (1_000_000 // len(document))


SERVERS = ["SavedModel", "ONNX Runtime", "ONNX Runtime, 8 bits"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "flags", "rows"), [
    ("pretraining", "--size=tiny --batch_size=2 --steps=1", list(pretraining.PROGRAMS)),
    ("finetuning", "--train_file=rows.tsv --eval_file=rows.tsv --size=tiny --rows=40 --batch_size=1",
     ["official-bert finetune", *finetuning.PEERS]),
    ("serving", "--size=tiny --seconds=0.2", ["Hugging Face pipeline", "Hugging Face pipeline, 32 texts at once",
     "ONNX Runtime", "SavedModel called in Python",
     *(f"serve, {each}, {clients}" for each in SERVERS for clients in ("1 client", "32 clients"))]),
    ("prediction", "--size=tiny --rows=70", [*(f"predict, {each}" for each in SERVERS), "Hugging Face Trainer",
     "Hugging Face tokenizer, ONNX Runtime"]),
    ("generation", "--text=text.txt --vocab_file=vocab.txt --sizes_mb=1 --dupe_factor=1",
     ["1 MB, 1 worker", "1 MB, 2 workers"]),
    ("startup", "--size=tiny", None),
])  # fmt: skip
def test_every_program_is_measured(name: str, flags: str, rows: list[str] | None, smallest, capsys, monkeypatch):
    module = importlib.import_module(f"tools.benchmarks.{name}")
    monkeypatch.chdir(smallest)
    command = Command(program="", summary="", main=module.main, options=(module.Options,))
    module.main(*command.parse([*flags.split(), "--rounds=1"]))
    found = read_rows(capsys.readouterr().out)
    assert list(found) == rows or (rows is None and len(found) == 6)
    assert all(min(figures) >= 0 < min(figures[:2]) for figures in found.values())
    if name == "serving":
        assert all(median <= highest for median, highest, *_ in found.values())
    if name == "generation":
        assert len({instances for instances, *_ in found.values()}) == 1
