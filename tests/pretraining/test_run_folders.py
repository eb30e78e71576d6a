"""Run folders with unusual names, with lost or damaged files, and resuming from them."""

import functools
import json
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.checkpoints import bundle
from official_bert.checkpoints.loading import load_pretraining_model
from official_bert.errors import UserError
from official_bert.pretraining import monitor
from official_bert.pretraining.options import Options
from official_bert.pretraining.run import pretrain
from official_bert.runs.training_log import TrainingLog, read_log
from tests.conftest import WORDS
from tests.make import assert_refused
from tests.pretraining.pretraining_runs import OptionsMaker, options_for

FOUR_STEPS = {"num_train_steps": 4, "save_checkpoints_steps": 2}


def checkpoints_in(folder: pathlib.Path) -> list[str]:
    return sorted(path.stem for path in folder.iterdir() if path.suffix == ".index")


@pytest.mark.slow
def test_a_folder_with_brackets_in_its_name_goes_on_keeps_as_many_as_asked_for_and_is_read(
    make_options, record_files, vocab_file, tmp_path, capsys
):
    folder = tmp_path / "run[1]*"
    settings = {"num_train_steps": 4, "save_checkpoints_steps": 2, "keep_checkpoint_max": 1, "vocab_file": vocab_file}
    best = {"eval_input_file": record_files, "eval_steps": 2}
    pretrain(make_options(folder, **settings, **best))
    assert checkpoints_in(folder) == ["ckpt-4"]
    longer = {**settings, "num_train_steps": 6, "allow_changes": ["num_train_steps"]}
    pretrain(make_options(folder, **longer, **best))
    assert f"resuming from {folder}/ckpt-4, step 4" in capsys.readouterr().out
    assert [line["step"] for line in read_log(str(folder), "train")] == [1, 2, 3, 4, 5, 6]
    assert {path.name.split(".")[0] for path in folder.glob("ckpt*")} == {"ckpt-6"}
    model, _, _ = load_pretraining_model(str(folder))
    encoder = official_bert.load(str(folder)).model
    source = bundle.open_bundle(str(folder / "ckpt-6"))
    for loaded in (model, encoder):
        kernel = next(each for each in loaded.variables if each.path == "pooler/kernel")
        stored = source.read("model/pooler.Skernel/.ATTRIBUTES/VARIABLE_VALUE")
        np.testing.assert_array_equal(np.asarray(kernel), stored)


@pytest.fixture(scope="module")
def shared_four_steps(shared_record_files: list[str], shared_run: pathlib.Path, tmp_path_factory) -> pathlib.Path:
    """A run with the checkpoints ckpt-2 and ckpt-4. Tests must not change it."""
    folder = tmp_path_factory.mktemp("four_steps")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    config = str(shared_run / "bert_config.json")
    vocab_file = str(folder / "vocab.txt")
    pretrain(options_for(shared_record_files, config, folder / "run", vocab_file=vocab_file, **FOUR_STEPS))
    return folder / "run"


