"""Resuming pre-training after it was stopped, changed or killed, and from lost, damaged or unfinished checkpoints."""

import dataclasses
import itertools
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import time
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import official_bert
from data_gen.options import RecordOptions
from official_bert.checkpoints import bundle
from official_bert.checkpoints.loading import load_pretraining_model
from official_bert.checkpoints.run_checkpoints import RunCheckpoints, find_newest_complete, get_stored_name
from official_bert.data import record_schema
from official_bert.errors import UserError
from official_bert.pretraining import monitor, run
from official_bert.pretraining.evaluation import HeldOutEvaluation
from official_bert.pretraining.run import pretrain, restore
from official_bert.pretraining.run_metadata import check_resume_compatibility, describe_file_changes
from official_bert.pretraining.train_step import Pretrainer
from official_bert.runs.training_log import format_line, read_log
from tests import make
from tests.make import ROOT, WORDS, assert_mentions, assert_rejected, refusal, write_text
from tests.pretraining import pretraining_runs as runs

LONGER = 16


@pytest.fixture
def longer_files(tmp_path):
    """Records of a second phase: longer by padding."""
    rng = random.Random(5)
    records = [runs.random_record(rng, size=LONGER) for _ in range(40)]
    schema = record_schema.pretraining_schema(LONGER, runs.PREDICTIONS)
    return [runs.write_records(tmp_path / "longer.tfrecord", records, schema)]


def place(folder, step):
    """Returns the phase and the number of records of that phase that were used."""
    saved = runs.checkpoint(folder, step)
    return tuple(int(saved[f"place/{name}/.ATTRIBUTES/VARIABLE_VALUE"]) for name in ("phase", "position"))


def test_a_killed_and_then_stopped_run_resumes_exactly(make_options, shared_run, finished_run, monkeypatch):
    runs.remove_checkpoints(finished_run, after=10)
    train = Pretrainer.train

    def train_until_sigterm(self, *arguments):
        if self.step == 12:
            os.kill(os.getpid(), signal.SIGTERM)
        return train(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Pretrainer, "train", train_until_sigterm)
        assert pretrain(make_options()) == 128 + signal.SIGTERM
    assert tf.train.latest_checkpoint(str(finished_run)).endswith("ckpt-13")
    assert pretrain(make_options()) == 0
    runs.assert_same_checkpoint(shared_run, finished_run, 20, least=90)
    assert runs.log_values(finished_run) == runs.log_values(shared_run)


@pytest.mark.slow
def test_two_phases_can_be_resumed_around_their_boundary(make_options, longer_files, tmp_path):
    phase2 = {"num_train_steps": 6, "input_file": longer_files, "max_seq_length": LONGER, "train_batch_size": 4}
    phase2 |= {"max_predictions_per_seq": runs.PREDICTIONS, "learning_rate": 5e-3, "num_warmup_steps": 2}
    changes = {f"phase2_{name}": value for name, value in phase2.items()}
    changes |= {"num_train_steps": 6, "save_checkpoints_steps": 4, "keep_checkpoint_max": 9}
    straight = tmp_path / "straight"
    assert pretrain(make_options(straight, **changes)) == 0
    assert {path.name for path in straight.glob("ckpt-*.index")} == {f"ckpt-{step}.index" for step in (4, 6, 8, 12)}
    assert runs.log_values(straight, "max_seq_length") == [runs.LENGTH] * 6 + [LONGER] * 6
    assert runs.log_values(straight, "learning_rate")[6:8] == pytest.approx([0, 2.5e-3])  # it warms up again
    for step in (4, 6, 8):
        again = shutil.copytree(straight, tmp_path / str(step))
        runs.remove_checkpoints(again, after=step)
        assert pretrain(make_options(again, **changes)) == 0
        runs.assert_same_checkpoint(straight, again, 12)
        assert runs.log_values(again) == runs.log_values(straight)


