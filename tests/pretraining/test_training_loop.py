"""The training loop: the files it writes, how it ends, and how steps are grouped into calls."""

import json
import os
import re
import signal
import subprocess
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from official_bert.checkpoints.run_checkpoints import find_newest_step
from official_bert.data import record_codec, record_reader
from official_bert.pretraining import run
from official_bert.pretraining.evaluation import HeldOutEvaluation
from official_bert.pretraining.run import pretrain
from official_bert.pretraining.run_records import RunRecords
from official_bert.pretraining.train_step import Pretrainer
from official_bert.runs.training_log import format_line, read_log
from tests.conftest import ROOT, slow_after
from tests.event_files import read_scalars
from tests.make import assert_mentions, assert_rejected, refusal
from tests.pretraining.pretraining_runs import LENGTH, PREDICTIONS, SCHEMA, log_values, pretrain_command


def test_a_run_writes_all_documented_files(make_options, record_files, vocab_file, tmp_path, capsys, eager_steps):
    folder, steps = tmp_path / "run", {"num_train_steps": 3, "phase2_num_train_steps": 2, "keep_checkpoint_max": 1}
    sizes = {"phase2_max_seq_length": LENGTH, "phase2_max_predictions_per_seq": PREDICTIONS, "eval_batch_size": 40}
    changes = {**steps, **sizes, "phase2_input_file": record_files, "phase2_train_batch_size": 4}
    assert pretrain(make_options(do_eval=True, vocab_file=vocab_file, **changes)) == 0
    assert {path.name for path in folder.iterdir()} == set(
        "bert_config.json vocab.txt tokenizer_config.json checkpoint ckpt-5.index ckpt-5.data-00000-of-00001 "
        "train.jsonl eval.jsonl train eval eval_results.txt run.json MODEL_CARD.md checksums.json".split()
    )
    assert "4 files have no manifest" in (folder / "MODEL_CARD.md").read_text()
    printed = re.findall("^step .*", capsys.readouterr().out, re.MULTILINE)
    # The first step of each phase compiles.
    assert ["examples/s" in line for line in printed] == [False, True, True, False, True]
    assert tf.train.load_variable(str(folder), "place/position/.ATTRIBUTES/VARIABLE_VALUE") == 2 * 4
    lines = read_log(str(folder), "train")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert set(lines[0]) == set(
        "step loss masked_lm_loss masked_lm_accuracy next_sentence_loss next_sentence_accuracy learning_rate "
        "gradient_norm steps_per_second examples_per_second tokens_per_second input_wait_share max_seq_length "
        "processor_seconds".split()
    )
    assert [lines[step]["learning_rate"] for step in (0, 4)] == pytest.approx([0.0, 1e-2 * (1 - 4 / 5)])
    results = dict(line.split(" = ") for line in (folder / "eval_results.txt").read_text().splitlines())
    scores = "loss masked_lm_accuracy masked_lm_loss next_sentence_accuracy next_sentence_loss".split()
    assert list(results) == ["global_step", *scores]
    assert results["global_step"] == "5"
    assert set(read_scalars(folder / "train")) == set(lines[0]) - {"step"}
    assert set(read_scalars(folder / "eval")) == {*scores, "predictions"}


@pytest.mark.parametrize("step", [20, 21])
@pytest.mark.usefixtures("eager_steps")
def test_a_stop_during_an_evaluation_saves_the_steps_before_it_and_no_step_follows(
    step, make_options, record_files, finished_run, monkeypatch, capsys
):
    def evaluate_until_sigterm(_, is_stopping):
        os.kill(os.getpid(), signal.SIGTERM)
        return not is_stopping()

    monkeypatch.setattr(HeldOutEvaluation, "evaluate_checkpoint", evaluate_until_sigterm)
    changes = {"num_train_steps": 30, "allow_changes": ["num_train_steps"]}
    options = make_options(eval_input_file=record_files, eval_steps=step, **changes)
    assert pretrain(options) == 128 + signal.SIGTERM
    assert capsys.readouterr().out.endswith(f"stopped at step {step}; run the same command to resume\n")
    assert log_values(finished_run, "step")[-1] == step
    assert find_newest_step(str(finished_run)) == step


