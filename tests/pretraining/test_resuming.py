"""Pre-training that is stopped, changed, damaged or cut into parts, and what comes of it."""

import dataclasses
import os
import pathlib
import random
import resource
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from data_gen.options import RecordOptions
from official_bert.checkpoints import run_checkpoints
from official_bert.data import record_codec, record_damage, record_reader, record_schema
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.optimization import distribution
from official_bert.pretraining import training, training_loop
from official_bert.pretraining.evaluation import BestWeights, evaluate
from official_bert.pretraining.record_files import RecordFiles
from official_bert.pretraining.train_step import Pretrainer
from official_bert.utils.training_log import read_log
from tests.conftest import ROOT, WORDS
from tests.pretraining.test_training import (  # noqa: F401
    LENGTH,
    PREDICTIONS,
    SCHEMA,
    batches_for,
    config_file,
    encoded,
    options_for,
    pretrainer_for,
    quick_rate_of_products,
    random_record,
    record_files,
    weights_of,
    without_dropout,
)
from tests.processes import run_marked_tests

LONGER = 16


@pytest.fixture
def longer_files(tmp_path: pathlib.Path) -> list[str]:
    """Records of a second phase: the same, with more padding."""
    rng = random.Random(5)
    path = tmp_path / "longer.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for _ in range(40):
            record = random_record(rng)
            for name in ("input_ids", "input_mask", "segment_ids"):
                record[name] = record[name] + [0] * (LONGER - LENGTH)
            writer.write(encoded(record, record_schema.pretraining_schema(LONGER, PREDICTIONS)))
    return [str(path)]


def checkpoint(folder: pathlib.Path, step: int) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(folder / f"ckpt-{step}"))
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if "ATTRIBUTES" in name and "counter" not in name
    }


def assert_same_to_the_bit(first: dict[str, np.ndarray], second: dict[str, np.ndarray], least: int = 60) -> None:
    assert first.keys() == second.keys()
    assert len(first) > least
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value, err_msg=name)


def place(folder: pathlib.Path, step: int) -> tuple[int, ...]:
    """The phase and the number of its records that were used."""
    path = str(folder / f"ckpt-{step}")
    names = [f"place/{name}/.ATTRIBUTES/VARIABLE_VALUE" for name in ("phase", "position")]
    return tuple(int(tf.train.load_variable(path, name)) for name in names)


def found_records(paths: list[str], config: BertConfig) -> RecordFiles:
    return RecordFiles.find(
        paths, "input_file", max_seq_length=LENGTH, max_predictions_per_seq=PREDICTIONS, config=config, vocab_file=None
    )


def forget_after(folder: pathlib.Path, step: int) -> None:
    """Leaves what a kill after this checkpoint would leave."""
    for path in folder.glob("ckpt-*.*"):
        if int(path.name.split("-")[1].split(".")[0]) > step:
            path.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_micro_batches_make_the_same_step(
    tiny_config: BertConfig,
    record_files: list[str],  # noqa: F811
    optimizer: str,
):
    results = []
    for parts in (1, 2, 4):
        pretrainer = pretrainer_for(without_dropout(tiny_config), optimizer=optimizer, micro_batches=parts)
        batches = batches_for(pretrainer, record_files)
        results.append(([pretrainer.train(batches, 1) for _ in range(10)], weights_of(pretrainer)))
    (whole, weights), *others = results
    for sums, others_weights in others:
        for expected, found in zip(whole, sums, strict=True):
            for name in set(expected) - {"input_wait"}:
                assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-4), name
        for path, value in weights.items():
            np.testing.assert_allclose(others_weights[path], value, atol=2e-5, err_msg=path)


@pytest.mark.slow
def test_micro_batches_of_large_tensors_are_added_up_in_every_call(
    tiny_config: BertConfig,
    record_files: list[str],  # noqa: F811
):
    """TensorFlow optimizes additions in another way where it thinks that memory is short, from 200 MB on a CPU."""
    config = dataclasses.replace(tiny_config, num_hidden_layers=1, vocab_size=500_000)
    pretrainer = pretrainer_for(config, micro_batches=2)
    batches = batches_for(pretrainer, record_files)
    for _ in range(3):
        assert pretrainer.train(batches, 1)["nonfinite_steps"] == 0


