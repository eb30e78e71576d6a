"""The comparison of programs: the official_bert commands, the budget, and the table. A full comparison is slow."""

import math
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from official_bert.utils import allocator, files
from tests.conftest import ROOT
from tools.benchmarks import quality, quality_peers


def options(**flags: Any) -> quality.Options:
    return quality.Options(input_file=["a"], heldout_file=["b"], output_dir="c", **flags)


def our_run(**flags: Any) -> quality.Run:
    (run,) = quality.list_runs(options(programs=["official_bert"], seeds=["1"], **flags))
    return run


@pytest.fixture
def shared(tmp_path: pathlib.Path) -> pathlib.Path:
    for name, content in {"vocab.txt": "[PAD]\n[UNK]\n", "text.txt": "a text.\n" * 100_000}.items():
        (tmp_path / name).write_text(content)
    return tmp_path


def test_every_run_has_a_name_of_its_own():
    names = [run.name for run in quality.list_runs(options())]
    assert len(names) == len(set(names)) == 9


def test_official_bert_trains_one_phase_from_counted_weights(shared: pathlib.Path):
    flags = quality.make_flags(our_run(), shared, shared, 800)
    records, training = flags["make-records"], flags["pretrain"]
    passes = math.ceil(800 * 32 * 64 / (800_000 / 4.5))
    assert (records["masked_lm_prob"], records["max_predictions_per_seq"]) == (0.2, 13)
    assert records["dupe_factor"] == min(10, passes)
    assert training["init_from_records"] is True
    assert (training["num_train_steps"], training["num_warmup_steps"]) == (800, 100)
    assert (training["dtype"], training["jit_compile"]) == ("float32", True)
    training = quality.make_flags(our_run(dtype="bfloat16", init_from_records=False), shared, shared, 4000)["pretrain"]
    assert training["num_warmup_steps"] == 300
    assert (training["dtype"], training["jit_compile"], training["init_from_records"]) == ("bfloat16", False, False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_is_measured_and_trained_in_its_precision_within_its_budget(shared, monkeypatch, dtype):
    measured, commands = [], []

    def run_peer(function: str, arguments: dict[str, Any]) -> tuple[float, Any]:
        measured.append((function, arguments["dtype"], arguments["jit_compile"]))
        return 40.0, {"start": 14.0, "step": 0.5}

    def run_command(command: str, **flags: Any) -> float:
        commands.append((command, flags))
        return 1.0

    monkeypatch.setattr(quality, "run_peer", run_peer)
    monkeypatch.setattr(quality, "run_command", run_command)
    quality.run_official_bert(our_run(dtype=dtype), shared, shared)
    assert measured == [("measure_speed", dtype, dtype == "float32")]
    assert [command for command, _ in commands] == ["make-records", "pretrain"]
    flags = commands[-1][1]
    assert flags["dtype"] == dtype
    assert flags["num_train_steps"] == int((300 * 0.98 - 41 - 14) / 0.5)


@pytest.mark.slow
def test_the_speed_is_measured(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(allocator, "tune_allocator", lambda: None)
    monkeypatch.setattr(quality_peers, "_SECONDS_OF_CALL", 0.01)
    (tmp_path / "bert_config.json").write_text(quality.SIZES["tiny"].config(50, 8).to_json())
    speed = quality_peers.measure_speed({
        "config": str(tmp_path / "bert_config.json"), "dtype": "float32", "jit_compile": False, "batch": 2,
        "length": 8, "predictions": 2,
    })  # fmt: skip
    assert 0 < speed["step"] < speed["start"]


def test_the_table_has_means_over_the_seeds():
    def result(program: str, seed: int, loss: float) -> dict[str, Any]:
        scores = {"loss": loss, "accuracy": 0.25}
        return {
            "run": {"program": program, "seed": seed}, "processor_seconds": 300, "steps": 100, "step_seconds": 0.1,
            "rate": 1e-3, "heldout": {"pairs": scores, "whole": scores},
        }  # fmt: skip

    rows = quality.summarize([
        result("official_bert", 1, 4.0), result("hugging_face", 1, 5.0), result("official_bert", 2, 4.2)
    ])  # fmt: skip
    assert list(rows) == ["official_bert", "hugging_face"]
    row = rows["official_bert"]
    assert (row["seeds"], row["CPU-ms a step"], row["right, %"]) == (2, 100, 25)
    assert row["loss"] == pytest.approx(4.1)
    assert row["deviation of the loss"] == pytest.approx(0.1414, abs=1e-4)


@pytest.mark.slow
def test_every_program_runs_to_its_end_and_the_converted_weights_score_as_their_own_do(tmp_path: pathlib.Path):
    text = "\n\n".join(
        "\n".join(f"the cat {n} sat on the mat {n * k} . a dog ran ." for n in range(9)) for k in range(40)
    )
    (tmp_path / "text.txt").write_text(text)
    command = [
        sys.executable, "-m", "tools.benchmarks.quality", f"--input_file={tmp_path}/text.txt", "--minutes=0.01",
        "--seeds=1", f"--heldout_file={tmp_path}/text.txt", f"--output_dir={tmp_path}/out", "--vocab_size=60",
        "--max_seq_length=16", "--learning_rates=1e-3", "--noinit_from_records",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for program in ("hugging_face", "keras_hub"):
        results = files.read_json_object(str(tmp_path / "out" / f"{program}-tiny-0.01-1.json"))
        assert results["own_loss"] == pytest.approx(results["heldout"]["pairs_with_segments"], abs=1e-3)
    assert "| official_bert | 1 |" in done.stdout
