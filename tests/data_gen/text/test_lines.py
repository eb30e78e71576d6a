"""Reading the lines of compressed and uncompressed text files, local and remote."""

import bz2
import gzip
import lzma
import pathlib
import re
from collections.abc import Callable

import fsspec
import pytest
import tensorflow as tf
import zstandard

from data_gen.text.formats import detect_format, read_documents
from official_bert.errors import UserError
from tests.data_gen.text.conftest import Written
from tests.data_gen.text.test_formats import COMPRESSIONS, DOCUMENTS, TEXTS
from tests.make import assert_refused

COMPRESSORS = [gzip.compress, bz2.compress, lzma.compress, zstandard.compress]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("scheme", ["ram", "memory"])
def test_remote_files_are_read_through_tensorflow_or_fsspec(scheme: str, compression: str):
    path = f"{scheme}://text_formats_{compression.replace(', ', '_').replace(' ', '_')}"
    with tf.io.gfile.GFile(path, "wb") if scheme == "ram" else fsspec.open(path, "wb") as writer:
        writer.write(COMPRESSIONS[compression](TEXTS["jsonl"].encode()))
    assert list(read_documents(path)) == DOCUMENTS


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("memory://missing", "there is no file memory://missing"),
        ("ram://missing", "there is no file ram://missing"),
        ("nope://missing", "cannot use nope://missing: Protocol not known: nope"),
        ("/missing/file", "there is no file /missing/file"),
    ],
)
@pytest.mark.parametrize("format", ["auto", "jsonl"])
def test_a_missing_file_is_an_error(path: str, message: str, format: str):
    assert_refused(message, list, read_documents(path, format))
    assert_refused(message, detect_format, path)


def test_a_folder_is_an_error(tmp_path: pathlib.Path):
    assert_refused(f"cannot read {tmp_path}: Is a directory", list, read_documents(str(tmp_path)))


def test_invalid_utf8_is_dropped_if_asked(written: Written):
    documents = read_documents(written(b"a\xffb\n\xe4\n\nc"), "sentences", drop_invalid_utf8=True)
    assert list(documents) == [["ab"], ["c"]]
    path = written('{"text": "a\\ud83db \\ud83d\\ude00"}')
    assert list(read_documents(path, drop_invalid_utf8=True)) == [["ab 😀"]]


@pytest.mark.parametrize("compress", COMPRESSORS)
def test_a_truncated_compressed_file_is_an_error_at_any_length(compress: Callable[[bytes], bytes], written: Written):
    content = compress(TEXTS["sentences"].encode())
    for length in range(12, len(content)):
        with pytest.raises(UserError, match=r"text ends within its compressed data, after line \d of the text;"):
            list(read_documents(written(content[:length]), "sentences"))
    assert_refused("text ends within its compressed data", detect_format, written(content[:-1]))


@pytest.mark.parametrize("compress", COMPRESSORS)
def test_the_lines_before_the_end_of_a_truncated_file_are_counted(compress: Callable[[bytes], bytes], written: Written):
    lines = "".join(f"{number * 7919 % 104729} {number**3}\n" for number in range(200_000)).encode()
    content = compress(lines)
    with pytest.raises(UserError) as caught:
        list(read_documents(written(content[: len(content) // 2]), "sentences"))
    (number,) = re.findall(r"after line (\d+)", str(caught.value))
    assert 30_000 < int(number) < 170_000


@pytest.mark.parametrize("compress", [*COMPRESSORS[:3], zstandard.ZstdCompressor(write_checksum=True).compress])
def test_a_corrupt_compressed_file_is_an_error(compress: Callable[[bytes], bytes], written: Written):
    text = "".join(f"{number * 7919 % 104729}\n" for number in range(5000)).encode()
    content = bytearray(compress(text))
    for position in range(12, len(content), len(content) // 20):
        damaged = content[:position] + bytes([content[position] ^ 0x55]) + content[position + 1 :]
        assert_refused("text", list, read_documents(written(bytes(damaged)), "sentences"))


def test_text_that_starts_with_the_letters_of_a_compression_is_text(written: Written):
    assert list(read_documents(written("BZh9 is not bzip2.\n"))) == [["BZh9 is not bzip2."]]
