"""Resuming pre-training after it was stopped, changed or damaged."""

import json
import os
import pathlib
import random
import resource
import shutil
import subprocess
import time
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from data_gen.options import RecordOptions
from official_bert.checkpoints import run_checkpoints
from official_bert.data import record_codec, record_damage, record_reader, record_schema
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.pretraining.run import pretrain
from official_bert.pretraining.train_step import Pretrainer
from official_bert.runs.training_log import read_log
from tests.conftest import ROOT, WORDS
from tests.make import assert_refused
from tests.pretraining.conftest import write_config
from tests.pretraining.pretraining_runs import (
    LENGTH,
    PREDICTIONS,
    SCHEMA,
    assert_same_to_the_bit,
    checkpoint,
    disable_dropout,
    pretrain_command,
    pretrainer_for,
    random_record,
    write_records,
)

LONGER = 16


@pytest.fixture
def longer_files(tmp_path: pathlib.Path) -> list[str]:
    """Records of a second phase: the same ones with more padding."""
    rng = random.Random(5)
    records = [random_record(rng) for _ in range(40)]
    for record in records:
        for name in ("input_ids", "input_mask", "segment_ids"):
            record[name] = record[name] + [0] * (LONGER - LENGTH)
    schema = record_schema.pretraining_schema(LONGER, PREDICTIONS)
    return [write_records(tmp_path / "longer.tfrecord", records, schema)]


def place(folder: pathlib.Path, step: int) -> tuple[int, ...]:
    """Returns the phase and the number of records of that phase that were used."""
    path = str(folder / f"ckpt-{step}")
    names = [f"place/{name}/.ATTRIBUTES/VARIABLE_VALUE" for name in ("phase", "position")]
    return tuple(int(tf.train.load_variable(path, name)) for name in names)


def forget_after(folder: pathlib.Path, step: int) -> None:
    """Deletes later checkpoints, as if the run had been killed after this one."""
    for path in folder.glob("ckpt-*.*"):
        if int(path.name.split("-")[1].split(".")[0]) > step:
            path.unlink()