def test_the_record_files_that_differ_are_named():
    def make_identities(files):
        return {"1": [{"file": name, "sha256": None if sha == "-" else sha} for name, sha in files.split()]}

    expected = {"a1 b2 n-": "order, name", "n4 b- a3": "a contents, b manifest, n manifest"}
    for now, changes in {**expected, "c1 d1 e1 n-": "a missing, b missing, c, 2"}.items():
        told = describe_file_changes({**make_identities("n- b2 a1"), "2": []}, make_identities(now))
        for part, names in zip(told.split(", "), changes.split(", "), strict=True):
            assert_mentions(part, *names.split())


@pytest.mark.slow
def test_changed_options_are_rejected_without_allow_changes(make_options, record_files, finished_run, capsys):
    names = ("--learning_rate", 0.01, 0.1, "--train_batch_size", 8, 4, "--allow_changes=learning_rate,train_batch_size")
    assert_rejected(names, pretrain, make_options(train_batch_size=4, learning_rate=0.1))
    allowed = {"num_train_steps": 25, "train_batch_size": 4}
    pretrain(make_options(**allowed, allow_changes=list(allowed)))
    assert "--train_batch_size was 8 and is 4" in capsys.readouterr().out
    assert [place(finished_run, step) for step in (20, 25)] == [(1, 20 * 8), (1, 20 * 8 + 5 * 4)]
    _, change = json.loads((finished_run / "run.json").read_text())["changes"]
    assert change == {"step": 20, "option": "train_batch_size", "before": 8, "now": 4}
    pretrain(make_options(**allowed, log_steps=5, rematerialize=True))  # options of where and how to run may change
    # New records are read from their beginning, and a new optimizer starts with zero moments at the same step.
    changes = {"num_train_steps": 30, "optimizer": "lamb", "dtype": "float16"}
    more = {"input_file": record_files[:1], "train_batch_size": 4}
    pretrain(make_options(**changes, **more, allow_changes=["data", *changes]))
    output = capsys.readouterr().out
    assert "changed since the earlier start: the records differ" in output
    assert "the optimizer's moments start from 0" in output
    assert runs.log_values(finished_run, "step") == list(range(1, 31))
    assert place(finished_run, 30) == (1, 5 * 4)
    # Each change remains in the model card, also after later ones.
    card = (finished_run / "MODEL_CARD.md").read_text()
    for line in ("20: --train_batch_size was 8 and is 4", "25: the records differ"):
        assert f"- from step {line}\n" in card
    notice = "resumed from ckpt-20 with changes: --num_train_steps was 20 and is 25; --train_batch_size was 8"
    assert notice in runs.log_values(finished_run, "notice", "notices")[0]
    pretrain(make_options(do_train=False, do_eval=True))  # needs no training options
    assert "global_step = 30" in capsys.readouterr().out


def test_with_any_dropout_other_micro_batches_are_refused(make_options, finished_run):
    options, config = make_options(gradient_accumulation_steps=4), runs.disable_dropout(make.tiny_config())
    names = ("--gradient_accumulation_steps", 1, 4, "dropout")
    for rate in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        assert_rejected(names, check_resume_compatibility, options, dataclasses.replace(config, **{rate: 0.1}), {})
    assert check_resume_compatibility(options, config, {}) == {"gradient_accumulation_steps": (1, 4)}


@pytest.mark.usefixtures("eager_steps")
def test_a_run_goes_on_with_other_records_from_their_start_and_in_float16(make_options, record_files, finished_run):
    changes = {"num_train_steps": 21, "dtype": "float16"}
    refused = make_options(allow_changes=[*changes], **changes, input_file=record_files[:1])
    assert_rejected(("1.tfrecord", "missing", "--allow_changes"), pretrain, refused)
    pretrain(make_options(allow_changes=["data", *changes], **changes, input_file=record_files[:1]))
    assert place(finished_run, 21) == (1, 8)


