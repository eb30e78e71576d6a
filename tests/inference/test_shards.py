"""The shards written with --shard together contain exactly what one run over all rows writes."""

import itertools
import json
import pathlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from official_bert.commands import FEATURES, PREDICT
from official_bert.errors import UserError
from official_bert.inference import batch_prediction, feature_extraction
from official_bert.inference.options import BatchPredictionOptions, FeatureOptions, ShardOptions
from official_bert.inference.shards import ALL_ROWS, Shard
from tests.conftest import slow_after
from tests.inference.shard_texts import TEXTS, assert_shards_hold, join_shards, write_texts

pytestmark = pytest.mark.usefixtures("small_groups")


def make_options(export_dir: str, folder: pathlib.Path, output: str = "out.jsonl") -> BatchPredictionOptions:
    return BatchPredictionOptions(export_dir, f"{folder}/all.jsonl", f"{folder}/{output}", batch_size=2)


def predicted_at_once(export_dir: str, folder: pathlib.Path) -> bytes:
    batch_prediction.predict(make_options(export_dir, folder, "once.jsonl"))
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


@pytest.mark.parametrize("count", [3, 9])  # nine shards of seven groups: two shards are empty
def test_shards_hold_the_answers_of_one_machine(count: int, export_dir: str, tmp_path: pathlib.Path):
    write_texts(tmp_path)
    for index in reversed(range(count)):  # one job per shard, in any order
        told = batch_prediction.predict(make_options(export_dir, tmp_path), Shard(index, count))
        assert told.endswith(f" to {tmp_path}/out-{index:05}-of-{count:05}.jsonl")
    assert join_shards(tmp_path, count) == predicted_at_once(export_dir, tmp_path)
    assert not list(tmp_path.glob("*.part*"))


def test_single_shard_has_the_plain_name(export_dir: str, tmp_path: pathlib.Path):
    write_texts(tmp_path)
    assert Shard.parse("0/1") == ALL_ROWS
    batch_prediction.predict(make_options(export_dir, tmp_path), ALL_ROWS)
    assert (tmp_path / "out.jsonl").read_bytes() == predicted_at_once(export_dir, tmp_path)


def test_interrupted_shard_is_resumed(export_dir: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    write_texts(tmp_path)
    options, shard = make_options(export_dir, tmp_path), Shard(1, 2)
    answer_rows, groups = batch_prediction.answer_rows, []

    def stopped(model: Any, rows: Any, batch_size: int) -> Any:
        groups.append([row["text"] for row in rows])
        if len(groups) == 3:
            raise KeyboardInterrupt
        return answer_rows(model, rows, batch_size)

    monkeypatch.setattr(batch_prediction, "answer_rows", stopped)
    with pytest.raises(KeyboardInterrupt):
        batch_prediction.predict(options, shard)
    (part,) = tmp_path.glob("out-00001-of-00002.jsonl.part")
    assert len(part.read_bytes().splitlines()) == 8
    # Rows of the other shard may change in the meantime, but not rows of this one.
    lines = (tmp_path / "all.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "all.jsonl").write_text("".join([*lines[:12], '{"text": "another"}\n', *lines[13:]]))
    with pytest.raises(UserError, match="first 8 rows have changed"):
        batch_prediction.predict(options, shard)
    (tmp_path / "all.jsonl").write_text("".join(['{"text": "another"}\n', *lines[1:]]))
    assert ", 8 of them from an earlier run" in batch_prediction.predict(options, shard)
    assert groups[3][0] == TEXTS[20]
    write_texts(tmp_path)
    batch_prediction.predict(options, Shard(0, 2))
    assert join_shards(tmp_path, 2) == predicted_at_once(export_dir, tmp_path)


def test_refused_row_is_reported_by_its_number_in_the_file(export_dir: str, tmp_path: pathlib.Path):
    write_texts(tmp_path, [*TEXTS[:21], "refused", *TEXTS[21:]])
    with pytest.raises(UserError, match=r"all.jsonl: the model cannot answer row 22 \(not counting the header\)"):
        batch_prediction.predict(make_options(export_dir, tmp_path), Shard(1, 2))


@pytest.mark.usefixtures("tiny_encoder")
@pytest.mark.parametrize(("name", "changes"), slow_after(1, [
    ("out.jsonl", {"output_format": "original"}),
    ("out.npy", {}),
    ("out.npy", {"pooling": "mean"}),
]))  # fmt: skip
def test_shards_hold_the_vectors_of_one_machine(name: str, changes: dict[str, Any], tmp_path: pathlib.Path):
    (tmp_path / "all.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    flags = {"layers": ["-1", "1"], "max_seq_length": 16, "batch_size": 2, **changes}
    files = (str(tmp_path / "model"), f"{tmp_path}/all.txt")
    feature_extraction.write_features(FeatureOptions(*files, f"{tmp_path}/once-{name}", **flags))
    told = [
        feature_extraction.write_features(FeatureOptions(*files, f"{tmp_path}/{name}", **flags), Shard(index, 2))
        for index in range(2)
    ]
    assert [each.partition(" to ")[0] for each in told] == [f"Wrote the vectors of {n} texts" for n in (12, 15)]
    assert_shards_hold(tmp_path, name, f"once-{name}")


def test_the_flag_selects_the_shard(export_dir: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    write_texts(tmp_path)
    flags = [f"--export_dir={export_dir}", f"--input_file={tmp_path}/all.jsonl", f"--output_file={tmp_path}/out.jsonl"]
    PREDICT.main(*PREDICT.parse([*flags, "--batch_size=2", "--shard=1/3"]))
    assert f"Wrote 8 answers to {tmp_path}/out-00001-of-00003.jsonl" in capsys.readouterr().out
    lines = (tmp_path / "out-00001-of-00003.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == TEXTS[8:16]


@pytest.mark.parametrize(("arguments", "message"), [
    (["--shard=3/3"], "--shard is '3/3'; it must be INDEX/COUNT with an index from 0 to"),
    (["--shard=a/b"], "--shard is 'a/b'; it must be INDEX/COUNT"),
    (["--shard=-1/2"], "--shard is '-1/2'; it must be INDEX/COUNT"),
    (["--shard=0/0"], "--shard is '0/0'; it must be INDEX/COUNT"),
    (["--shard=0"], "--shard is '0'; it must be INDEX/COUNT"),
    (["--shard=0/100000"], "--shard is '0/100000'; it must be INDEX/COUNT"),
    (["--shard="], "--shard is ''; it must be INDEX/COUNT"),
])  # fmt: skip
def test_invalid_shards_are_rejected(arguments: list[str], message: str):
    for command, flags in ((PREDICT, ["--export_dir=a"]), (FEATURES, ["--init=a"])):
        with pytest.raises(UserError, match=message):
            command.parse([*flags, "--input_file=b", "--output_file=c.jsonl", *arguments])


def test_without_the_flag_all_rows_are_selected():
    assert ShardOptions().selected() == ALL_ROWS
    assert ShardOptions(shard="2/10").selected() == Shard(2, 10)
