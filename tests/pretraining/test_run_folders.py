"""Run folders with unusual names, with lost, damaged or unfinished checkpoints, and resuming from them."""

import resource
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.checkpoints import bundle
from official_bert.checkpoints.loading import load_pretraining_model
from official_bert.checkpoints.run_checkpoints import RunCheckpoints, find_newest_complete, get_stored_name
from official_bert.pretraining import monitor
from official_bert.pretraining.run import pretrain
from tests.make import assert_mentions, assert_rejected, flip_bits, refusal, write_text, write_vocab
from tests.pretraining.pretraining_runs import assert_same_checkpoint, log_values, remove_checkpoints


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
    assert log_values(folder, "step") == [1, 2, 3, 4, 5, 6]
    assert list_checkpoints(folder, "ckpt*") == {"ckpt-6"}
    assert_loaders_read(folder, 6)


def test_the_newest_complete_checkpoint_is_found_without_the_state_file(make_options, finished_run, capsys):
    for content in (b"", b'model_checkpoint_path: "ckpt-77"\n', b"\x00garbage: {"):
        (finished_run / "checkpoint").write_bytes(content)
        assert bundle.find_prefix(str(finished_run)) == f"{finished_run}/ckpt-20"
    pretrain(make_options())
    assert f"resuming from {finished_run}/ckpt-20" in capsys.readouterr().out
    data = finished_run / "ckpt-20.data-00000-of-00001"
    flip_bits(data, data.stat().st_size // 2)  # after it was found to be complete
    assert bundle.find_prefix(str(finished_run)) == f"{finished_run}/ckpt-10"


@pytest.mark.slow
@pytest.mark.parametrize("is_cut", [True, False])
def test_a_damaged_checkpoint_is_skipped(make_options, shared_run, finished_run, is_cut, capsys):
    write_vocab(finished_run / "vocab.txt")
    data = finished_run / "ckpt-20.data-00000-of-00001"
    if is_cut:
        data.write_bytes(data.read_bytes()[:1000])
    else:
        flip_bits(data, data.stat().st_size // 2)
    assert_loaders_read(finished_run, 10)
    pretrain(make_options("other", init_checkpoint=str(finished_run), num_train_steps=1))
    pretrain(make_options())
    output = capsys.readouterr().out
    assert sum("ckpt-20" in line and "damaged" in line for line in output.splitlines()) >= 3
    assert f"resuming from {finished_run}/ckpt-10, step 10" in output
    assert_same_checkpoint(shared_run, finished_run, 20)


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
    remove_checkpoints(finished_run, after=0)
    (finished_run / "checkpoint").unlink()
    log = finished_run / "train.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:2]))
    (finished_run / "ckpt-10_temp").mkdir()
    pretrain(make_options())
    assert log_values(finished_run) == log_values(shared_run)


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
    assert log_values(tmp_path / "run", "step") == [1]
