"""The shards written with --shard together contain exactly what one run over all rows writes."""

import itertools
import json
import pathlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from official_bert.commands import FEATURES, PREDICT
from official_bert.inference import batch_prediction, feature_extraction
from official_bert.inference.options import BatchPredictionOptions, FeatureOptions, ShardOptions
from official_bert.inference.shards import ALL_ROWS, Shard
from tests.conftest import slow_after
from tests.inference.shard_texts import TEXTS, assert_shards_hold, join_shards, write_texts
from tests.make import assert_rejected

pytestmark = pytest.mark.usefixtures("small_groups")


def predict(export_dir: str, folder: pathlib.Path, shard: Shard = ALL_ROWS, output: str = "out.jsonl") -> str:
    options = BatchPredictionOptions(export_dir, f"{folder}/all.jsonl", f"{folder}/{output}", batch_size=2)
    return batch_prediction.predict(options, shard)


def predict_at_once(export_dir: str, folder: pathlib.Path) -> bytes:
    predict(export_dir, folder, output="once.jsonl")
    return (folder / "once.jsonl").read_bytes()


@given(count=st.integers(1, 20), num_rows=st.integers(0, 200), rows_per_group=st.integers(1, 50))
def test_shards_are_contiguous_complete_groups(count: int, num_rows: int, rows_per_group: int):
    ranges = [Shard(index, count).row_range(num_rows, rows_per_group) for index in range(count)]
    assert (ranges[0][0], ranges[-1][1]) == (0, num_rows)
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(ranges))
    assert all(first <= end for first, end in ranges)
    assert all(first % rows_per_group == 0 for first, _ in ranges if first < num_rows)
    groups = [-(-(end - first) // rows_per_group) for first, end in ranges]
    assert max(groups) - min(groups) <= 1


@pytest.mark.parametrize("count", [1, 3, 9])  # nine shards of seven groups: two shards are empty
def test_shards_contain_the_answers_of_a_run_without_shards(count: int, export_dir: str, texts: pathlib.Path):
    for index in reversed(range(count)):  # one job per shard, in any order
        name = "out.jsonl" if count == 1 else f"out-{index:05}-of-{count:05}.jsonl"
        assert f" to {texts}/{name}" in predict(export_dir, texts, Shard.parse(f"{index}/{count}"))
    assert join_shards(texts, count) == predict_at_once(export_dir, texts)
    assert not list(texts.glob("*.part*"))


def test_shards_of_inputs_with_other_numbers_of_rows_are_not_mixed(export_dir: str, texts: pathlib.Path):
    predict(export_dir, texts, Shard(0, 2))
    numbers = texts / "out.jsonl.shards.json"
    assert_rejected((numbers, 2, 3), predict, export_dir, texts, Shard(1, 3))
    write_texts(texts, TEXTS[1:])
    assert_rejected((numbers, len(TEXTS), len(TEXTS) - 1), predict, export_dir, texts, Shard(1, 2))
    numbers.unlink()
    predict(export_dir, texts, Shard(1, 2))


def test_interrupted_shard_is_resumed(export_dir: str, texts: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    answer_rows, groups = batch_prediction.answer_rows, []

    def stopped(model: Any, rows: Any, batch_size: int) -> Any:
        groups.append([row["text"] for row in rows])
        if len(groups) == 3:
            raise KeyboardInterrupt
        return answer_rows(model, rows, batch_size)

    monkeypatch.setattr(batch_prediction, "answer_rows", stopped)
    with pytest.raises(KeyboardInterrupt):
        predict(export_dir, texts, Shard(1, 2))
    (part,) = texts.glob("out-00001-of-00002.jsonl.part")
    assert len(part.read_bytes().splitlines()) == 8
    # Rows of the other shard may change in the meantime, but not rows of this one.
    write_texts(texts, [*TEXTS[:12], "another", *TEXTS[13:]])
    assert_rejected((part, 8), predict, export_dir, texts, Shard(1, 2))
    write_texts(texts, ["another", *TEXTS[1:]])
    assert ", 8 of them from an earlier run" in predict(export_dir, texts, Shard(1, 2))
    assert groups[3][0] == TEXTS[20]
    write_texts(texts)
    predict(export_dir, texts, Shard(0, 2))
    assert join_shards(texts, 2) == predict_at_once(export_dir, texts)


def test_a_rejected_row_is_reported_by_its_number_in_the_file(export_dir: str, tmp_path: pathlib.Path):
    write_texts(tmp_path, [*TEXTS[:21], "refused", *TEXTS[21:]])
    assert_rejected((tmp_path / "all.jsonl", "row 22"), predict, export_dir, tmp_path, Shard(1, 2))


@pytest.mark.usefixtures("tiny_encoder")
@pytest.mark.parametrize(("name", "changes"), slow_after(1, [
    ("out.jsonl", {"output_format": "original"}),
    ("out.npy", {}),
    ("out.npy", {"pooling": "mean"}),
]))  # fmt: skip
def test_shards_contain_the_vectors_of_a_run_without_shards(name: str, changes: dict[str, Any], texts: pathlib.Path):
    def write_vectors(output: str, shard: Shard = ALL_ROWS) -> str:
        flags = {"layers": ["-1", "1"], "max_seq_length": 16, "batch_size": 2, **changes}
        options = FeatureOptions("model", f"{texts}/all.txt", f"{texts}/{output}", **flags)
        return feature_extraction.write_vectors(options, shard)

    write_vectors(f"once-{name}")
    for index, count in enumerate((12, 15)):
        assert write_vectors(name, Shard(index, 2)).startswith(f"Wrote the vectors of {count} texts to ")
    assert_shards_hold(texts, name, f"once-{name}")


def test_the_flag_selects_the_shard(export_dir: str, texts: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    flags = [f"--export_dir={export_dir}", f"--input_file={texts}/all.jsonl", f"--output_file={texts}/out.jsonl"]
    PREDICT.main(*PREDICT.parse([*flags, "--batch_size=2", "--shard=1/3"]))
    assert f"Wrote 8 answers to {texts}/out-00001-of-00003.jsonl" in capsys.readouterr().out
    lines = (texts / "out-00001-of-00003.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == TEXTS[8:16]
    assert ShardOptions().selected() == ALL_ROWS


@pytest.mark.parametrize("shard", ["3/3", "a/b", "-1/2", "0/0", "0", "0/100000", ""])
def test_invalid_shards_are_rejected(shard: str):
    for command, flags in ((PREDICT, ["--export_dir=a"]), (FEATURES, ["--init=a"])):
        flags = [*flags, "--input_file=b", "--output_file=c.jsonl", f"--shard={shard}"]
        assert_rejected(("--shard", repr(shard), "INDEX/COUNT"), command.parse, flags)
