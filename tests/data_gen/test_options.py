"""Flags with out-of-range values."""

import pytest

from data_gen.options import RecordOptions
from data_gen.pipelines import preparation
from tests.data_gen.samples import create_records
from tests.make import assert_rejected, write_rows


@pytest.mark.parametrize(("changes", "names"), [
    ({"input_file": []}, ("--input_file", "empty")),
    *(({"masking_rates": rates}, ("--masking_rates", repr(rates), "80/10/10")) for rates in ("80.0/10/10", "80/10/20")),
    ({"vocab_file": "none.txt"}, "none.txt"),
    ({"input_file": ["/proc"]}, ("--input_file", "/proc/*")),
    ({"output_file": ["/proc/none/x"]}, "/proc/none"),
    ({"output_file": ["x"], "num_shards": 2, "shard_size_mb": 3}, ("--num_shards=2", "--shard_size_mb=3")),
    ({"output_file": ["/proc"]}, ("/proc", "folder", "regular")),
])  # fmt: skip
def test_bad_options_are_refused(changes, names, short_options):
    assert_rejected(names, lambda: create_records(short_options(**changes)))


@pytest.mark.parametrize(("count", "is_warned"), [(3, True), (4, False), (24, False), (25, True)])
def test_number_of_predictions_that_does_not_fit_the_length_gives_a_warning(count, is_warned, short_options, capsys):
    preparation.prepare_inputs(short_options(max_predictions_per_seq=count))
    warning = capsys.readouterr().err
    parts = (f"--max_predictions_per_seq is {count},", "--max_predictions_per_seq=4")
    assert [part in warning for part in parts] == [is_warned] * 2


def test_a_file_without_added_tokens_is_refused(short_options, tmp_path):
    path = write_rows(tmp_path / "tokenizer_config.json", [{"added_tokens_decoder": {"5": {"content": "[E1]"}}}])
    names = (f"--added_tokens_file={path}", "added_tokens")
    assert_rejected(names, create_records, short_options(added_tokens_file=path))


def test_dupe_factor_is_ten_or_one_for_dynamic_masking():
    flags = [{}, {"masking": "dynamic"}, {"masking": "dynamic", "dupe_factor": 3}]
    assert [RecordOptions(["text"], ["records"], "vocab", **each).dupe_factor for each in flags] == [10, 1, 3]