def test_changes_are_stored_with_the_next_checkpoint(make_options, record_files, finished_run, monkeypatch):
    for kind, step in (("train", 25), ("eval", 20)):
        write_text(finished_run / f"{kind}.jsonl", format_line({"step": step, "loss": 1.0}))
    monkeypatch.setattr(HeldOutEvaluation, "evaluate_checkpoint", lambda *_: 1 / 0)  # not repeated
    monkeypatch.setattr(HeldOutEvaluation, "evaluate_final_weights", lambda _: None)
    monkeypatch.setattr(run, "write_report", lambda _: None)
    pretrain(make_options(do_train=False, do_eval=True))
    assert runs.log_values(finished_run, "step") == [25], "an evaluation keeps all lines"
    monkeypatch.setattr(run, "_train_phase", lambda *_: 9)
    changes = {"num_train_steps": 30, "eval_steps": 10, "eval_input_file": record_files}
    assert pretrain(make_options(allow_changes=["num_train_steps"], **changes)) == 9
    assert json.loads((finished_run / "run.json").read_text())["flags"]["num_train_steps"] == 20


def test_earlier_changes_are_kept_from_the_resumed_step_on_and_frozen_layers_have_new_moments(set_up_run, finished_run):
    earlier = {"step": 25, "option": "optimizer", "before": "lamb", "now": "adamw"}
    described = {**json.loads((finished_run / "run.json").read_text()), "changes": [earlier], "data": ["other records"]}
    write_text(finished_run / "run.json", json.dumps(described))
    changes = {"num_train_steps": 30, "freeze": ["layer_0_.*"]}
    parts = set_up_run(allow_changes=list(changes), **changes)
    assert parts.metadata["changes"][0] == {**earlier, "step": 20}
    assert parts.metadata["data"] == []
    restore(parts)
    assert parts.pretrainer.step == 20
    assert not any(np.any(moment) for moment in parts.pretrainer.optimizer.variables[2:])


def test_a_finished_run_rejects_other_records_and_needs_none(make_options, record_files, finished_run, tmp_path):
    other = write_text(tmp_path / os.path.basename(record_files[0]), "other records")
    names = (other, "--input_file", "--num_train_steps", "--allow_changes=data,num_train_steps", 20)
    assert_rejected(names, pretrain, make_options(input_file=[record_files[1], other]))
    phases = {"phase2_input_file": record_files, "phase2_num_train_steps": 5}
    names = (other, "--input_file", "--phase2_input_file", "--allow_changes=data,phase2_num_train_steps", 20)
    assert_rejected(names, pretrain, make_options(input_file=[record_files[1], other], **phases))
    empty = write_text(tmp_path / "empty.tfrecord", "")
    assert pretrain(make_options(input_file=[*record_files[1:], empty])) == 0  # some have been removed
    assert pretrain(make_options(input_file=[str(tmp_path / "removed.tfrecord")])) == 0
    # Of a phase with steps left, only the error in the records is reported.
    longer = {"num_train_steps": 25, "allow_changes": ["num_train_steps", "data"]}
    message = refusal(pretrain, make_options(input_file=[other], **longer))
    assert_mentions(message, other, "TFRecord")
    assert "\n" not in message


