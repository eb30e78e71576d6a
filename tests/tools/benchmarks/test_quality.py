"""The comparison of programs: the official_bert commands, the budget, and the table. A full comparison is slow."""

import math
import pathlib
from typing import Any

import pytest

from official_bert.utils import allocator, files
from tests.make import run_python, write_text
from tools.benchmarks import quality, quality_peers


def options(**flags: Any) -> quality.Options:
    return quality.Options(input_file=["a"], heldout_file=["b"], output_dir="c", **flags)


def our_run(**flags: Any) -> quality.Run:
    (run,) = quality.list_runs(options(programs=["official_bert"], seeds=["1"], **flags))
    return run


@pytest.fixture
def shared(tmp_path: pathlib.Path) -> pathlib.Path:
    write_text(tmp_path / "vocab.txt", "[PAD]\n[UNK]\n")
    write_text(tmp_path / "text.txt", "a text.\n" * 100_000)
    return tmp_path


def test_every_run_has_a_unique_name():
    assert len({run.name for run in quality.list_runs(options())}) == len(quality.list_runs(options())) == 9


def test_official_bert_trains_one_phase_from_counted_weights(shared: pathlib.Path):
    flags = quality.make_flags(our_run(), shared, shared, 800)
    passes = math.ceil(800 * 32 * 64 / (800_000 / 4.5))
    expected = {"masked_lm_prob": 0.2, "max_predictions_per_seq": 13, "dupe_factor": min(10, passes)}
    assert flags["make-records"].items() >= expected.items()
    expected = {"init_from_records": True, "num_train_steps": 800, "num_warmup_steps": 100}
    assert flags["pretrain"].items() >= {**expected, "dtype": "float32", "jit_compile": True}.items()
    training = quality.make_flags(our_run(dtype="bfloat16", init_from_records=False), shared, shared, 4000)["pretrain"]
    expected = {"num_warmup_steps": 300, "dtype": "bfloat16", "jit_compile": False, "init_from_records": False}
    assert training.items() >= expected.items()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_uses_its_precision_and_stays_within_its_budget(shared, monkeypatch, dtype):
    calls = []

    def run_peer(function: str, arguments: dict[str, Any]) -> tuple[float, Any]:
        calls.append((function, arguments))
        return 40.0, {"start": 14.0, "step": 0.5}

    def run_command(command: str, **flags: Any) -> float:
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
def test_the_speed_is_measured(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(allocator, "tune_allocator", lambda: None)
    monkeypatch.setattr(quality_peers, "_SECONDS_OF_CALL", 0.01)
    config = write_text(tmp_path / "bert_config.json", quality.SIZES["tiny"].config(50, 8).to_json())
    sizes = {"batch": 2, "length": 8, "predictions": 2}
    speed = quality_peers.measure_speed({"config": config, "dtype": "float32", "jit_compile": False, **sizes})
    assert 0 < speed["step"] < speed["start"]


def test_the_table_has_means_over_the_seeds():
    def make_result(program: str, loss: float) -> dict[str, Any]:
        scores = {"loss": loss, "accuracy": 0.25}
        used = {"processor_seconds": 300, "steps": 100, "step_seconds": 0.1, "rate": 1e-3}
        return {"run": {"program": program}, **used, "heldout": {"pairs": scores, "whole": scores}}

    results = [("official_bert", 4.0), ("hugging_face", 5.0), ("official_bert", 4.2)]
    rows = quality.summarize([make_result(*result) for result in results])
    assert list(rows) == ["official_bert", "hugging_face"]
    row = rows["official_bert"]
    assert (row["seeds"], row["CPU-ms a step"], row["right, %"]) == (2, 100, 25)
    assert row["loss"] == pytest.approx(4.1)
    assert row["deviation of the loss"] == pytest.approx(0.1414, abs=1e-4)


@pytest.mark.slow
def test_every_program_runs_and_converted_weights_have_the_same_scores(tmp_path: pathlib.Path):
    lines = [
        f"the cat {n} sat on the mat {n * k} . a dog ran .\n" + "\n" * (n == 8) for k in range(40) for n in range(9)
    ]
    text = write_text(tmp_path / "text.txt", "".join(lines))
    flags = "--minutes=0.01 --seeds=1 --vocab_size=60 --max_seq_length=16 --learning_rates=1e-3 --noinit_from_records"
    paths = [f"--input_file={text}", f"--heldout_file={text}", f"--output_dir={tmp_path}/out"]
    done = run_python("-m", "tools.benchmarks.quality", *paths, *flags.split())
    assert done.returncode == 0, done.stdout + done.stderr
    for program in ("hugging_face", "keras_hub"):
        results = files.read_json_object(str(tmp_path / "out" / f"{program}-tiny-0.01-1.json"))
        assert results["own_loss"] == pytest.approx(results["heldout"]["pairs_with_segments"], abs=1e-3)
    assert "| official_bert | 1 |" in done.stdout
