"""Row files: detecting the format, and reading them completely and in parts."""

import contextlib
import gzip
import itertools
import pathlib
import struct
from collections.abc import Callable, Sequence
from random import Random

import pyarrow as pa
import pytest
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.utils import row_files
from tests import stored_texts
from tests.make import assert_refused, refusal, write_text
from tests.stored_texts import STORED

TEXTS = [f"Text number {number}, “quoted”." * (number % 4) for number in range(50)]


def read(path: str, columns: Sequence[str] | None = ("text",), size: int | None = None) -> list[dict[str, object]]:
    rows = []
    for each in row_files.expand([path], "input_file"):
        kind = row_files.detect_kind(each)
        assert kind
        parts = [row_files.WHOLE] if size is None else row_files.find_ranges(each, kind, size)
        rows += [row for part in parts for _, row in row_files.read_rows(each, kind, columns, part)]
    return rows


@pytest.mark.parametrize("kind", STORED)
def test_files_of_every_kind_are_recognized_and_read(kind: str, tmp_path: pathlib.Path):
    path = STORED[kind](tmp_path, TEXTS)
    assert {row_files.detect_kind(each) for each in row_files.expand([path], "input_file")} == {kind}
    assert read(path) == [{"text": text} for text in TEXTS]
    assert read(path, None)[3] == {"text": TEXTS[3], "number": 3}


@pytest.mark.parametrize("kind", STORED)
@pytest.mark.parametrize("size", [1, 300, 1000])
def test_ranges_of_a_file_cover_all_rows(kind: str, size: int, tmp_path: pathlib.Path):
    path = STORED[kind](tmp_path, TEXTS)
    first = row_files.expand([path], "input_file")[0]
    ranges = row_files.find_ranges(first, kind, size)
    assert len(ranges) > 1
    positions = [position for part in ranges for position, _ in row_files.read_rows(first, kind, ["text"], part)]
    assert positions == [f"row {number}" for number in range(1, len(positions) + 1)]
    assert read(path, size=size) == read(path)


@pytest.mark.parametrize("kind", STORED)
@pytest.mark.parametrize("scheme", ["ram", "memory"])
def test_remote_files_are_read(kind: str, scheme: str, tmp_path: pathlib.Path):
    import fsspec

    local = row_files.expand([STORED[kind](tmp_path, TEXTS)], "input_file")[0]
    path, content = f"{scheme}://rows_{kind}", pathlib.Path(local).read_bytes()
    with tf.io.gfile.GFile(path, "wb") if scheme == "ram" else fsspec.open(path, "wb") as writer:
        writer.write(content)
    assert read(path, size=1) == read(local)


@pytest.mark.parametrize("kind", STORED)
def test_a_missing_column_is_an_error_that_lists_the_columns(kind: str, tmp_path: pathlib.Path):
    assert_refused("no column 'body'.*'text'", read, STORED[kind](tmp_path, TEXTS), ["body"])