@pytest.mark.slow
def test_damaged_records_can_be_skipped_and_counted(make_options, record_files, capsys):
    second = record_files[1]
    for number in (7, 8, 30):
        make.flip_bits(second, number * (os.path.getsize(second) // 50) + 40)
    changes = {"num_train_steps": 30, "eval_input_file": [second], "do_eval": True}
    assert_rejected((second, "record 7", "--on_corrupt_record=skip"), pretrain, make_options("stop", **changes))
    pretrain(make_options(on_corrupt_record="skip", **changes))
    output = capsys.readouterr().out
    assert_mentions(output, second, 3, "7, 8, 30")
    assert "evaluated 47 records" in output


@pytest.mark.slow
def test_records_without_masks_are_recognised_by_their_manifest(make_options, vocab_file, tmp_path):
    from data_gen.pipelines import one_machine

    rng, words = random.Random(3), [word for word in WORDS[57:] if word.isalpha()]
    text = write_text(tmp_path / "text.txt", "\n".join(" ".join(rng.choices(words, k=6)) for _ in range(400)))
    files = [str(tmp_path / "plain.tfrecord")]
    sizes = {"max_seq_length": runs.LENGTH, "max_predictions_per_seq": runs.PREDICTIONS}
    settings = {"vocab_file": vocab_file, "masking": "dynamic", "dupe_factor": 1, "num_workers": 1}
    one_machine.create_pretraining_data(RecordOptions(input_file=[text], output_file=files, **sizes, **settings))
    changes = {"input_file": files, "vocab_file": vocab_file}
    pretrain(make_options(do_eval=True, **changes))
    losses = runs.log_values(tmp_path / "run", "masked_lm_loss")
    assert sum(losses[-5:]) < sum(losses[:5])
    again = shutil.copytree(tmp_path / "run", tmp_path / "again")
    runs.remove_checkpoints(again, after=10)
    pretrain(make_options(again, **changes))
    runs.assert_same_checkpoint(tmp_path / "run", again, 20)


@pytest.mark.slow
@pytest.mark.core
def test_a_run_killed_at_random_moments_ends_with_identical_weights(record_files, longer_files, tmp_path):
    config = write_text(tmp_path / "config.json", make.tiny_config(hidden_size=64, intermediate_size=256).to_json())
    flags = f"""--num_train_steps=600 --num_warmup_steps=20 --save_checkpoints_steps=20 --log_steps=10 --eval_steps=100
    --phase2_input_file={longer_files[0]} --phase2_num_train_steps=200 --phase2_max_seq_length={LONGER}
    --phase2_max_predictions_per_seq={runs.PREDICTIONS} --eval_input_file={record_files[0]} --keep_checkpoint_max=3"""
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    whole, command = (runs.pretrain_command(record_files, config, each, *flags.split()) for each in (straight, killed))
    subprocess.run(whole, cwd=ROOT, capture_output=True, check=True)
    seed, went_on = time.time_ns(), 0
    print(f"moments of the kills: random.Random({seed})")  # pytest shows this output if the test fails
    rng = random.Random(seed)
    for target in [0, *(start + rng.randrange(74) for start in range(20, 760, 74))]:
        output = tmp_path / f"{target}.txt"
        began_at = tf.train.latest_checkpoint(str(killed))
        # The previous run may have passed this target. Each run is killed only after at least one step of its own.
        until = max(target, _last_step(killed) + 1)
        with output.open("w") as writer:
            unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}  # otherwise a kill loses buffered output
            process = subprocess.Popen(command, cwd=ROOT, stdout=writer, stderr=subprocess.DEVNULL, env=unbuffered)
        while target and process.poll() is None and _last_step(killed) < until:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.1) if target else rng.uniform(0, 5))
        assert process.poll() is None, "it ended before it could be killed"
        process.kill()
        process.wait()
        if target and began_at:
            assert "resuming from" in output.read_text()
            went_on += 1
    done = make.run_python(*command[1:])
    assert done.returncode == 0, done.stderr
    assert went_on >= 8  # all but the first two, which may be killed before the first checkpoint
    runs.assert_same_checkpoint(straight, killed, 800)
    for name, kind in itertools.product(("step", "loss"), ("train", "eval")):
        assert runs.log_values(killed, name, kind) == runs.log_values(straight, name, kind)
    best = [int(tf.train.latest_checkpoint(str(each / "best")).rsplit("-", 1)[1]) for each in (straight, killed)]
    assert best[0] == best[1]
    runs.assert_same_checkpoint(straight / "best", killed / "best", best[0], least=20)


def _last_step(folder: pathlib.Path) -> int:
    try:
        return max((line["step"] for line in read_log(str(folder), "train")), default=0)
    except UserError:  # a line is being written
        return 0


def list_checkpoints(folder, pattern="*.index"):
    return {path.name.split(".")[0] for path in folder.iterdir() if path.match(pattern)}