@pytest.mark.slow
def test_two_phases_go_on_at_and_around_their_boundary(make_options, longer_files, tmp_path):
    phases = {
        "num_train_steps": 6, "phase2_num_train_steps": 6, "phase2_input_file": longer_files,
        "phase2_max_seq_length": LONGER, "phase2_max_predictions_per_seq": PREDICTIONS, "phase2_train_batch_size": 4,
        "phase2_learning_rate": 5e-3, "phase2_num_warmup_steps": 2, "save_checkpoints_steps": 4,
        "keep_checkpoint_max": 9,
    }  # fmt: skip
    straight = tmp_path / "straight"
    assert pretrain(make_options(straight, **phases)) == 0
    assert sorted(path.name for path in straight.glob("ckpt-*.index")) == [
        "ckpt-12.index", "ckpt-4.index", "ckpt-6.index", "ckpt-8.index",
    ]  # fmt: skip
    lines = read_log(str(straight), "train")
    assert [line["max_seq_length"] for line in lines] == [LENGTH] * 6 + [LONGER] * 6
    # The second phase has its own schedule: warm-up, a jump, and a decay to its last step.
    rates = [line["learning_rate"] for line in lines]
    assert rates[6:] == pytest.approx([0, 2.5e-3, 5e-3 * 4 / 6, 5e-3 * 3 / 6, 5e-3 * 2 / 6, 5e-3 / 6])
    for step in (4, 6, 8):
        again = tmp_path / str(step)
        shutil.copytree(straight, again)
        forget_after(again, step)
        assert pretrain(make_options(again, **phases)) == 0
        assert_same_to_the_bit(checkpoint(straight, 12), checkpoint(again, 12))
        assert [line["loss"] for line in read_log(str(again), "train")] == [line["loss"] for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("is_cut", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(make_options, shared_run, finished_run, is_cut, capsys):
    data = finished_run / "ckpt-20.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content[:1000] if is_cut else content)
    pretrain(make_options(finished_run))
    output = capsys.readouterr().out
    assert "ckpt-20 is damaged and skipped" in output
    assert f"resuming from {finished_run}/ckpt-10, step 10" in output
    assert_same_to_the_bit(checkpoint(shared_run, 20), checkpoint(finished_run, 20))
    for path in finished_run.glob("ckpt-*.data*"):
        path.write_bytes(b"nothing")
    assert_refused("the checkpoints .*ckpt-20, .*ckpt-10 cannot be read", pretrain, make_options(finished_run))


@pytest.mark.slow
def test_changes_between_runs_are_refused_unless_asked_for(make_options, record_files, tmp_path, capsys):
    folder = tmp_path / "run"
    pretrain(make_options(folder))
    with pytest.raises(
        UserError, match=r"--learning_rate was 0.01 and is 0.1; --train_batch_size was 8 and is 4\. .*--allow_changes="
        "learning_rate,train_batch_size ",
    ):  # fmt: skip
        pretrain(make_options(folder, train_batch_size=4, learning_rate=0.1))
    longer = {"num_train_steps": 25, "allow_changes": ["num_train_steps"]}
    with pytest.raises(UserError, match=r"the records differ.*--allow_changes=num_train_steps,data"):
        pretrain(make_options(folder, input_file=record_files[:1], **longer))
    allowed = {"num_train_steps": 25, "train_batch_size": 4}
    options = make_options(folder, **allowed, allow_changes=list(allowed))
    pretrain(options)
    assert "--train_batch_size was 8 and is 4" in capsys.readouterr().out
    assert place(folder, 20) == (1, 20 * 8)
    assert place(folder, 25) == (1, 20 * 8 + 5 * 4)
    assert json.loads((folder / "run.json").read_text())["changes"] == [
        {"step": 20, "option": "num_train_steps", "before": 20, "now": 25},
        {"step": 20, "option": "train_batch_size", "before": 8, "now": 4},
    ]
    # Options that only affect where and how to run may change. Dropout masks depend on the micro-batches.
    pretrain(make_options(folder, **allowed, log_steps=5, rematerialize=True))
    with pytest.raises(UserError, match="--gradient_accumulation_steps was 1 and is 2.*other dropout masks"):
        pretrain(make_options(folder, **allowed, gradient_accumulation_steps=2))
    # New records are read from their beginning, and a new optimizer starts with zero moments at the same step.
    others = {"num_train_steps": 30, "train_batch_size": 4, "optimizer": "lamb", "dtype": "float16"}
    names = ["data", "num_train_steps", "optimizer", "dtype"]
    pretrain(make_options(folder, input_file=record_files[:1], **others, allow_changes=names))
    output = capsys.readouterr().out
    assert "changed since the earlier start: the records differ" in output
    assert "the optimizer's moments start from 0" in output
    assert [line["step"] for line in read_log(str(folder), "train")] == list(range(1, 31))
    assert place(folder, 30) == (1, 5 * 4)
    # Each change remains in the model card, also after later ones.
    card = (folder / "MODEL_CARD.md").read_text()
    for change in (
        "from step 20: --train_batch_size was 8 and is 4",
        "from step 25: --optimizer was 'adamw' and is 'lamb'",
        "from step 25: the records differ",
    ):
        assert f"- {change}\n" in card
    notices = [line["notice"] for line in read_log(str(folder), "notices")]
    assert (
        "resumed from ckpt-20 with changes: --num_train_steps was 20 and is 25; --train_batch_size was 8" in notices[0]
    )
    # Evaluation needs no training options.
    pretrain(make_options(folder, do_train=False, do_eval=True))
    assert "global_step = 30" in capsys.readouterr().out


@pytest.mark.slow
def test_without_dropout_a_run_may_be_resumed_with_other_micro_batches(make_options, tiny_config, tmp_path):
    (tmp_path / "dry").mkdir()
    config = {"bert_config_file": write_config(disable_dropout(tiny_config), tmp_path / "dry")}
    straight, changed = tmp_path / "straight", tmp_path / "changed"
    pretrain(make_options(straight, **config))
    shutil.copytree(straight, changed)
    forget_after(changed, 10)
    pretrain(make_options(changed, **config, gradient_accumulation_steps=4))
    expected, found = checkpoint(straight, 20), checkpoint(changed, 20)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=2e-5, err_msg=name)
    assert json.loads((changed / "run.json").read_text())["changes"] == [
        {"step": 10, "option": "gradient_accumulation_steps", "before": 1, "now": 4}
    ]


@pytest.mark.slow
def test_a_run_of_a_changed_optimizer_that_was_killed_at_once_begins_the_change_again(
    make_options, tmp_path, monkeypatch
):
    folder = tmp_path / "run"
    pretrain(make_options(folder))
    options = make_options(folder, num_train_steps=22, optimizer="lamb", allow_changes=["num_train_steps", "optimizer"])
    with monkeypatch.context() as patch:
        patch.setattr(Pretrainer, "train", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            pretrain(options)
    pretrain(options)
    assert place(folder, 22) == (1, 22 * 8)


def test_a_save_that_fails_leaves_the_other_checkpoints(tiny_config: BertConfig, tmp_path: pathlib.Path):
    pretrainer = pretrainer_for(tiny_config)
    saved = run_checkpoints.RunCheckpoints(str(tmp_path), pretrainer.variables, keep=5)
    saved.save(20)
    before = checkpoint(tmp_path, 20)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # writes fail as on a full disk
    try:
        assert_refused(r"cannot save step 2 in .*; the earlier checkpoints are intact. Free disk space", saved.save, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {"ckpt-20", "checkpoint"}
    assert_same_to_the_bit(before, checkpoint(tmp_path, 20))
    # The next run removes what a kill leaves in the middle of a save.
    (tmp_path / "ckpt-30.data-00000-of-00001").write_bytes(b"half")
    (tmp_path / "ckpt-30_temp").mkdir()
    saved.remove_unfinished()
    assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {"ckpt-20", "checkpoint"}


def test_a_disk_that_is_full_at_the_index_of_a_first_checkpoint_leaves_none(tiny_config, tmp_path, monkeypatch):
    saved = run_checkpoints.RunCheckpoints(str(tmp_path), pretrainer_for(tiny_config).variables, keep=5)
    write = saved._checkpoint.write

    def fill(path: str) -> None:
        write(path)
        open(f"{path}.index", "w").close()
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(saved._checkpoint, "write", fill)
    assert_refused("cannot save step 2 in .*: No space left on device; the earlier", saved.save, 2)
    assert not list(tmp_path.iterdir())
    assert saved.restore_latest() is None
    # A step that is already saved is kept if its second save fails before writing files.
    monkeypatch.undo()
    saved.save(2)
    before = checkpoint(tmp_path, 2)
    monkeypatch.setattr(saved._checkpoint, "write", mock.Mock(side_effect=OSError("No space left on device")))
    assert_refused("cannot save step 2 in", saved.save, 2)
    assert_same_to_the_bit(before, checkpoint(tmp_path, 2))
    (tmp_path / "ckpt-4.index").touch()  # as if killed at that moment
    (tmp_path / "ckpt-4.data-00000-of-00001").write_bytes(b"whole")
    assert saved.find_newest_complete() == str(tmp_path / "ckpt-2")
    saved.remove_unfinished()
    assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {"ckpt-2", "checkpoint"}


def damage(path: str, number: int) -> None:
    """Flips a bit in the content of a record."""
    content = bytearray(pathlib.Path(path).read_bytes())
    offset = 0
    for _ in range(number):
        offset += 16 + int.from_bytes(content[offset : offset + 8], "little")
    content[offset + 40] ^= 1
    pathlib.Path(path).write_bytes(content)


@pytest.mark.slow
def test_damaged_records_are_skipped_and_counted_if_asked(make_options, record_files, tmp_path, capsys):
    damage(record_files[1], 7)
    damage(record_files[1], 8)
    damage(record_files[1], 30)
    changes = {"num_train_steps": 30, "eval_input_file": [record_files[1]], "do_eval": True}
    with pytest.raises(UserError, match=r"1.tfrecord: record 7 .* is corrupted.*--on_corrupt_record=skip leaves"):
        pretrain(make_options(tmp_path / "stop", **changes))
    folder = tmp_path / "run"
    pretrain(make_options(folder, on_corrupt_record="skip", **changes))
    output = capsys.readouterr().out
    assert f"warning: {record_files[1]}: 3 corrupted records are skipped: 7, 8, 30" in output
    assert "evaluated 47 records" in output
    # An out-of-range id is damage too, and a truncated file ends early.
    content = pathlib.Path(record_files[0]).read_bytes()
    pathlib.Path(record_files[0]).write_bytes(content[: len(content) - 5])
    found, number = record_damage.find_readable_ranges(
        record_files, {**SCHEMA, "input_ids": record_schema.Feature((LENGTH,), record_schema.INT64, 40)}
    )
    assert found[0][-1][0] + found[0][-1][1] <= 49
    assert number > 4
    with_large_ids = {
        number
        for number, record in enumerate(tf.data.TFRecordDataset(record_files[0]).take(49))
        if record_codec.parse(record[None], SCHEMA)["input_ids"].numpy().max() >= 40
        or record_codec.parse(record[None], SCHEMA)["input_ids"].numpy().min() < 0
    }
    read = {number for first, count in found[0] for number in range(first, first + count)}
    assert read == set(range(49)) - with_large_ids


@pytest.mark.slow
def test_records_without_masks_are_recognised_by_their_manifest(make_options, vocab_file, tmp_path):
    from data_gen.pipelines import one_machine

    text = tmp_path / "text.txt"
    rng = random.Random(3)
    words = [word for word in WORDS[57:] if word.isalpha()]
    text.write_text("\n".join(" ".join(rng.choices(words, k=6)) for _ in range(400)))
    one_machine.create_pretraining_data(
        RecordOptions(
            input_file=[str(text)], output_file=[str(tmp_path / "plain.tfrecord")], vocab_file=vocab_file,
            max_seq_length=LENGTH, max_predictions_per_seq=PREDICTIONS, masking="dynamic", dupe_factor=1,
            num_workers=1,
        )
    )  # fmt: skip
    files = [str(tmp_path / "plain.tfrecord")]
    held = next(record_reader.read_file(files[0]))
    assert record_damage.describe_mismatch(held, record_schema.unmasked_schema(LENGTH, len(WORDS), 2)) is None
    folder = tmp_path / "run"
    options = make_options(folder, input_file=files, vocab_file=vocab_file, do_eval=True)
    pretrain(options)
    lines = read_log(str(folder), "train")
    assert sum(line["masked_lm_loss"] for line in lines[-5:]) < sum(line["masked_lm_loss"] for line in lines[:5])
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    forget_after(again, 10)
    pretrain(make_options(again, input_file=files, vocab_file=vocab_file))
    assert_same_to_the_bit(checkpoint(folder, 20), checkpoint(again, 20))
    with pytest.raises(UserError, match="have no masks.*Pass --vocab_file"):
        pretrain(make_options(tmp_path / "other", input_file=files))
    other = tmp_path / "other.txt"
    other.write_text("\n".join([*WORDS[:-1], "another"]) + "\n")
    with pytest.raises(UserError, match="other.txt is not the vocabulary of the records of --input_file"):
        pretrain(make_options(tmp_path / "other", input_file=files, vocab_file=str(other)))
    with pytest.raises(UserError, match="--max_predictions_per_seq is 2, but the records of .* were made with 3"):
        pretrain(make_options(tmp_path / "other", input_file=files, vocab_file=vocab_file, max_predictions_per_seq=2))


@pytest.mark.slow
@pytest.mark.core
def test_a_run_killed_at_random_moments_ends_with_the_very_same_weights(record_files, longer_files, tmp_path):
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256}
    config = BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, **sizes)
    (tmp_path / "config.json").write_text(config.to_json())

    def command(folder: str) -> list[str]:
        return pretrain_command(
            record_files, tmp_path / "config.json", tmp_path / folder,
            "--num_train_steps=600", "--num_warmup_steps=20", "--save_checkpoints_steps=20", "--log_steps=10",
            f"--phase2_input_file={longer_files[0]}", "--phase2_num_train_steps=200", "--keep_checkpoint_max=3",
            f"--phase2_max_seq_length={LONGER}", f"--phase2_max_predictions_per_seq={PREDICTIONS}",
            f"--eval_input_file={record_files[0]}", "--eval_steps=100",
        )  # fmt: skip

    subprocess.run(command("straight"), cwd=ROOT, capture_output=True, check=True)
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    seed = time.time_ns()
    print(f"moments of the kills: random.Random({seed})")  # pytest shows this output if the test fails
    rng = random.Random(seed)
    targets = [0, *(start + rng.randrange(74) for start in range(20, 760, 74))]
    went_on = 0
    for target in targets:
        output = tmp_path / f"{target}.txt"
        began_at = tf.train.latest_checkpoint(str(killed))
        # The previous run may have passed this target. Each run is killed only after at least one step of its own.
        until = max(target, _last_step(killed) + 1)
        with output.open("w") as writer:
            unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}  # otherwise a kill loses buffered output
            process = subprocess.Popen(
                command("killed"), cwd=ROOT, stdout=writer, stderr=subprocess.DEVNULL, env=unbuffered
            )
        while target and process.poll() is None and _last_step(killed) < until:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.1) if target else rng.uniform(0, 5))
        assert process.poll() is None, "it ended before it could be killed"
        process.kill()
        process.wait()
        if target and began_at:
            assert "resuming from" in output.read_text()
            went_on += 1
    done = subprocess.run(command("killed"), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert went_on >= 8  # all but the first two, which may be killed before the first checkpoint
    assert_same_to_the_bit(checkpoint(straight, 800), checkpoint(killed, 800))
    for kind in ("train", "eval"):
        logs = [[(line["step"], line["loss"]) for line in read_log(str(folder), kind)] for folder in (straight, killed)]
        assert logs[0] == logs[1]
    best = [tf.train.latest_checkpoint(str(folder / "best")) for folder in (straight, killed)]
    steps = [int(path.rsplit("-", 1)[1]) for path in best]
    assert steps[0] == steps[1]
    assert_same_to_the_bit(*(checkpoint(folder / "best", steps[0]) for folder in (straight, killed)), least=20)


def _last_step(folder: pathlib.Path) -> int:
    try:
        return max((line["step"] for line in read_log(str(folder), "train")), default=0)
    except UserError:  # a line is being written
        return 0