@pytest.mark.parametrize("kind", STORED)
def test_a_truncated_file_is_an_error(kind: str, tmp_path: pathlib.Path):
    path = pathlib.Path(row_files.expand([STORED[kind](tmp_path, TEXTS)], "input_file")[-1])
    content = path.read_bytes()
    damaged = tmp_path / "damaged"
    for length in range(20, len(content) - 9, len(content) // 30):
        damaged.write_bytes(content[:length])
        with pytest.raises(UserError, match="incomplete or corrupted") as caught:
            read(str(damaged))
        assert "\n" not in str(caught.value)
        assert "incomplete or corrupted" in refusal(read, str(damaged), size=1)


@pytest.mark.parametrize("kind", STORED)
def test_a_flipped_bit_is_harmless_or_a_user_error(kind: str, tmp_path: pathlib.Path):
    path = pathlib.Path(row_files.expand([STORED[kind](tmp_path, TEXTS)], "input_file")[0])
    content, random = path.read_bytes(), Random(1)
    for _ in range(60):
        damaged = bytearray(content)
        damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
        path.write_bytes(damaged)
        for size in (None, 300):
            with contextlib.suppress(UserError):
                parts = [row_files.WHOLE] if size is None else row_files.find_ranges(str(path), kind, size)
                rows = [row for part in parts for _, row in row_files.read_rows(str(path), kind, ["text"], part)]
                assert all(isinstance(row["text"], str) for row in rows)


def test_a_stream_truncated_between_batches_is_an_error(tmp_path: pathlib.Path):
    path = row_files.expand([stored_texts.hugging_face(tmp_path, TEXTS)], "input_file")[0]
    content = pathlib.Path(path).read_bytes()
    with pa.memory_map(path) as source:
        messages = pa.ipc.MessageReader.open_stream(source)
        messages.read_next_message()  # the schema
        messages.read_next_message()
        first_end = source.tell()
    for length in (first_end, len(content) - 8, len(content) - 1):
        pathlib.Path(path).write_bytes(content[:length])
        for size in (None, 1):
            assert "incomplete or corrupted" in refusal(read, path, size=size)


def test_a_column_of_numbers_is_not_text(tmp_path: pathlib.Path):
    for store in STORED.values():
        assert "'number' is not text, but int64" in refusal(read, store(tmp_path, TEXTS), ["number"])


_TYPES = [pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]


@pytest.mark.parametrize(
    ("store", "type"),
    [
        *itertools.product([stored_texts.parquet, stored_texts.hugging_face], _TYPES),
        (stored_texts.hugging_face, pa.string_view()),  # not every Arrow release writes it to Parquet
    ],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_all_column_types_of_texts_are_read(store: Callable[..., str], type: object, tmp_path: pathlib.Path):
    path = store(tmp_path, TEXTS, type)
    assert read(path) == read(path, size=1) == [{"text": text} for text in TEXTS]


def test_nested_and_duplicate_columns_are_rejected(tmp_path: pathlib.Path):
    path = str(tmp_path / "nested.parquet")
    pa.parquet.write_table(pa.table({"text": [["a"], ["b"]]}), path)
    assert "nested.parquet: the column 'text' is not text, but list<" in refusal(read, path)
    pa.parquet.write_table(pa.table([["a"], ["b"]], names=["text", "text"]), path)
    assert_refused(r"there is two columns 'text'; the columns are 'text', 'text'|two columns", read, path)


def test_invalid_utf8_is_an_error_or_dropped(tmp_path: pathlib.Path):
    path = str(tmp_path / "latin.parquet")
    pa.parquet.write_table(pa.table({"text": pa.array([b"a", b"b\xe4c"], pa.binary())}), path)
    assert_refused(r"latin.parquet, row 2: byte 0xe4 in 'text' is not UTF-8.*--drop_invalid_utf8", read, path)
    rows = row_files.read_rows(path, "parquet", ["text"], drop_invalid_utf8=True)
    assert [row["text"] for _, row in rows] == ["a", "bc"]


def test_files_that_cannot_be_read_in_ranges_are_rejected(tmp_path: pathlib.Path):
    packed = tmp_path / "texts.parquet.gz"
    packed.write_bytes(gzip.compress(pathlib.Path(stored_texts.parquet(tmp_path, TEXTS)).read_bytes()))
    assert_refused(r"texts.parquet.gz is a compressed parquet file.*decompress it", row_files.detect_kind, str(packed))
    feather = tmp_path / "texts.feather"
    with pa.OSFile(str(feather), "wb") as sink, pa.ipc.new_file(sink, stored_texts.table(TEXTS).schema):
        pass
    assert "Feather" in refusal(row_files.detect_kind, str(feather))


@pytest.mark.parametrize(("start", "kind"), [
    (b"WARC/1.0\r\nWARC-Type: conversion", "web archive"), (struct.pack("<Q", 10) + b"abcd text", "TFRecord file"),
])  # fmt: skip
def test_files_that_need_a_conversion_are_recognized(start: bytes, kind: str, tmp_path: pathlib.Path):
    path = tmp_path / "text"
    for content in (start, gzip.compress(start)):
        path.write_bytes(content)
        assert_refused(rf"text is a {kind}. .* examples/texts_to", row_files.detect_kind, str(path))


@pytest.mark.parametrize("start", [b"", b"PAR", b"WARC", b"A text."])
def test_text_is_not_a_file_of_rows(start: bytes, tmp_path: pathlib.Path):
    path = write_text(tmp_path / "text", start)
    assert row_files.detect_kind(path) is None


def test_names_are_expanded_in_order(tmp_path: pathlib.Path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    folder = stored_texts.hugging_face(tmp_path, TEXTS)
    paths = row_files.expand([f"{tmp_path}/b.txt", folder, f"{tmp_path}/*.txt"], "input_file")
    assert [path.removeprefix(f"{tmp_path}/") for path in paths] == [
        "b.txt", "dataset/data-00000-of-00002.arrow", "dataset/data-00001-of-00002.arrow", "a.txt", "b.txt",
    ]  # fmt: skip
    assert "--input_file is empty" in refusal(row_files.expand, [" "], "input_file")
    assert "--input_file: no file matches" in refusal(row_files.expand, [f"{tmp_path}/none"], "input_file")
