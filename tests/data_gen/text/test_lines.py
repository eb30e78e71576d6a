"""Reading the lines of compressed and uncompressed text files, local and remote."""

import bz2
import functools
import gzip
import lzma
import re

import fsspec
import pytest
import tensorflow as tf
import zstandard

from data_gen.text.formats import detect_format, read_documents
from tests.data_gen.text.test_formats import COMPRESSIONS, DOCUMENTS, TEXTS
from tests.make import assert_mentions, assert_rejected, refusal

COMPRESSORS = [
    gzip.compress,
    functools.partial(bz2.compress, compresslevel=1),
    functools.partial(lzma.compress, preset=0),
    zstandard.ZstdCompressor(write_checksum=True).compress,
]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("scheme", ["ram", "memory"])
def test_remote_files_are_read_through_tensorflow_or_fsspec(scheme, compression):
    path = f"{scheme}://text_formats_{compression.replace(', ', '_').replace(' ', '_')}"
    with tf.io.gfile.GFile(path, "wb") if scheme == "ram" else fsspec.open(path, "wb") as writer:
        writer.write(COMPRESSIONS[compression](TEXTS["jsonl"].encode()))
    assert list(read_documents(path)) == DOCUMENTS


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    words = dict.fromkeys(("memory://missing", "ram://missing", "/missing/file"), "exist")
    for path, word in {**words, "nope://missing": "Protocol", str(tmp_path): "directory"}.items():
        for format in ("auto", "jsonl"):
            assert_rejected((path, word), list, read_documents(path, format))
        assert_rejected((path, word), detect_format, path)


@pytest.mark.parametrize("compress", COMPRESSORS)
def test_a_truncated_compressed_file_is_an_error_that_counts_the_lines_before_it(compress, written):
    content = compress(TEXTS["sentences"].encode())
    for length in range(12, len(content)):
        path = written(content[:length])
        told = refusal(list, read_documents(path, "sentences"))
        assert_mentions(told, path, "compressed")
        assert re.search(r"line \d\b", told)
    assert_rejected((path, "compressed"), detect_format, path)
    content = compress("".join(f"{number * 7919 % 104729} {number**3}\n" for number in range(40_000)).encode())
    told = refusal(list, read_documents(written(content[: len(content) // 2]), "sentences"))
    assert 6_000 < int(re.findall(r"line (\d+)", told)[0]) < 34_000


@pytest.mark.parametrize("compress", COMPRESSORS)
def test_a_corrupt_compressed_file_is_an_error(compress, written):
    content = compress("".join(f"{number * 7919 % 104729}\n" for number in range(5000)).encode())
    for position in range(12, len(content), len(content) // 20):
        damaged = bytearray(content)
        damaged[position] ^= 0x55
        path = written(bytes(damaged))
        assert_rejected(path, list, read_documents(path, "sentences"))


def test_text_that_starts_with_the_letters_of_a_compression_is_text(written):
    assert list(read_documents(written("BZh9 is not bzip2.\n"))) == [["BZh9 is not bzip2."]]