def test_micro_batches_have_other_dropout_masks(tiny_config: BertConfig):
    pretrainer = pretrainer_for(tiny_config, micro_batches=2)
    seeds = {tuple(pretrainer._dropout_seed(replica, part).numpy()) for replica in range(8) for part in range(8)}
    assert len(seeds) == 64


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", pytest.param("mixed_float16", marks=pytest.mark.slow)])
def test_the_whole_step_compiles(tiny_config: BertConfig, record_files: list[str], dtype: str):  # noqa: F811
    losses = []
    for jit_compile in (False, True):
        pretrainer = pretrainer_for(
            without_dropout(tiny_config), dtype=dtype, jit_compile=jit_compile, micro_batches=2, rematerialize=True
        )
        losses.append(pretrainer.train(batches_for(pretrainer, record_files), 3)["masked_lm_loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5 if dtype == "float32" else 1e-2)


@pytest.mark.slow
def test_eight_devices_equal_one():
    """Runs the tests marked eight_devices in a process of their own, whose processor is split in eight."""
    assert "1 passed" in run_marked_tests(8, __file__)


@pytest.mark.eight_devices
def test_eight_devices_with_micro_batches_take_the_same_steps_as_one(
    tiny_config: BertConfig,
    record_files: list[str],  # noqa: F811
):
    results = []
    for name, parts in (("one_device", 1), ("mirrored", 2)):
        strategy = distribution.get_strategy(name)
        assert strategy.num_replicas_in_sync == (8 if name == "mirrored" else 1)
        pretrainer = pretrainer_for(without_dropout(tiny_config), strategy, micro_batches=parts, skip_nonfinite=True)
        batches = batches_for(pretrainer, record_files, size=16)
        results.append(([pretrainer.train(batches, 1) for _ in range(10)], weights_of(pretrainer)))
    (one, weights_of_one), (eight, weights_of_eight) = results
    for expected, found in zip(one, eight, strict=True):
        for name in set(expected) - {"input_wait"}:
            assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-4), name
    for path, value in weights_of_one.items():
        np.testing.assert_allclose(weights_of_eight[path], value, atol=2e-5, err_msg=path)


@pytest.mark.slow
def test_two_phases_go_on_at_and_around_their_boundary(
    record_files: list[str],  # noqa: F811
    longer_files: list[str],
    config_file: str,  # noqa: F811
    tmp_path: pathlib.Path,
):
    phases = {
        "num_train_steps": 6, "phase2_num_train_steps": 6, "phase2_input_file": longer_files,
        "phase2_max_seq_length": LONGER, "phase2_max_predictions_per_seq": PREDICTIONS, "phase2_train_batch_size": 4,
        "phase2_learning_rate": 5e-3, "phase2_num_warmup_steps": 2, "save_checkpoints_steps": 4,
        "keep_checkpoint_max": 9,
    }  # fmt: skip
    straight = tmp_path / "straight"
    assert training.run(options_for(record_files, config_file, straight, **phases)) == 0
    assert sorted(path.name for path in straight.glob("ckpt-*.index")) == [
        "ckpt-12.index", "ckpt-4.index", "ckpt-6.index", "ckpt-8.index",
    ]  # fmt: skip
    lines = read_log(str(straight), "train")
    assert [line["max_seq_length"] for line in lines] == [LENGTH] * 6 + [LONGER] * 6
    # The second phase has a schedule of its own: warm-up, a jump, and down to its last step.
    rates = [line["learning_rate"] for line in lines]
    assert rates[6:] == pytest.approx([0, 2.5e-3, 5e-3 * 4 / 6, 5e-3 * 3 / 6, 5e-3 * 2 / 6, 5e-3 / 6])
    for step in (4, 6, 8):
        again = tmp_path / str(step)
        shutil.copytree(straight, again)
        forget_after(again, step)
        assert training.run(options_for(record_files, config_file, again, **phases)) == 0
        assert_same_to_the_bit(checkpoint(straight, 12), checkpoint(again, 12))
        assert [line["loss"] for line in read_log(str(again), "train")] == [line["loss"] for line in lines]


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(
    record_files: list[str],  # noqa: F811
    config_file: str,  # noqa: F811
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
):
    straight, cut, flipped = (tmp_path / name for name in ("straight", "cut", "flipped"))
    training.run(options_for(record_files, config_file, straight))
    for folder in (cut, flipped):
        shutil.copytree(straight, folder)
        data = folder / "ckpt-20.data-00000-of-00001"
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content[:1000] if folder == cut else content)
        capsys.readouterr()
        training.run(options_for(record_files, config_file, folder))
        output = capsys.readouterr().out
        assert "ckpt-20 is damaged and passed over" in output
        assert f"going on from {folder}/ckpt-10, step 10" in output
        assert_same_to_the_bit(checkpoint(straight, 20), checkpoint(folder, 20))
    for path in cut.glob("ckpt-*.data*"):
        path.write_bytes(b"nothing")
    with pytest.raises(UserError, match="none of the checkpoints .*ckpt-20, .*ckpt-10 can be read"):
        training.run(options_for(record_files, config_file, cut))


