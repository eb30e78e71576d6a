"""The training log: event files, and lines damaged or edited by hand."""

import math
from unittest import mock

import tensorflow as tf

from official_bert.errors import UserError
from official_bert.runs.training_log import EVAL, GENERAL, NOTICES, TRAIN, TrainingLog, format_line, read_log
from official_bert.runs.training_run import has_lost_checkpoints
from tests.event_files import read_scalars
from tests.make import assert_rejected, write_text


def list_steps(folder, kind=TRAIN):
    return [line["step"] for line in read_log(str(folder), kind)]


def test_event_files_have_the_values_of_the_lines(tmp_path):
    log = TrainingLog(str(tmp_path), 0)
    log.write(GENERAL, 10, {"loss": 5.25, "learning_rate": 0.5})
    log.note(12, 'a step was skipped, "crc32": "0"')
    log.write(GENERAL, 20, {"loss": 4.0, "learning_rate": 0.25})
    assert read_scalars(tmp_path / GENERAL) == {"loss": {10: 5.25, 20: 4.0}, "learning_rate": {10: 0.5, 20: 0.25}}
    assert [line["loss"] for line in read_log(str(tmp_path), GENERAL)] == [5.25, 4.0]
    assert [line["notice"] for line in read_log(str(tmp_path), NOTICES)] == ['a step was skipped, "crc32": "0"']
    assert not (tmp_path / NOTICES).exists()


def test_a_log_works_without_tensorboard_and_reports_errors(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda _: None)
        TrainingLog(str(tmp_path), 0).write(EVAL, 1, {"loss": 1.0})
    TrainingLog(None, 0).write(EVAL, 2, {"loss": 1.0})  # as all workers but the chief do
    assert [path.name for path in tmp_path.iterdir()] == ["eval.jsonl"]
    fail = mock.Mock(side_effect=tf.errors.ResourceExhaustedError(None, None, "ENOSPC"))
    monkeypatch.setattr("tensorflow.summary.create_file_writer", fail)
    assert_rejected((tmp_path, "ENOSPC"), TrainingLog(str(tmp_path), 0).write, EVAL, 2, {"loss": 1.0})


def test_a_line_that_cannot_be_read_is_named_unless_it_is_a_truncated_last_one(tmp_path):
    path, bad_lines = tmp_path / "train.jsonl", dict.fromkeys(("[" * 100_000, "1" * 5000, "{", ""), "JSON")
    bad_lines |= dict.fromkeys(("[]", '{"loss": 1}', '{"step": "1"}'), "step")
    bad_lines |= dict.fromkeys(('{"step": 1, "loss": "1"}', '{"step": 2, "loss": 5}'), "changed")  # without a checksum
    bad_lines[format_line({"step": 1, "loss": "1"}).strip()] = "'1' as loss, which is not a number"
    for line, problem in bad_lines.items():
        path.write_text(format_line({"step": 1}) + f"{line}\n")
        assert_rejected((path, "line 2", problem), read_log, str(tmp_path), TRAIN)
    path.write_text(format_line({"step": 1, "loss": math.nan}) + '{"step": 2, "lo')
    assert list_steps(tmp_path) == [1]


def test_a_resumed_run_keeps_complete_lines_up_to_its_checkpoint(tmp_path):
    kinds = (TRAIN, EVAL, GENERAL, NOTICES)
    lines = [format_line({"step": step, "loss": 1.0}) for step in (10, 20, 30)]
    for kind in kinds:
        write_text(tmp_path / f"{kind}.jsonl", "".join(lines) + '{"step": 3')
    log = TrainingLog(str(tmp_path), 20)
    log.write(EVAL, 25, {"loss": 1.0})
    log.note(20, "resumed")
    assert [list_steps(tmp_path, kind) for kind in kinds] == [[10, 20], [10, 20, 25], [10, 20], [10, 20, 20]]
    TrainingLog(str(tmp_path), 0)  # without a checkpoint, the run starts from step 0
    assert [list_steps(tmp_path, kind) for kind in kinds] == [[], [], [], []]


def test_a_flipped_bit_anywhere_in_a_line_is_an_error_or_changes_no_value(tmp_path):
    values = [{"step": 1, "loss": 5.25}, {"step": 2, "loss": 4.5e-05}, {"step": 3, "loss": 4.0}]
    content = "".join(map(format_line, values)).encode()
    path, errors = tmp_path / "train.jsonl", 0
    for position in range(len(content) - 1):  # without the last byte, the last line is incomplete
        path.write_bytes(content[:position] + bytes([content[position] ^ 1 << position % 8]) + content[position + 1 :])
        try:
            read = read_log(str(tmp_path), TRAIN)
        except UserError:
            errors += 1
        else:
            assert read == values
    assert errors > len(content) * 0.9


def test_a_run_has_lost_its_checkpoints_if_it_logged_steps_after_the_first_save(tmp_path):
    TrainingLog(str(tmp_path), None).write(TRAIN, 10, {"loss": 1.0})
    assert has_lost_checkpoints(str(tmp_path), str(tmp_path), save_steps=9)
    checkpoints = tmp_path / "checkpoints"
    assert not has_lost_checkpoints(str(tmp_path), str(checkpoints), save_steps=10)  # killed between line and save
    write_text(checkpoints / "checkpoint", "")
    assert has_lost_checkpoints(str(tmp_path), str(checkpoints), save_steps=10)