def assert_loaders_read(folder, step):
    """Checks that pre-training and encoder models are loaded from this checkpoint."""
    expected = bundle.open_bundle(str(folder / f"ckpt-{step}")).read(get_stored_name("pooler/kernel"))
    for model in (load_pretraining_model(str(folder)).model, official_bert.load(str(folder)).model):
        kernel = next(each for each in model.variables if each.path == "pooler/kernel")
        np.testing.assert_array_equal(np.asarray(kernel), expected)


@pytest.mark.slow
def test_a_run_in_a_folder_with_brackets_can_be_resumed(make_options, record_files, vocab_file, tmp_path, capsys):
    folder = tmp_path / "run[1]*"
    changes = {"save_checkpoints_steps": 2, "keep_checkpoint_max": 1, "eval_input_file": record_files, "eval_steps": 2}
    changes |= {"vocab_file": vocab_file, "allow_changes": ["num_train_steps"]}
    pretrain(make_options(folder, num_train_steps=4, **changes))
    assert list_checkpoints(folder) == {"ckpt-4"}
    pretrain(make_options(folder, num_train_steps=6, **changes))
    assert f"resuming from {folder}/ckpt-4, step 4" in capsys.readouterr().out
    assert runs.log_values(folder, "step") == [1, 2, 3, 4, 5, 6]
    assert list_checkpoints(folder, "ckpt*") == {"ckpt-6"}
    assert_loaders_read(folder, 6)


