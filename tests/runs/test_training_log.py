"""The training log: event files, and lines damaged or edited by hand."""

import math
import pathlib

import pytest

from official_bert.errors import UserError
from official_bert.runs.training_log import EVAL, GENERAL, NOTICES, TRAIN, TrainingLog, format_line, read_log
from tests.event_files import read_scalars
from tests.make import assert_refused


@pytest.mark.parametrize("kind", [TRAIN, EVAL, GENERAL])
def test_event_files_have_the_values_of_the_lines(kind: str, tmp_path: pathlib.Path):
    log = TrainingLog(str(tmp_path), 0)
    log.write(kind, 10, {"loss": 5.25, "learning_rate": 0.5})
    log.note(12, "a step was skipped")
    log.write(kind, 20, {"loss": 4.0, "learning_rate": 0.25})
    assert read_scalars(tmp_path / kind) == {"loss": {10: 5.25, 20: 4.0}, "learning_rate": {10: 0.5, 20: 0.25}}
    assert [line["loss"] for line in read_log(str(tmp_path), kind)] == [5.25, 4.0]
    assert not (tmp_path / NOTICES).exists()


@pytest.mark.parametrize("line", ["[" * 100_000, "1" * 5000, "{", "[]", '{"loss": 1}', '{"step": "1"}',
                                  '{"step": 1, "loss": "1"}', ""])  # fmt: skip
def test_a_line_that_cannot_be_read_is_named(line: str, tmp_path: pathlib.Path):
    (tmp_path / "train.jsonl").write_text(format_line({"step": 1}) + f"{line}\n")
    assert_refused("train.jsonl, line 2, .* Remove that line", read_log, str(tmp_path), TRAIN)


def test_a_last_line_cut_short_is_left_out(tmp_path: pathlib.Path):
    (tmp_path / "train.jsonl").write_text(format_line({"step": 1, "loss": math.nan}) + '{"step": 2, "lo')
    assert [line["step"] for line in read_log(str(tmp_path), TRAIN)] == [1]


def test_a_resumed_run_keeps_the_lines_up_to_its_checkpoint(tmp_path: pathlib.Path):
    for step in (10, 20, 30):
        TrainingLog(str(tmp_path), None).write(TRAIN, step, {"loss": 1.0})
    TrainingLog(str(tmp_path), 20)
    assert [line["step"] for line in read_log(str(tmp_path), TRAIN)] == [10, 20]


def test_a_flipped_bit_anywhere_in_a_line_is_an_error_or_changes_no_value(tmp_path: pathlib.Path):
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


def test_a_line_without_a_checksum_is_an_error(tmp_path: pathlib.Path):
    (tmp_path / "train.jsonl").write_text(format_line({"step": 1, "loss": 4}) + '{"step": 2, "loss": 5}\n')
    assert_refused(r"train.jsonl, line 2, was changed after it was written", read_log, str(tmp_path), TRAIN)


def test_a_notice_may_quote_a_checksum(tmp_path: pathlib.Path):
    (tmp_path / "notices.jsonl").write_text(format_line({"step": 1, "notice": 'resumed, "crc32": "0"'}))
    assert read_log(str(tmp_path), NOTICES) == [{"step": 1, "notice": 'resumed, "crc32": "0"'}]