@pytest.fixture
def run_folder(shared_four_steps: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of `shared_four_steps` that a test may change."""
    shutil.copytree(shared_four_steps, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def four_steps(make_options: OptionsMaker, vocab_file: str, run_folder: pathlib.Path) -> OptionsMaker:
    """Builds the options of the run in `run_folder` from the changed ones."""
    return functools.partial(make_options, run_folder, vocab_file=vocab_file, **FOUR_STEPS)


def test_the_newest_whole_checkpoint_is_found_whatever_the_file_named_checkpoint_says(four_steps, run_folder, capsys):
    for content in (b"", b'model_checkpoint_path: "ckpt-77"\n', b"\x00garbage: {"):
        (run_folder / "checkpoint").write_bytes(content)
        assert bundle.find_prefix(str(run_folder)) == f"{run_folder}/ckpt-4"
    pretrain(four_steps())
    assert f"resuming from {run_folder}/ckpt-4" in capsys.readouterr().out


@pytest.mark.slow
def test_loaders_and_training_pass_over_a_damaged_checkpoint_alike(
    four_steps, make_options, run_folder, tmp_path, capsys
):
    data = run_folder / "ckpt-4.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:1000])
    expected = tf.train.load_variable(
        str(run_folder / "ckpt-2"), "model/word_embeddings.Sembeddings/.ATTRIBUTES/VARIABLE_VALUE"
    )
    model, _, _ = load_pretraining_model(str(run_folder))
    encoder = official_bert.load(str(run_folder)).model
    for loaded in (model, encoder):
        table = next(each for each in loaded.variables if each.path == "word_embeddings/embeddings")
        np.testing.assert_array_equal(np.asarray(table), expected)
    other = make_options(tmp_path / "other", init_checkpoint=str(run_folder), num_train_steps=1)
    pretrain(other)
    pretrain(four_steps())
    output = capsys.readouterr().out
    assert output.count("ckpt-4 is damaged and skipped") >= 3
    assert f"resuming from {run_folder}/ckpt-2, step 2" in output
    assert checkpoints_in(run_folder) == ["ckpt-2", "ckpt-4"]


def test_a_run_whose_checkpoints_are_gone_is_not_begun_anew_unasked(four_steps, run_folder, capsys):
    for path in run_folder.glob("*.index"):
        path.unlink()
    log = (run_folder / "train.jsonl").read_text()
    again = four_steps()
    message = r"saved checkpoints and logged 4 steps, but they are missing \(ckpt-\*.index\).* --begin_anew"
    assert_refused(message, pretrain, again)
    (run_folder / "checkpoint").unlink()  # the log is evidence enough: step 4 comes after the save of step 2
    assert_refused(message, pretrain, again)
    assert (run_folder / "train.jsonl").read_text() == log
    capsys.readouterr()
    # Any option may change, because nothing is resumed.
    changed = {"begin_anew": True, "learning_rate": 1e-3}
    pretrain(four_steps(**changed))
    assert "from step 0 to 4" in capsys.readouterr().out
    # The flag has no effect if a checkpoint exists, so the same command resumes the run.
    pretrain(four_steps(**changed))
    assert "resuming from" in capsys.readouterr().out


@pytest.mark.slow
def test_checkpoints_that_are_all_damaged_are_left_alone_until_asked(four_steps, run_folder):
    for path in run_folder.glob("ckpt-*.data*"):
        path.write_bytes(b"nothing")
    with pytest.raises(UserError, match="the checkpoints .*ckpt-4, .*ckpt-2 cannot be read; .*; --begin_anew"):
        pretrain(four_steps())
    assert checkpoints_in(run_folder) == ["ckpt-2", "ckpt-4"]
    pretrain(four_steps(begin_anew=True))
    assert bundle.find_damage(str(run_folder / "ckpt-4")) is None


@pytest.mark.slow
def test_a_run_that_was_killed_before_its_first_save_begins_again(four_steps, run_folder):
    for path in [*run_folder.glob("ckpt*"), run_folder / "checkpoint"]:
        path.unlink()
    log = run_folder / "train.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:2]))
    (run_folder / "ckpt-2_temp").mkdir()
    pretrain(four_steps())
    assert [line["loss"] for line in read_log(str(run_folder), "train")] == [json.loads(line)["loss"] for line in lines]


@pytest.mark.slow
def test_checkpoints_from_before_steps_were_skipped_are_kept_and_named(make_options, tmp_path, monkeypatch):
    monkeypatch.setattr(monitor, "_MOST_SKIPPED", 8)
    # At this high rate the first step is finite, and all later ones are not.
    saves = {"save_checkpoints_steps": 1, "keep_checkpoint_max": 3}
    options = make_options(tmp_path / "run", learning_rate=1e30, num_warmup_steps=0, on_nonfinite="skip", **saves)
    with pytest.raises(
        UserError,
        match=r"The same command resumes from ckpt-1, which was saved before it\. To avoid it, lower .*\(8 steps in a",
    ):
        pretrain(options)
    assert checkpoints_in(tmp_path / "run") == ["ckpt-1"]
    # As left by an older version, which saved while it skipped steps.
    for step in (5, 6):
        for ending in ("index", "data-00000-of-00001"):
            shutil.copy(tmp_path / "run" / f"ckpt-1.{ending}", tmp_path / "run" / f"ckpt-{step}.{ending}")
    os.remove(tmp_path / "run" / "ckpt-1.index")
    with pytest.raises(
        UserError, match="Remove ckpt-6, ckpt-5, which were saved while steps were skipped, to start again. To"
    ):
        monitor.Monitor.check_finite(*finite_check(options, tmp_path, skipped=8, last=9))


def finite_check(options: Options, tmp_path: pathlib.Path, skipped: int, last: int):
    """Returns a monitor and arguments of its check_finite for a call of one step after `skipped` skipped steps."""

    class Records:
        def record_locations(self, *_: object) -> str:
            return "0.tfrecord: 1"

    watched = monitor.Monitor.__new__(monitor.Monitor)
    watched.options, watched.skipped_in_a_row = options, skipped - 1
    sums = {"nonfinite_steps": 1.0, "nonfinite_losses": 1.0, "nonfinite_at_end": 1.0, "nonfinite_step": float(last),
            "nonfinite_loss": float("nan"), "nonfinite_norm": float("nan")}  # fmt: skip
    return watched, sums, last - 1, last, 0, options.phases[0], Records()


def test_a_call_that_ends_with_finite_steps_begins_the_count_of_skipped_ones_again(make_options, tmp_path):
    options = make_options(tmp_path / "run", on_nonfinite="skip")
    watched, sums, *_, phase, records = finite_check(options, tmp_path, skipped=100, last=1)
    watched.log = TrainingLog(None, 0)
    # One of a thousand steps was skipped, so not every step of the run is skipped.
    watched.check_finite({**sums, "nonfinite_at_end": 0.0}, 0, 1000, 0, phase, records)
    assert watched.skipped_in_a_row == 0