def test_the_newest_complete_checkpoint_is_found_without_the_state_file(make_options, finished_run, capsys):
    for content in (b"", b'model_checkpoint_path: "ckpt-77"\n', b"\x00garbage: {"):
        (finished_run / "checkpoint").write_bytes(content)
        assert bundle.find_prefix(str(finished_run)) == f"{finished_run}/ckpt-20"
    pretrain(make_options())
    assert f"resuming from {finished_run}/ckpt-20" in capsys.readouterr().out
    data = finished_run / "ckpt-20.data-00000-of-00001"
    make.flip_bits(data, data.stat().st_size // 2)  # after it was found to be complete
    assert bundle.find_prefix(str(finished_run)) == f"{finished_run}/ckpt-10"


@pytest.mark.slow
def test_a_damaged_checkpoint_is_skipped(make_options, shared_run, finished_run, capsys):
    make.write_vocab(finished_run / "vocab.txt")
    data = finished_run / "ckpt-20.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:1000])
    assert_loaders_read(finished_run, 10)
    pretrain(make_options("other", init_checkpoint=str(finished_run), num_train_steps=1))
    pretrain(make_options())
    output = capsys.readouterr().out
    assert sum("ckpt-20" in line and "damaged" in line for line in output.splitlines()) >= 3
    assert f"resuming from {finished_run}/ckpt-10, step 10" in output
    runs.assert_same_checkpoint(shared_run, finished_run, 20)


@pytest.mark.usefixtures("eager_steps")
def test_a_run_without_readable_checkpoints_restarts_only_with_begin_anew(make_options, finished_run, capsys):
    listed = tf.train.get_checkpoint_state(finished_run).all_model_checkpoint_paths
    assert list(listed) == [f"{finished_run}/ckpt-10", f"{finished_run}/ckpt-20"]
    log = (finished_run / "train.jsonl").read_text()
    for path in finished_run.glob("ckpt-*.data*"):
        path.write_bytes(b"nothing")
    assert_rejected((*listed, "--begin_anew"), pretrain, make_options())
    assert list_checkpoints(finished_run) == {"ckpt-10", "ckpt-20"}
    for path in finished_run.glob("*.index"):
        path.unlink()
    names = (finished_run, 20, "ckpt-*.index", "--begin_anew")
    assert_rejected(names, pretrain, make_options())
    (finished_run / "checkpoint").unlink()  # the log is evidence enough: step 20 comes after the save of step 10
    assert_rejected(names, pretrain, make_options())
    assert (finished_run / "train.jsonl").read_text() == log
    capsys.readouterr()
    # Any option may change, because nothing is resumed.
    changes = {"begin_anew": True, "learning_rate": 1e-3, "num_train_steps": 2}
    pretrain(make_options(**changes))
    assert "from step 0 to 2" in capsys.readouterr().out
    assert bundle.find_damage(str(finished_run / "ckpt-2")) is None
    # The flag has no effect if a checkpoint exists, so the same command resumes the run.
    pretrain(make_options(**changes))
    assert "resuming from" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_was_killed_before_its_first_save_starts_over(make_options, shared_run, finished_run):
    runs.remove_checkpoints(finished_run, after=0)
    (finished_run / "checkpoint").unlink()
    log = finished_run / "train.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:2]))
    (finished_run / "ckpt-10_temp").mkdir()
    pretrain(make_options())
    assert runs.log_values(finished_run) == runs.log_values(shared_run)


def test_a_save_removes_the_checkpoints_of_later_steps(tmp_path):
    checkpoints = RunCheckpoints(str(tmp_path), {"model": [keras.Variable([1.0])]}, keep=1)
    checkpoints.save(20)  # before the run was resumed from step 5
    checkpoints.save(10)
    assert list_checkpoints(tmp_path) == {"ckpt-10"}
    assert tf.train.get_checkpoint_state(tmp_path).all_model_checkpoint_paths == [f"{tmp_path}/ckpt-10"]


def test_a_failed_save_keeps_the_other_checkpoints(tmp_path, monkeypatch):
    values = keras.Variable(np.arange(1000.0), name="values")
    saved = RunCheckpoints(str(tmp_path), {"model": [values]}, keep=5)
    write = saved._checkpoint.write

    def fill(path):
        write(path)
        open(f"{path}.index", "w").close()
        message = "{{function_node __wrapped__SaveV2 CPU:0}} No space left on device [Op:SaveV2]"
        raise tf.errors.ResourceExhaustedError(None, None, message)

    def fail(step, *expected):
        told = refusal(saved.save, step)
        assert_mentions(told, f"step {step}", tmp_path, "disk")
        assert "{" not in told
        assert list_checkpoints(tmp_path, "*") == set(expected)

    monkeypatch.setattr(saved._checkpoint, "write", fill)  # the disk is full at the index
    fail(2)
    assert saved.restore_latest() is None
    monkeypatch.undo()
    saved.save(20)
    values.assign(values + 1.0)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # writes fail as on a full disk
    try:
        fail(2, "ckpt-20", "checkpoint")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    # A step that is already saved is kept if its second save fails before writing files.
    monkeypatch.setattr(saved._checkpoint, "write", mock.Mock(side_effect=OSError("No space left on device")))
    fail(20, "ckpt-20", "checkpoint")
    # The next run removes what a kill leaves in the middle of a save.
    for name in ("ckpt-30.data-00000-of-00001", "ckpt-30_temp/part", "ckpt-40.index", "ckpt-40.data-00000-of-00001"):
        write_text(tmp_path / name, "half" * name.endswith("00001"))
    assert find_newest_complete(str(tmp_path)) == str(tmp_path / "ckpt-20")
    saved.remove_unfinished()
    assert list_checkpoints(tmp_path, "*") == {"ckpt-20", "checkpoint"}
    saved.restore_latest()
    np.testing.assert_array_equal(values, np.arange(1000.0))


@pytest.mark.slow
def test_the_checkpoint_before_skipped_steps_is_kept_and_named(make_options, tmp_path, monkeypatch):
    monkeypatch.setattr(monitor, "_MOST_SKIPPED", 8)
    # At this high rate the first step is finite, and all later ones are not.
    changes = {"learning_rate": 1e30, "num_warmup_steps": 0, "save_checkpoints_steps": 1, "keep_checkpoint_max": 3}
    assert_rejected(("ckpt-1", "--learning_rate", 8), pretrain, make_options(on_nonfinite="skip", **changes))
    assert list_checkpoints(tmp_path / "run") == {"ckpt-1"}
    assert runs.log_values(tmp_path / "run", "step") == [1]
