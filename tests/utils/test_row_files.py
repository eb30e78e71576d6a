"""Row files: detecting the format, and reading them completely and in parts."""

import gzip
import json
import pathlib
import struct

import fsspec
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from official_bert.utils import arrow_files, row_files
from tests.make import assert_mentions, assert_rejected, refusal, write_text
from tests.stored_texts import STORED, hugging_face, parquet, prepare_tfds, prepare_tfds_rows, table

TEXTS = [f"Text number {number}, “quoted”." * (number % 4) for number in range(50)]


def expand(*patterns: str) -> list[str]:
    return row_files.expand(patterns, "input_file")


def read(path: str, columns=("text",), size: int | None = None) -> list[dict[str, object]]:
    rows = []
    for each in expand(path):
        kind = row_files.detect_kind(each) or ""
        parts = [row_files.WHOLE] if size is None else row_files.find_ranges(each, kind, size)
        rows += [row for part in parts for _, row in row_files.read_rows(each, kind, columns, part)]
    return rows


@pytest.fixture
def data_dir(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("kind", [*STORED, "tfds"])
def test_files_of_every_kind_are_recognized_and_read(kind: str, data_dir: pathlib.Path):
    path = STORED[kind](data_dir, TEXTS) if kind in STORED else f"tfds:{prepare_tfds(data_dir, TEXTS)}"
    assert {row_files.detect_kind(each) for each in expand(path)} == {kind}
    assert read(path) == [{"text": text} for text in TEXTS]
    assert read(path, None)[3] == {"text": TEXTS[3], "number": 3}
    assert_rejected(("'body'", "'text'"), read, path, ["body"])
    assert_rejected(("'number'", "int64"), read, path, ["number"])


@pytest.mark.parametrize("kind", STORED)
@pytest.mark.parametrize("size", [1, 300, 1000])
def test_ranges_of_a_file_cover_all_rows(kind: str, size: int, tmp_path: pathlib.Path, monkeypatch):
    monkeypatch.setattr(arrow_files, "_ROWS_AT_ONCE", 3)
    path = STORED[kind](tmp_path, TEXTS)
    first = expand(path)[0]
    assert arrow_files._make_ranges([2, 2, 2, 1, 5], 4) == [(0, 2), (2, None)]  # ends when it has the wanted size
    ranges = row_files.find_ranges(first, kind, size)
    assert len(ranges) > 1
    positions = [position for part in ranges for position, _ in row_files.read_rows(first, kind, ["text"], part)]
    assert positions == [f"row {number}" for number in range(1, len(positions) + 1)]
    assert read(path, size=size) == read(path)
    for scheme in ("ram", "memory"):
        remote = f"{scheme}://rows_{kind}"
        with tf.io.gfile.GFile(remote, "wb") if scheme == "ram" else fsspec.open(remote, "wb") as writer:
            writer.write(pathlib.Path(first).read_bytes())
        assert row_files.find_ranges(remote, kind, size) == [row_files.WHOLE]
        assert read(remote, size=1) == read(first)


def test_a_stream_truncated_between_batches_is_an_error(tmp_path: pathlib.Path):
    path = expand(hugging_face(tmp_path, TEXTS))[0]
    content = pathlib.Path(path).read_bytes()
    with pa.memory_map(path) as source:
        messages = pa.ipc.MessageReader.open_stream(source)
        for _ in ("schema", "first batch"):
            messages.read_next_message()
        first_end = source.tell()
    for length in (first_end, len(content) - 8, len(content) - 1):
        pathlib.Path(path).write_bytes(content[:length])
        for size in (None, 1):
            assert_rejected((path, "corrupted"), read, path, size=size)


def test_all_column_types_of_texts_are_read(tmp_path: pathlib.Path):
    dictionary = pa.dictionary(pa.int32(), pa.string())
    kinds = [pa.large_string(), pa.binary(), pa.large_binary(), dictionary, pa.string_view(), pa.binary_view()]
    paths = [hugging_face(tmp_path / str(number), TEXTS, kind) for number, kind in enumerate(kinds)]
    # Not every Arrow release writes views to Parquet.
    paths += [parquet(tmp_path / str(number), TEXTS, kind) for number, kind in enumerate(kinds[:-2])]
    for path in paths:
        assert read(path) == read(path, size=1) == [{"text": text} for text in TEXTS]


def test_nested_duplicate_and_invalid_columns_are_errors(tmp_path: pathlib.Path):
    path = str(tmp_path / "texts.parquet")
    for content, names in (
        (pa.table({"text": [["a"], ["b"]]}), ("'text'", "list<element: string>")),
        (pa.table([["a"], ["b"]], names=["text", "text"]), ("two", "'text'")),
        (pa.table({"text": pa.array([b"a", b"b\xe4c"], pa.binary())}), ("row 2", "0xe4", "'text'")),
    ):
        pa.parquet.write_table(content, path)
        assert_rejected((path, *names), read, path)
    rows = row_files.read_rows(path, "parquet", ["text"], drop_invalid_utf8=True)
    assert [row["text"] for _, row in rows] == ["a", "bc"]
    pa.parquet.write_table(pa.table({"text": pa.nulls(2)}), path)
    assert read(path) == [{"text": None}] * 2


def test_files_that_need_a_conversion_and_texts_are_recognized(tmp_path: pathlib.Path):
    stored, feather = pathlib.Path(parquet(tmp_path, [])).read_bytes(), pa.BufferOutputStream()
    with pa.ipc.new_file(feather, table(TEXTS).schema):
        pass
    web_archive, tfrecord = b"WARC/1.0\r\nWARC-Type: conversion", struct.pack("<Q", 10) + b"abcd text"
    starts = [(gzip.compress(stored), "parquet"), (feather.getvalue().to_pybytes(), "Feather")]
    starts += [(web_archive, "archive"), (tfrecord, "TFRecord")]
    starts += [(gzip.compress(start), kind) for start, kind in starts[2:]]
    for start, kind in starts:
        path = write_text(tmp_path / "text", start)
        assert_rejected((path, kind), row_files.detect_kind, path)
    for start in (b"", b"PAR", b"WARC", b"A text."):
        assert row_files.detect_kind(write_text(tmp_path / "text-of-a-book", start)) is None


def test_names_are_expanded_in_order(tmp_path: pathlib.Path):
    a, b = (write_text(tmp_path / name, name) for name in ("a.txt", "b.txt"))
    folder = hugging_face(tmp_path, TEXTS)
    shards = [f"{folder}/data-0000{number}-of-00002.arrow" for number in range(2)]
    assert expand(b, folder, f"{tmp_path}/*.txt") == [b, *shards, a, b]
    for pattern, name in ((" ", "empty"), (f"{tmp_path}/none", tmp_path / "none")):
        assert_rejected(("--input_file", name), expand, pattern)


def test_incomplete_folders_and_folders_with_several_splits_are_errors(tmp_path: pathlib.Path):
    folder = pathlib.Path(hugging_face(tmp_path, ["a", "b"]))
    indices = [{"filename": "indices.arrow"}]
    for state, names in (
        ({}, (folder / "state.json", "name")),
        ({"_data_files": [{"filename": "gone.arrow"}]}, (folder / "gone.arrow", folder / "state.json")),
        *(({"_data_files": [], name: indices}, (folder, "rows")) for name in ("_indices_files", "_indices_data_files")),
    ):
        (folder / "state.json").write_text(json.dumps(state))
        assert_rejected(names, expand, str(folder))
    (folder / "state.json").unlink()
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert_rejected((folder / "train", folder / "test"), expand, str(folder))


def test_changed_removed_and_added_files_are_errors(tmp_path):
    pattern, paths = str(tmp_path / "*.txt"), [tmp_path / f"{name}.txt" for name in "abc"]
    for path in paths[:2]:
        path.write_text("the cat\n")
    before = row_files.fingerprint(expand(pattern))
    row_files.check_unchanged(before, [pattern], "input_file")
    for path, change in ((paths[2], "one more"), (paths[1], "another"), (paths[0], None)):
        path.write_text(change) if change else path.unlink()
        assert_rejected(("--input_file", path), row_files.check_unchanged, before, [pattern], "input_file")


FEW = TEXTS[1:8]


def test_a_prepared_dataset_is_read_without_network(data_dir: pathlib.Path):
    name = f"tfds:{prepare_tfds(data_dir, FEW)}"
    assert read(f"{name}#train", size=1) == [{"text": text} for text in FEW]
    assert_rejected(("prose/small", "'test'", "train"), read, f"{name}#test")
    (line,) = refusal(read, "tfds:no_such").splitlines()
    assert_mentions(line, "no_such")


def test_values_are_converted_to_python_types_and_classes_to_names(data_dir: pathlib.Path):
    names, columns = tfds.features.ClassLabel(names=["bad", "good"]), "text label words tags answers score source"
    values = [("a", 1, ["b", "é"], [0, 1], {"start": [3, 4]}, 0.5, {"name": "é"})]
    values += [("b", -1, [], [], {"start": []}, 0.0, {"name": ""})]
    rows = [dict(zip(columns.split(), row, strict=True)) for row in values]
    name = prepare_tfds_rows(
        data_dir, rows, text=tfds.features.Text(), label=names, words=tfds.features.Sequence(tfds.features.Text()),
        tags=tfds.features.Sequence(names), answers=tfds.features.Sequence({"start": np.int32}), score=np.float32,
        source=tfds.features.FeaturesDict({"name": tfds.features.Text()}),
    )  # fmt: skip
    first, second = read(f"tfds:{name}", None)
    assert first == {**rows[0], "label": "good", "tags": ["bad", "good"]}
    assert second == {**rows[1], "label": None}
    assert_rejected("'words'", read, f"tfds:{name}", ["words"])
    assert row_files.detect_kind(str(next(data_dir.rglob("features.json")))) is None


def test_files_without_rows_are_omitted(data_dir: pathlib.Path):
    assert read(f"tfds:{prepare_tfds(data_dir, FEW[:1])}") == [{"text": FEW[0]}]


def test_a_damaged_file_is_an_error(data_dir: pathlib.Path):
    name = f"tfds:{prepare_tfds(data_dir, FEW)}"
    path = pathlib.Path(expand(name)[1])
    content = path.read_bytes()
    for row, damaged in ((3, content[:-3]), (0, content[:20] + b"?" + content[21:])):
        path.write_bytes(damaged)
        (line,) = refusal(read, name).splitlines()
        assert_mentions(line, path, f"row {row}")
    other = path.rename(path.with_name("prose-train.tfrecord-00002-of-00002"))
    assert_rejected((other, "tfds:NAME"), list, row_files.read_rows(str(other), "tfds"))
    (path.parent / "dataset_info.json").write_text("{")
    assert_rejected((path.parent, "JSON"), list, row_files.read_rows(str(other), "tfds"))
