"""Flags with out-of-range values."""

from collections.abc import Callable

import pytest

from data_gen.options import RecordOptions
from data_gen.pipelines import one_machine
from official_bert.errors import UserError


@pytest.mark.parametrize(("changes", "message"), [
    ({"input_file": []}, "--input_file is empty"),
    ({"output_file": ["x", "x"]}, "--output_file contains the same file twice: x and x"),
    ({"vocab_file": "none.txt"}, "there is no file none.txt"),
    ({"input_file": ["/proc"]}, r"--input_file: /proc is a folder; for all files in it pass /proc/\*"),
    ({"output_file": ["/proc/none/x"]}, "cannot create the folder /proc/none"),
])  # fmt: skip
def test_bad_options_are_refused(changes: dict[str, object], message: str, short_options: Callable[..., RecordOptions]):
    with pytest.raises(UserError, match=message):
        one_machine.create_pretraining_data(short_options(**changes))


def test_dupe_factor_is_ten_or_one_for_dynamic_masking():
    def used(**flags: object) -> int:
        return RecordOptions(["text"], ["records"], "vocab", **flags).dupe_factor  # type: ignore[arg-type]

    assert [used(), used(masking="dynamic"), used(masking="dynamic", dupe_factor=3)] == [10, 1, 3]