@pytest.mark.slow
def test_deterministic_runs_save_the_same_bytes(record_files, config_file, tmp_path):
    environment = {**os.environ, "TF_NUM_INTRAOP_THREADS": "4", "TF_NUM_INTEROP_THREADS": "4"}
    flags = ("--do_eval", f"--eval_input_file={record_files[1]}", "--num_train_steps=5", "--deterministic")
    saved = []
    for name in ("one", "other"):
        command = pretrain_command(record_files, config_file, tmp_path / name, *flags)
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        saved.append({path.name: path.read_bytes() for path in (tmp_path / name).glob("ckpt-5.*")})
    assert len(saved[0]) == 2
    assert saved[1] == saved[0]
    assert json.loads((tmp_path / "one" / "run.json").read_text())["flags"]["deterministic"] is True


@pytest.mark.slow
def test_evaluation_does_not_change_the_training_log(make_options, finished_run):
    log = finished_run / "train.jsonl"
    before = log.read_text() + format_line({**read_log(str(finished_run), "train")[-1], "step": 25})
    log.write_text(before)
    for _ in range(2):
        pretrain(make_options(do_train=False, do_eval=True))
    assert log.read_text() == before
    assert len(log_values(finished_run, "step", "eval")) == 2


def test_a_damaged_line_of_a_log_is_named(make_options, finished_run):
    (finished_run / "train.jsonl").write_text("{\n")
    assert_rejected(f"{finished_run}/train.jsonl, line 1", pretrain, make_options())


@pytest.mark.slow
def test_a_run_works_without_tensorboard_and_reports_a_full_disk(make_options, tmp_path, monkeypatch):
    fail = mock.Mock(side_effect=tf.errors.ResourceExhaustedError(None, None, "ENOSPC"))
    with monkeypatch.context() as patch:
        patch.setattr("official_bert.runs.training_log.importlib.util.find_spec", lambda _: None)
        pretrain(make_options())
    assert len(log_values(tmp_path / "run")) == 20
    assert not (tmp_path / "run" / "train").exists()
    monkeypatch.setattr("tensorflow.summary.create_file_writer", fail)
    assert_rejected((tmp_path / "other", "ENOSPC"), pretrain, make_options("other"))


@pytest.mark.usefixtures("eager_steps")
def test_a_loss_that_is_not_finite_stops_the_run_and_its_records_are_named(make_options, tiny_config):
    # The first step uses random weights and is finite. At this learning rate it makes the weights useless.
    options = make_options(learning_rate=1e30, num_warmup_steps=0)
    message = refusal(pretrain, options)
    assert_mentions(message, "step 2", "nan")
    found = re.findall(r"([\w/.-]+\.tfrecord): ([\d, ]+)", message)
    named = [list(record_reader.read_file(path))[int(each)] for path, those in found for each in those.split(", ")]
    # The second batch read by training.
    records = RunRecords(options, tiny_config, replicas=1).training(options.phases[0])
    batch = list(records.training_batches(8, options.random_seed, 0).take(2))[1]
    encoded = record_codec.encode({name: np.asarray(value) for name, value in batch.items()}, SCHEMA)
    assert len(set(named)) == 8
    assert sorted(named) == sorted(encoded)


@pytest.mark.slow
def test_calls_become_longer_once_the_step_time_is_known(make_options, tmp_path, monkeypatch):
    train = mock.create_autospec(Pretrainer.train, side_effect=Pretrainer.train)
    monkeypatch.setattr(Pretrainer, "train", train)
    pretrain(make_options("quick", log_steps=20))
    assert [call.args[2] for call in train.call_args_list] == [1, 1, 8, 10]
    train.reset_mock()
    monkeypatch.setattr(run, "_MAX_CALL_SECONDS", 1e-9)
    pretrain(make_options("slow", log_steps=20, profile_steps=["3", "5"]))
    assert [call.args[2] for call in train.call_args_list] == [1] * 20
    assert log_values(tmp_path / "quick") == log_values(tmp_path / "slow")
    assert list((tmp_path / "slow" / "train").rglob("*.xplane.pb"))


@pytest.mark.parametrize(("dtype", "scales"), slow_after(0, [("bfloat16", 0), ("float16", 2)]))
def test_half_precision_trains_and_float16_with_a_scaled_loss(make_options, dtype, scales, tmp_path):
    pretrain(make_options(dtype=dtype))
    losses = log_values(tmp_path / "run")
    assert sum(losses[-5:]) < sum(losses[:5])
    assert sum(name.startswith("loss_scale/") for name, _ in tf.train.list_variables(str(tmp_path / "run"))) == scales
