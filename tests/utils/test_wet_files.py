"""The extracted text of web crawls."""

import pathlib

import pytest

from official_bert.errors import UserError
from official_bert.utils import row_files
from tests.stored_texts import wet_record, wet_records

PAGES = ["One page.\n", "Another\r\n\r\npage"]


def read(path: pathlib.Path) -> list[dict[str, object]]:
    return [row for _, row in row_files.read_rows(str(path), "wet")]


@pytest.mark.parametrize("change", [-3, -1, 1, 2, 4, 40, 10**9, 10**30])
def test_a_wrong_length_is_an_error_that_names_the_record(change: int, tmp_path: pathlib.Path):
    path, text = tmp_path / "a.wet", PAGES[0].encode()
    wrong = wet_record("conversion", text, "http://y/", length=len(text) + change)
    path.write_bytes(b"".join([*wet_records(PAGES), wrong, *wet_records(PAGES)]))
    rows = row_files.read_rows(str(path), "wet")
    assert [next(rows)[1]["text"] for _ in PAGES] == PAGES
    with pytest.raises(
        UserError, match=rf"a.wet, record 4 \(http://y/\): the Content-Length is {len(text) + change} b"
    ):
        next(rows)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            wet_record("response", b"<html>", "http://y/"),
            r"record 1 \(http://y/\): a record of type response; expected",
        ),
        (b"WARC/1.0\r\nWARC-Type: conversion\r\n\r\n", "record 1: the Content-Length is nothing; expected"),
        (b"WARC/1.0\r\nContent-Length: -1\r\n\r\n", "record 1: the Content-Length is -1; expected"),
        (b"WARC/1.0\r\nno field\r\n\r\n", "record 1: expected a field of a WARC header, received 'no field'"),
        (wet_records(PAGES)[1] + b"text", "record 2: expected a WARC record, received b'text'"),
        (wet_records(PAGES)[1][:-3], "record 1 .*the record does not end there"),
        (wet_records(PAGES)[1][:-9], "record 1 .*the file ends before that"),
        (b"WARC/1.0\r\nContent-Len", "record 1: expected a field"),
    ],
)
def test_what_is_no_extracted_text_is_an_error(content: bytes, message: str, tmp_path: pathlib.Path):
    path = tmp_path / "a.wet"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read(path)
