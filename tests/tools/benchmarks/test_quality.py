"""The comparison of programs: the official_bert commands, the budget, and the table. A full comparison is slow."""

import json
import math
import pathlib

import pytest

from official_bert.utils import allocator, files
from tests.make import run_python, write_text
from tools.benchmarks import finetuning_quality, measuring, quality, quality_peers

PATHS = {"input_file": ["a"], "heldout_file": ["b"], "output_dir": "c"}


def our_run(**flags) -> quality.Run:
    (run,) = quality.list_runs(quality.Options(**PATHS, programs=["official_bert"], seeds=["1"], **flags))
    return run


@pytest.fixture
def shared(tmp_path):
    write_text(tmp_path / "vocab.txt", "[PAD]\n[UNK]\n")
    write_text(tmp_path / "text.txt", "a text.\n" * 100_000)
    return tmp_path


def test_every_run_has_a_unique_name():
    names = [run.name for run in quality.list_runs(quality.Options(**PATHS))]
    assert len(set(names)) == len(names) == 9


def test_official_bert_trains_one_phase_from_counted_weights(shared):
    flags = quality.make_flags(our_run(), shared, shared, 800)
    passes = math.ceil(800 * 32 * 64 / (800_000 / 4.5))
    expected = {"masked_lm_prob": 0.2, "max_predictions_per_seq": 13, "dupe_factor": min(10, passes)}
    assert flags["make-records"].items() >= expected.items()
    settings = {"init_from_records": True, "num_warmup_steps": 100, "dtype": "float32", "jit_compile": True}
    assert flags["pretrain"].items() >= {**settings, "num_train_steps": 800}.items()
    training = quality.make_flags(our_run(dtype="bfloat16", init_from_records=False), shared, shared, 4000)["pretrain"]
    assert [training[name] for name in settings] == [False, 300, "bfloat16", False]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_uses_its_precision_and_stays_within_its_budget(shared, monkeypatch, dtype):
    calls = []

    def run_peer(function: str, arguments):
        calls.append((function, arguments))
        return 40.0, {"start": 14.0, "step": 0.5}

    def run_command(command: str, **flags) -> float:
        calls.append((command, flags))
        return 1.0

    monkeypatch.setattr(quality, "run_peer", run_peer)
    monkeypatch.setattr(quality, "run_command", run_command)
    quality.run_official_bert(our_run(dtype=dtype), shared, shared)
    (_, measured), _, (_, trained) = calls
    assert [name for name, _ in calls] == ["measure_speed", "make-records", "pretrain"]
    assert measured.items() >= {"dtype": dtype, "jit_compile": dtype == "float32"}.items()
    assert trained.items() >= {"dtype": dtype, "num_train_steps": int((300 * 0.98 - 41 - 14) / 0.5)}.items()


@pytest.mark.slow
def test_the_speed_is_measured(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(allocator, "tune_allocator", lambda: None)
    monkeypatch.setattr(quality_peers, "_SECONDS_OF_CALL", 0.01)
    config = write_text(tmp_path / "bert_config.json", quality.SIZES["tiny"].config(50, 8).to_json())
    sizes = {"batch": 2, "length": 8, "predictions": 2}
    speed = quality_peers.measure_speed({"config": config, "dtype": "float32", "jit_compile": False, **sizes})
    assert 0 < speed["step"] < speed["start"]


def test_the_table_has_means_over_the_seeds():
    def make_result(program: str, loss: float):
        scores = {"loss": loss, "accuracy": 0.25}
        used = {"processor_seconds": 300, "steps": 100, "step_seconds": 0.1, "rate": 1e-3}
        return {"run": {"program": program}, **used, "heldout": {"pairs": scores, "whole": scores}}

    results = [("official_bert", 4.0), ("hugging_face", 5.0), ("official_bert", 4.2)]
    rows = quality.summarize([make_result(*result) for result in results])
    assert list(rows) == ["official_bert", "hugging_face"]
    expected = {"seeds": 2, "CPU-ms a step": 100, "right, %": 25, "loss": 4.1, "deviation of the loss": 0.1414}
    row = rows["official_bert"]
    assert {name: row[name] for name in expected} == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_every_program_runs_and_converted_weights_have_the_same_scores(tmp_path):
    documents = ("".join(f"the cat {n} sat on the mat {n * k} . a dog ran .\n" for n in range(9)) for k in range(40))
    text = write_text(tmp_path / "text.txt", "\n".join(documents))
    flags = "--minutes=0.01 --seeds=1 --vocab_size=60 --max_seq_length=16 --learning_rates=1e-3 --noinit_from_records"
    paths = [f"--input_file={text}", f"--heldout_file={text}", f"--output_dir={tmp_path}/out"]
    done = run_python("-m", "tools.benchmarks.quality", *paths, *flags.split())
    assert done.returncode == 0, done.stdout + done.stderr
    for program in ("hugging_face", "keras_hub"):
        results = files.read_json_object(str(tmp_path / "out" / f"{program}-tiny-0.01-1.json"))
        assert results["own_loss"] == pytest.approx(results["heldout"]["pairs_with_segments"], abs=1e-3)
    assert "| official_bert | 1 |" in done.stdout


def test_finished_runs_are_not_repeated_and_all_are_in_the_table(tmp_path: pathlib.Path, monkeypatch, capsys):
    rows = [f"{number}\tfirst {number}\tsecond\t{'not_' * (number % 2)}entailment\n" for number in range(6)]
    for part in ("train", "dev"):
        write_text(tmp_path / "RTE" / f"{part}.tsv", "".join(["index\tsentence1\tsentence2\tlabel\n", *rows]))
    runs, data, results = [], [], tmp_path / "results"

    def run(command: list[str]) -> measuring.Usage:
        program, options = command[-2], json.loads(command[-1])
        runs.append((program, options["seed"]))
        data.append([pathlib.Path(options["folder"], f"{part}.tsv").read_text() for part in ("train", "dev")])
        return measuring.Usage(9.0, 4.0 + options["seed"], 1.0, 1.0, json.dumps({"score": 0.5 + options["seed"] / 10}))

    monkeypatch.setattr(measuring, "run", run)
    monkeypatch.setattr(finetuning_quality, "CELLS", [("RTE", 5e-5)])
    flags = {"seeds": ["0", "1"], "rows": 4, "dev_rows": 9, "results_file": str(results)}
    options = finetuning_quality.Options(glue_dir=str(tmp_path), model="m", **flags)
    finetuning_quality.main(options)
    assert runs == [("fit", 0), ("hugging_face", 0), ("fit", 1), ("hugging_face", 1)]
    assert data == [data[0]] * 4
    (_, *train), (_, *dev) = (part.splitlines() for part in data[0])
    assert len(train) == 4
    assert sorted(dev) == [f"first {number}\tsecond\t{number % 2}" for number in range(6)]
    table = capsys.readouterr().out
    for name in ("official_bert `fit`", "Hugging Face's Trainer"):
        assert f"| RTE, accuracy | 5e-05 | {name} | 0.550 | 0.500 | 0.500 0.600 | 4 |\n" in table
    results.write_text("".join(results.read_text().splitlines(keepends=True)[:3]))
    finetuning_quality.main(options)
    assert (runs[4:], capsys.readouterr().out) == ([("hugging_face", 1)], table)
