"""The training loop: the files it writes, how it ends, and how steps are grouped into calls."""

import json
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.pretraining import run
from official_bert.pretraining.evaluation import HeldOutEvaluation
from official_bert.pretraining.run import pretrain
from official_bert.pretraining.train_step import Pretrainer
from official_bert.runs.training_log import format_line, read_log
from tests.conftest import ROOT
from tests.event_files import read_scalars
from tests.make import assert_refused
from tests.pretraining.pretraining_runs import OptionsMaker, assert_same_to_the_bit, checkpoint, pretrain_command


def test_a_run_leaves_everything_behind_that_it_promises(make_options, vocab_file, tmp_path):
    folder = tmp_path / "run"
    options = make_options(folder, do_eval=True, vocab_file=vocab_file, keep_checkpoint_max=1)
    assert pretrain(options) == 0
    assert {path.name for path in folder.iterdir()} == {
        "bert_config.json", "vocab.txt", "tokenizer_config.json", "checkpoint", "ckpt-20.index",
        "ckpt-20.data-00000-of-00001", "train.jsonl", "eval.jsonl", "train", "eval", "eval_results.txt",
        "run.json", "MODEL_CARD.md", "checksums.json",
    }  # fmt: skip
    lines = read_log(str(folder), "train")
    assert [line["step"] for line in lines] == list(range(1, 21))
    assert set(lines[0]) == {
        "step", "loss", "masked_lm_loss", "masked_lm_accuracy", "next_sentence_loss", "next_sentence_accuracy",
        "learning_rate", "gradient_norm", "steps_per_second", "examples_per_second", "tokens_per_second",
        "input_wait_share", "max_seq_length", "processor_seconds",
    }  # fmt: skip
    assert lines[0]["learning_rate"] == 0.0
    assert lines[4]["learning_rate"] == pytest.approx(1e-2 * (1 - 4 / 20))
    results = dict(line.split(" = ") for line in (folder / "eval_results.txt").read_text().splitlines())
    assert list(results) == [
        "global_step", "loss", "masked_lm_accuracy", "masked_lm_loss", "next_sentence_accuracy", "next_sentence_loss",
    ]  # fmt: skip
    assert results["global_step"] == "20"
    assert set(read_scalars(folder / "train")) == set(lines[0]) - {"step"}
    assert set(read_scalars(folder / "eval")) == set(results) - {"global_step"} | {"predictions"}


def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(make_options, shared_run, finished_run):
    straight, halved = shared_run, finished_run
    # A kill would lose what follows step 10.
    for path in halved.glob("ckpt-20*"):
        path.unlink()
    pretrain(make_options(halved))
    assert_same_to_the_bit(checkpoint(straight, 20), checkpoint(halved, 20), least=90)
    losses = [[line["loss"] for line in read_log(str(folder), "train")] for folder in (straight, halved)]
    assert len(losses[1]) == 20
    assert losses[1] == losses[0]