@pytest.mark.slow
def test_changes_between_runs_are_refused_unless_asked_for(
    record_files: list[str],  # noqa: F811
    config_file: str,  # noqa: F811
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
):
    folder = tmp_path / "run"
    training.run(options_for(record_files, config_file, folder))
    with pytest.raises(
        UserError, match=r"--learning_rate was 0.01 and is 0.1; --train_batch_size was 8 and is 4; .*--allow_changes="
        "learning_rate,train_batch_size$",
    ):  # fmt: skip
        training.run(options_for(record_files, config_file, folder, train_batch_size=4, learning_rate=0.1))
    longer = {"num_train_steps": 25, "allow_changes": ["num_train_steps"]}
    with pytest.raises(UserError, match=r"the records are other ones; .*--allow_changes=num_train_steps,data"):
        training.run(options_for(record_files[:1], config_file, folder, **longer))
    with pytest.raises(UserError, match="--allow_changes names lerning_rate; expected some of data, decay_power"):
        options_for(record_files, config_file, folder, allow_changes=["lerning_rate"])
    allowed = {"num_train_steps": 25, "train_batch_size": 4}
    options = options_for(record_files, config_file, folder, **allowed, allow_changes=list(allowed))
    training.run(options)
    assert "changed as asked for: --train_batch_size from 8 to 4" in capsys.readouterr().out
    assert place(folder, 20) == (1, 20 * 8)
    assert place(folder, 25) == (1, 20 * 8 + 5 * 4)
    # What only says where and how to run may change; dropout masks depend on the micro-batches.
    training.run(options_for(record_files, config_file, folder, **allowed, log_steps=5, rematerialize=True))
    with pytest.raises(UserError, match="--gradient_accumulation_steps was 1 and is 2; give what it was begun with"):
        training.run(options_for(record_files, config_file, folder, **allowed, gradient_accumulation_steps=2))
    # Other records are read from their beginning, and another optimizer begins with moments of 0, at the same step.
    others = {"num_train_steps": 30, "train_batch_size": 4, "optimizer": "lamb", "dtype": "float16"}
    names = ["data", "num_train_steps", "optimizer", "dtype"]
    training.run(options_for(record_files[:1], config_file, folder, **others, allow_changes=names))
    output = capsys.readouterr().out
    assert "changed as asked for: other records" in output
    assert "the optimizer's moments start anew" in output
    assert [line["step"] for line in read_log(str(folder), "train")] == list(range(1, 31))
    assert place(folder, 30) == (1, 5 * 4)
    # The weights are evaluated without being told how they were trained.
    training.run(options_for(record_files, config_file, folder, do_train=False, do_eval=True))
    assert "global_step = 30" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_of_a_changed_optimizer_that_was_killed_at_once_begins_the_change_again(
    record_files: list[str],  # noqa: F811
    config_file: str,  # noqa: F811
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
):
    folder = tmp_path / "run"
    training.run(options_for(record_files, config_file, folder))
    options = options_for(
        record_files, config_file, folder, num_train_steps=22, optimizer="lamb",
        allow_changes=["num_train_steps", "optimizer"],
    )  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(Pretrainer, "train", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            training.run(options)
    training.run(options)
    assert place(folder, 22) == (1, 22 * 8)


def test_a_save_that_fails_leaves_the_other_checkpoints(tiny_config: BertConfig, tmp_path: pathlib.Path):
    pretrainer = pretrainer_for(tiny_config)
    saved = run_checkpoints.RunCheckpoints(str(tmp_path), pretrainer.variables, keep=5)
    saved.save(20)
    before = checkpoint(tmp_path, 20)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # as on a full disk, writes fail
    try:
        with pytest.raises(UserError, match=r"cannot save step 2 in .*; the earlier checkpoints are intact: make room"):
            saved.save(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {"ckpt-20", "checkpoint"}
    assert_same_to_the_bit(before, checkpoint(tmp_path, 20))
    # What a kill leaves in the middle of a save is removed by the next run.
    (tmp_path / "ckpt-30.data-00000-of-00001").write_bytes(b"half")
    (tmp_path / "ckpt-30_temp").mkdir()
    saved.remove_unfinished()
    assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {"ckpt-20", "checkpoint"}


def test_best_weights_are_judged_by_what_was_saved_with_them(tiny_config: BertConfig, tmp_path: pathlib.Path):
    model = pretrainer_for(tiny_config).model

    def best(data: int) -> BestWeights:
        return BestWeights(str(tmp_path / "best"), model, {}, data)

    assert best(1).keep_if_better(5, 1.0)
    assert not best(1).keep_if_better(10, 2.0)
    assert not best(1).keep_if_better(10, float("nan"))
    assert best(2).keep_if_better(10, 2.0), "losses on other records say nothing"
    assert best(2).keep_if_better(8, 3.0), "step 10 was taken by a run that went on from before"
    assert [path.name for path in (tmp_path / "best").glob("*.index")] == ["ckpt-8.index"]


def test_a_stop_is_answered_between_two_batches_of_an_evaluation(
    tiny_config: BertConfig,
    record_files: list[str],  # noqa: F811
):
    found = found_records(record_files, tiny_config)
    pretrainer = pretrainer_for(tiny_config)
    asked = iter([False, False, True])
    assert evaluate(pretrainer, found, 8, 100, lambda: next(asked)) is None
    assert next(asked, None) is None
    assert evaluate(pretrainer, found, 8, 2, lambda: False) is not None


def test_calls_get_long_once_it_is_known_how_long_a_step_takes(
    record_files: list[str],  # noqa: F811
    config_file: str,  # noqa: F811
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
):
    calls = []
    train = Pretrainer.train

    def noted(self: Pretrainer, batches: object, steps: int) -> dict[str, float]:
        calls.append(steps)
        return train(self, batches, steps)

    monkeypatch.setattr(Pretrainer, "train", noted)
    quick = options_for(record_files, config_file, tmp_path / "quick", log_steps=20)
    training.run(quick)
    assert calls == [1, 1, 8, 10]
    calls.clear()
    monkeypatch.setattr(training_loop, "_GRACE", 1e-9)
    training.run(options_for(record_files, config_file, tmp_path / "slow", log_steps=20, profile_steps=["3", "5"]))
    assert calls == [1] * 20
    logs = [read_log(str(tmp_path / name), "train") for name in ("quick", "slow")]
    losses = [[line["loss"] for line in lines] for lines in logs]
    assert losses[0] == losses[1]
    assert list((tmp_path / "slow" / "train").rglob("*.xplane.pb"))


def test_a_run_that_only_skips_steps_is_stopped(
    record_files: list[str],  # noqa: F811
    config_file: str,  # noqa: F811
    tmp_path: pathlib.Path,
):
    options = options_for(
        record_files, config_file, tmp_path / "run", learning_rate=1e30, num_warmup_steps=0, num_train_steps=300,
        on_nonfinite="skip", log_steps=50, save_checkpoints_steps=300,
    )  # fmt: skip
    with pytest.raises(UserError, match=r"\(\d+ steps in a row were skipped\)"):
        training.run(options)
    assert all(np.isfinite(line["loss"]) and line["loss"] > 0 for line in read_log(options.output_dir, "train"))


def test_steps_that_are_not_finite_are_skipped_if_asked(
    record_files: list[str],  # noqa: F811
    tiny_config: BertConfig,
):
    pretrainer = pretrainer_for(tiny_config, skip_nonfinite=True)
    batches = batches_for(pretrainer, record_files)
    pretrainer.train(batches, 2)
    before = weights_of(pretrainer)
    kernel = pretrainer.model.get_layer("pooler").kernel
    saved = np.asarray(kernel)
    kernel.assign(np.full_like(saved, np.inf))
    sums = pretrainer.train(batches, 2)
    assert sums["nonfinite_steps"] == 2
    assert sums["nonfinite_step"] == 3
    assert not np.isfinite(sums["nonfinite_loss"])
    assert sums["masked_lm_count"] == 0
    kernel.assign(saved)
    for path, value in weights_of(pretrainer).items():
        np.testing.assert_array_equal(value, before[path], err_msg=path)
    assert pretrainer.step == 4
    assert pretrainer.train(batches, 1)["nonfinite_steps"] == 0


def test_float16_trains_with_a_scaled_loss(
    record_files: list[str],  # noqa: F811
    config_file: str,  # noqa: F811
    tmp_path: pathlib.Path,
):
    folder = tmp_path / "run"
    training.run(options_for(record_files, config_file, folder, dtype="float16"))
    losses = [line["loss"] for line in read_log(str(folder), "train")]
    assert sum(losses[-5:]) < sum(losses[:5])
    names = [name for name, _ in tf.train.list_variables(str(folder))]
    assert sum(name.startswith("loss_scale/") for name in names) == 2


def damage(path: str, number: int) -> None:
    """Flips a bit of a record's content."""
    content = bytearray(pathlib.Path(path).read_bytes())
    offset = 0
    for _ in range(number):
        offset += 16 + int.from_bytes(content[offset : offset + 8], "little")
    content[offset + 40] ^= 1
    pathlib.Path(path).write_bytes(content)


def test_damaged_records_are_skipped_and_counted_if_asked(
    record_files: list[str],  # noqa: F811
    config_file: str,  # noqa: F811
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
):
    damage(record_files[1], 7)
    damage(record_files[1], 8)
    damage(record_files[1], 30)
    changes = {"num_train_steps": 30, "eval_input_file": [record_files[1]], "do_eval": True}
    with pytest.raises(UserError, match=r"1.tfrecord: record 7 .* is damaged.*--on_corrupt_record=skip leaves"):
        training.run(options_for(record_files, config_file, tmp_path / "stop", **changes))
    folder = tmp_path / "run"
    training.run(options_for(record_files, config_file, folder, on_corrupt_record="skip", **changes))
    output = capsys.readouterr().out
    assert f"warning: {record_files[1]}: 3 damaged records are left out: 7, 8, 30" in output
    assert "evaluated 47 records" in output
    # An id out of range is damage too, and a file that is cut short ends early.
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
def test_evaluation_on_the_way_keeps_the_best_weights(
    record_files: list[str],  # noqa: F811
    config_file: str,  # noqa: F811
    tmp_path: pathlib.Path,
):
    folder = tmp_path / "run"
    changes = {"eval_input_file": record_files[1:], "eval_steps": 5, "do_eval": True, "learning_rate": 0.3}
    training.run(options_for(record_files[:1], config_file, folder, **changes))
    lines = read_log(str(folder), "eval")
    assert [line["step"] for line in lines] == [5, 10, 15, 20, 20]
    best = min(lines, key=lambda line: line["loss"])
    kept = tf.train.latest_checkpoint(str(folder / "best"))
    assert kept == f"{folder}/best/ckpt-{best['step']}"
    # The kept weights score what the log says.
    options = options_for(
        record_files[1:], config_file, tmp_path / "again", do_train=False, do_eval=True, init_checkpoint=kept
    )
    training.run(options)
    assert read_log(options.output_dir, "eval")[0]["loss"] == pytest.approx(best["loss"], rel=1e-5)


@pytest.mark.slow
def test_records_without_masks_are_recognised_by_their_manifest(
    vocab_file: str,
    config_file: str,  # noqa: F811
    tmp_path: pathlib.Path,
):
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
    options = options_for(files, config_file, folder, vocab_file=vocab_file, do_eval=True)
    training.run(options)
    lines = read_log(str(folder), "train")
    assert sum(line["masked_lm_loss"] for line in lines[-5:]) < sum(line["masked_lm_loss"] for line in lines[:5])
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    forget_after(again, 10)
    training.run(options_for(files, config_file, again, vocab_file=vocab_file))
    assert_same_to_the_bit(checkpoint(folder, 20), checkpoint(again, 20))
    with pytest.raises(UserError, match="without masks.*give it as --vocab_file"):
        training.run(options_for(files, config_file, tmp_path / "other"))
    other = tmp_path / "other.txt"
    other.write_text("\n".join([*WORDS[:-1], "another"]) + "\n")
    with pytest.raises(UserError, match="other.txt is not the vocabulary that the records of --input_file were made"):
        training.run(options_for(files, config_file, tmp_path / "other", vocab_file=str(other)))
    with pytest.raises(UserError, match="--max_predictions_per_seq is 2, but the manifest says .* made with 3"):
        training.run(
            options_for(files, config_file, tmp_path / "other", vocab_file=vocab_file, max_predictions_per_seq=2)
        )


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_with_the_very_same_weights(
    record_files: list[str],  # noqa: F811
    longer_files: list[str],
    tmp_path: pathlib.Path,
):
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256}
    config = BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, **sizes)
    (tmp_path / "config.json").write_text(config.to_json())

    def command(folder: str) -> list[str]:
        return [
            sys.executable, "-m", "official_bert_cli", "pretrain", "--do_train",
            f"--input_file={','.join(record_files)}",
            f"--bert_config_file={tmp_path}/config.json", f"--output_dir={tmp_path / folder}",
            f"--max_seq_length={LENGTH}", f"--max_predictions_per_seq={PREDICTIONS}", "--train_batch_size=8",
            "--num_train_steps=600", "--num_warmup_steps=20", "--save_checkpoints_steps=20", "--log_steps=10",
            f"--phase2_input_file={longer_files[0]}", "--phase2_num_train_steps=200", "--keep_checkpoint_max=3",
            f"--phase2_max_seq_length={LONGER}", f"--phase2_max_predictions_per_seq={PREDICTIONS}",
            f"--eval_input_file={record_files[0]}", "--eval_steps=100",
        ]  # fmt: skip

    subprocess.run(command("straight"), cwd=ROOT, capture_output=True, check=True)
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    rng = random.Random(time.time_ns())
    targets = [0, *(start + rng.randrange(74) for start in range(20, 760, 74))]
    went_on = 0
    for target in targets:
        output = tmp_path / f"{target}.txt"
        began_at = tf.train.latest_checkpoint(str(killed))
        # The run before may have passed this target: it is killed only after steps of its own.
        until = max(target, _last_step(killed) + 1)
        with output.open("w") as writer:
            unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}  # or a kill takes what was printed with it
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
            assert "going on from" in output.read_text()
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
    except UserError:  # a line that is being written
        return 0


def test_a_run_of_the_code_before_goes_on(
    record_files: list[str],  # noqa: F811
    tmp_path: pathlib.Path,
):
    """golden/older_run was written by official_bert 0.1.0 before its parts were packages, and killed after step 20."""
    older = ROOT / "tests" / "golden" / "older_run"
    folder = tmp_path / "run"
    shutil.copytree(older, folder)
    assert training.run(options_for(record_files, str(older / "bert_config.json"), folder)) == 0
    expected, found = (read_log(str(path), "train") for path in (older, folder))
    assert [line["step"] for line in found] == list(range(1, 21))
    assert [line["loss"] for line in found] == pytest.approx([line["loss"] for line in expected], rel=1e-5)
    changed = options_for(
        record_files, str(older / "bert_config.json"), folder, gradient_accumulation_steps=2, random_seed=1
    )
    with pytest.raises(UserError, match="gradient_accumulation_steps was 1 and is 2; --random_seed was 12345 and is 1"):
        training.run(changed)
