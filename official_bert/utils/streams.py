"""Reads local and remote files as streams of bytes or lines, and decompresses gzip, bzip2, xz and Zstandard.

Compression is recognized by a file's first bytes. Its name does not matter.
"""

import bz2
import collections
import contextlib
import gzip
import io
import lzma
import os
import re
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from official_bert.errors import UserError
from official_bert.utils import file_kinds, files

_BLOCK = 1 << 18  # bytes read at once
_COMPRESSED_BLOCK = 1 << 14  # bytes decompressed at once; their text may be a thousand times as long

_GZIP = re.compile(rb"\x1f\x8b")
_BZIP2 = re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)")  # the second alternative is an empty stream
_XZ = re.compile(rb"\xfd7zXZ\0")
_ZSTANDARD = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")  # the second is a skippable frame, as of pzstd


def is_compressed(start: bytes) -> bool:
    """Returns whether a file is compressed in a supported format, judging by its first ten bytes."""
    return any(format.match(start) for format in (_GZIP, _BZIP2, _XZ, _ZSTANDARD))


@contextlib.contextmanager
def open_decompressed(path: str) -> Iterator[io.BufferedReader]:
    """Opens a file and yields a reader of its decompressed content.

    The reader supports seeking only if the file is local and not compressed. Reading a corrupt file raises EOFError (if
    it is truncated), OSError, zlib.error or lzma.LZMAError. `files.explain_read_errors` converts them to UserErrors.
    """
    with contextlib.ExitStack() as stack:
        if files.is_remote(path):
            remote = stack.enter_context(files.open_bytes(path))
            reader: Any = io.BufferedReader(_BlockReader(iter(partial(remote.read, _BLOCK), b"")), _BLOCK)
        else:
            reader = stack.enter_context(io.BufferedReader(io.FileIO(path), _BLOCK))
        yield _decompress(reader)


def read_start(path: str, size: int) -> tuple[bytes, bool]:
    """Returns the first `size` bytes of a file's decompressed content, and whether the file is compressed.

    For a pipe, which can be read only once, it reads nothing and returns no bytes.

    Raises:
        UserError: If the file is missing, unreadable, truncated or corrupt.
    """
    if not files.is_remote(path) and os.path.exists(path) and not os.path.isfile(path):
        return b"", False
    with files.explain_read_errors(path):
        with files.open_bytes(path) as reader:
            compressed = is_compressed(reader.read(10))
        with open_decompressed(path) as stream:
            return stream.read(size), compressed


def read_lines(path: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Yields the lines of a file, decompressed if necessary.

    Args:
        path: A local or remote file.
        start: Byte offset of the first line to read. Must be 0 for remote and compressed files.
        end: Byte offset of the first line that is not read. None reads to the end of the file.
    """
    number = 0
    with files.explain_read_errors(path, lambda: f"line {number}"), open_decompressed(path) as reader:
        if start:
            reader.seek(start)
        remaining = sys.maxsize if end is None else end - start
        while remaining > 0 and (line := reader.readline()):
            remaining -= len(line)
            yield line
            number += 1


def decode_lines(
    path: str,
    lines: Iterable[bytes],
    drop_invalid_utf8: bool | None = None,
    at_start: bool = True,
    counts: collections.Counter[str] | None = None,
) -> Iterator[str]:
    """Decodes the lines of a UTF-8 file.

    Args:
        path: The file that the lines are from, for messages.
        lines: The lines.
        drop_invalid_utf8: Whether to drop bytes that are not valid UTF-8. If it is False, they are an error that
            suggests --drop_invalid_utf8. If it is None, they are an error without this suggestion, for commands without
            the flag.
        at_start: Whether `lines` starts with the first line of the file, which may begin with a byte order mark.
        counts: Counts to increase: the counts of `drop_invalid_bytes`, and "carriage_returns", the number of lines with
            a carriage return before their end.

    Raises:
        UserError: If a line is not UTF-8, or the file is UTF-16 or not a text file.
    """
    counts = collections.Counter() if counts is None else counts
    for number, line in enumerate(lines, start=1):
        if number == 1:
            file_kinds.check_text(path, line)
        try:
            text = drop_invalid_bytes(line, counts) if drop_invalid_utf8 else line.decode()
        except UnicodeDecodeError as error:
            problem = files.describe_invalid_utf8(path, number, error, f" at column {error.start + 1}")
            flag = "" if drop_invalid_utf8 is None else "; or pass --drop_invalid_utf8 to drop such bytes"
            raise UserError(f"{problem}{flag}") from error
        if "\r" in text and "\r" in text.rstrip():
            counts["carriage_returns"] += 1
        yield text.removeprefix("\ufeff") if number == 1 and at_start else text


def drop_invalid_bytes(content: bytes, counts: collections.Counter[str]) -> str:
    """Decodes UTF-8 without its invalid bytes, if any, and counts them as "invalid_bytes" and "invalid_lines".

    Args:
        content: A line, or the text of a row.
        counts: The counts.
    """
    text = content.decode("utf-8", "ignore")
    if dropped := len(content) - len(text.encode()):
        counts += collections.Counter(invalid_bytes=dropped, invalid_lines=1)
    return text


def _decompress(reader: Any) -> Any:
    start = reader.peek(10)
    raw: Any
    if _GZIP.match(start):
        raw = gzip.GzipFile(fileobj=reader)
    elif _BZIP2.match(start):
        raw = bz2.BZ2File(reader)
    elif _XZ.match(start):
        raw = lzma.LZMAFile(reader)  # noqa: SIM115  (closed with the reader)
    elif _ZSTANDARD.match(start):
        raw = _BlockReader(_zstandard_blocks(reader))
    else:
        return reader
    return io.BufferedReader(raw, _BLOCK)


def _zstandard_blocks(reader: io.BufferedReader) -> Iterator[bytes]:
    import zstandard  # an optional dependency

    # The library's own file object takes the end of a truncated file for the end of the text. The window size is the
    # maximum, because corpora are often compressed with "zstd --long=31".
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    frame = None
    block = b""
    while block or (block := reader.read(_COMPRESSED_BLOCK)):
        frame = frame or decompressor.decompressobj()
        try:
            yield frame.decompress(block)
        except zstandard.ZstdError as error:
            raise OSError(str(error)) from error
        block = b""
        if frame.eof:
            block, frame = frame.unused_data, None
    if frame:
        raise EOFError


class _BlockReader(io.RawIOBase):
    """A file object that reads from an iterator of blocks of bytes."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        super().__init__()
        self._blocks = blocks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = memoryview(block)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