@pytest.mark.slow
def test_sigterm_saves_and_the_same_command_goes_on(record_files: list[str], config_file: str, tmp_path: pathlib.Path):
    steps = ("--num_train_steps=100000", "--log_steps=5", "--nocompile_parts")
    command = pretrain_command(record_files, config_file, tmp_path / "run", *steps)
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    log = tmp_path / "run" / "train.jsonl"
    deadline = time.monotonic() + 120
    while (not log.exists() or not log.stat().st_size) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, output
    saved = tf.train.latest_checkpoint(f"{tmp_path}/run")
    assert saved is not None, output
    step = int(saved.rsplit("-", 1)[1])
    assert f"stopped at step {step:,}; run the same command to resume" in output
    command = [part.replace("100000", str(step + 5)) for part in command] + ["--allow_changes=num_train_steps"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"resuming from {saved}, step {step:,}" in done.stdout
    assert [line["step"] for line in read_log(f"{tmp_path}/run", "train")][-1] == step + 5


def test_a_stop_during_the_first_evaluation_of_a_resumed_run_takes_no_step(
    make_options, record_files, finished_run, monkeypatch, capsys
):
    def evaluate_until_sigterm(_: HeldOutEvaluation, is_stopping: Callable[[], bool]) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        return not is_stopping()

    monkeypatch.setattr(HeldOutEvaluation, "evaluate_checkpoint", evaluate_until_sigterm)
    changes = {"num_train_steps": 30, "allow_changes": ["num_train_steps"]}
    options = make_options(finished_run, eval_input_file=record_files, eval_steps=20, **changes)
    assert pretrain(options) == 128 + signal.SIGTERM
    assert capsys.readouterr().out.endswith("stopped at step 20; run the same command to resume\n")
    assert [line["step"] for line in read_log(str(finished_run), "train")][-1] == 20


@pytest.mark.slow
def test_deterministic_runs_save_the_same_bytes(record_files: list[str], config_file: str, tmp_path: pathlib.Path):
    environment = {**os.environ, "TF_NUM_INTRAOP_THREADS": "4", "TF_NUM_INTEROP_THREADS": "4"}
    saved = []
    for name in ("one", "other"):
        flags = ("--do_eval", f"--eval_input_file={record_files[1]}", "--num_train_steps=5", "--deterministic")
        command = pretrain_command(record_files, config_file, tmp_path / name, *flags)
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        saved.append([(path.name, path.read_bytes()) for path in sorted((tmp_path / name).glob("ckpt-5.*"))])
    assert len(saved[0]) == 2
    assert saved[1] == saved[0]
    assert json.loads((tmp_path / "one" / "run.json").read_text())["flags"]["deterministic"] is True


@pytest.mark.slow
def test_evaluation_leaves_the_training_log_alone(make_options: OptionsMaker, finished_run: pathlib.Path):
    folder = finished_run
    log = folder / "train.jsonl"
    before = log.read_text() + format_line({**read_log(str(folder), "train")[-1], "step": 25})
    log.write_text(before)
    for _ in range(2):
        pretrain(make_options(folder, do_train=False, do_eval=True))
    assert (folder / "train.jsonl").read_text() == before
    assert len(read_log(str(folder), "eval")) == 2


def test_damaged_log_is_named_by_line(make_options: OptionsMaker, finished_run: pathlib.Path):
    log = finished_run / "train.jsonl"
    log.write_text(log.read_text().replace('"step": 3,', '"step": 3', 1))
    assert_refused("train.jsonl, line 3, is not valid JSON", pretrain, make_options(finished_run))


@pytest.mark.slow
def test_run_without_tensorboard_goes_on(make_options, tmp_path, monkeypatch):
    monkeypatch.setattr("official_bert.runs.training_log.importlib.util.find_spec", lambda _: None)
    pretrain(make_options(tmp_path / "run"))
    assert len(read_log(str(tmp_path / "run"), "train")) == 20
    assert not (tmp_path / "run" / "train").exists()


@pytest.mark.slow
def test_full_disk_while_logging_is_told(make_options, tmp_path, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr("tensorflow.summary.create_file_writer", fail)
    with pytest.raises(UserError, match="cannot write the log in .* No space left on device"):
        pretrain(make_options(tmp_path / "run"))


def test_a_loss_that_is_not_finite_stops_the_run(make_options: OptionsMaker, tmp_path: pathlib.Path):
    options = make_options(tmp_path / "run", learning_rate=1e30, num_warmup_steps=0)
    assert_refused(r"not finite in step \d+: loss nan.*numbered from 0: .*\.tfrecord: \d+", pretrain, options)


def test_a_run_that_only_skips_steps_is_stopped(make_options: OptionsMaker, tmp_path: pathlib.Path):
    steps = {"num_train_steps": 300, "num_warmup_steps": 0, "log_steps": 50, "save_checkpoints_steps": 300}
    options = make_options(tmp_path / "run", learning_rate=1e30, on_nonfinite="skip", **steps)
    assert_refused(r"\(\d+ steps in a row were skipped\)", pretrain, options)
    assert all(np.isfinite(line["loss"]) and line["loss"] > 0 for line in read_log(options.output_dir, "train"))


def test_checkpoint_that_cannot_be_written_leaves_the_earlier_ones(make_options, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    write = tf.train.Checkpoint.write

    def fail_later(self, path: str) -> str:
        if path.endswith("ckpt-20"):
            raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")
        return write(self, path)

    monkeypatch.setattr(tf.train.Checkpoint, "write", fail_later)
    with pytest.raises(UserError, match="cannot save step 20 .* No space left on device; the earlier checkpoints"):
        pretrain(make_options(folder))
    assert tf.train.latest_checkpoint(str(folder)) == os.path.join(folder, "ckpt-10")


@pytest.mark.slow
def test_calls_get_long_once_it_is_known_how_long_a_step_takes(make_options, tmp_path, monkeypatch):
    calls = []
    train = Pretrainer.train

    def noted(self: Pretrainer, batches: object, steps: int) -> dict[str, float]:
        calls.append(steps)
        return train(self, batches, steps)

    monkeypatch.setattr(Pretrainer, "train", noted)
    quick = make_options(tmp_path / "quick", log_steps=20)
    pretrain(quick)
    assert calls == [1, 1, 8, 10]
    calls.clear()
    monkeypatch.setattr(run, "_MAX_CALL_SECONDS", 1e-9)
    pretrain(make_options(tmp_path / "slow", log_steps=20, profile_steps=["3", "5"]))
    assert calls == [1] * 20
    logs = [read_log(str(tmp_path / name), "train") for name in ("quick", "slow")]
    losses = [[line["loss"] for line in lines] for lines in logs]
    assert losses[0] == losses[1]
    assert list((tmp_path / "slow" / "train").rglob("*.xplane.pb"))


@pytest.mark.slow
def test_bfloat16_trains(make_options: OptionsMaker, tmp_path: pathlib.Path):
    pretrain(make_options(tmp_path / "run", dtype="bfloat16"))
    losses = [line["loss"] for line in read_log(str(tmp_path / "run"), "train")]
    assert sum(losses[-5:]) < sum(losses[:5])


@pytest.mark.slow
def test_float16_trains_with_a_scaled_loss(make_options: OptionsMaker, tmp_path: pathlib.Path):
    folder = tmp_path / "run"
    pretrain(make_options(folder, dtype="float16"))
    losses = [line["loss"] for line in read_log(str(folder), "train")]
    assert sum(losses[-5:]) < sum(losses[:5])
    names = [name for name, _ in tf.train.list_variables(str(folder))]
    assert sum(name.startswith("loss_scale/") for name in names) == 2
