"""The log of a run that was changed by hand or by damage."""

import pathlib

import pytest

from official_bert.errors import UserError
from official_bert.utils.training_log import TRAIN, read_log


@pytest.mark.parametrize("line", ["[" * 100_000, "1" * 5000, "{", "[]", '{"loss": 1}', '{"step": "1"}'])
def test_a_line_that_cannot_be_read_is_named(line: str, tmp_path: pathlib.Path):
    (tmp_path / "train.jsonl").write_text(f'{{"step": 1}}\n{line}\n')
    with pytest.raises(UserError, match="train.jsonl, line 2, .*; remove that line"):
        read_log(str(tmp_path), TRAIN)


def test_a_last_line_cut_short_is_left_out(tmp_path: pathlib.Path):
    (tmp_path / "train.jsonl").write_text('{"step": 1, "loss": NaN}\n{"step": 2, "lo')
    assert [line["step"] for line in read_log(str(tmp_path), TRAIN)] == [1]
