"""The lines of text files: local or remote, compressed (gzip, bzip2, Zstandard) or not.

Compression is recognised by a file's first bytes, whatever its name.
"""

import bz2
import gzip
import io
import os
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import zstandard

from official_bert.errors import UserError
from official_bert.utils import files

_BLOCK = 1 << 18  # bytes read at once
_COMPRESSED_BLOCK = 1 << 14  # bytes decompressed at once; smaller, as they can grow a thousandfold

_GZIP = re.compile(rb"\x1f\x8b")
_BZIP2 = re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)")  # the second: an empty stream
_ZSTANDARD = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")  # the second: a frame to be skipped, as of pzstd


def is_compressed(start: bytes) -> bool:
    """Whether a file that starts with these ten bytes, or all that it has, is compressed in a way that is read."""
    return any(kind.match(start) for kind in (_GZIP, _BZIP2, _ZSTANDARD))


def decode_lines(path: str, lines: Iterable[bytes], drop_invalid_utf8: bool, at_start: bool = True) -> Iterator[str]:
    """Yields the lines of a file as text, without white space at both ends; `path` is for errors.

    What is not UTF-8 is a UserError or dropped; UTF-16 is an error. If the first line is the file's first, a byte order
    mark in it is dropped.
    """
    handling = "ignore" if drop_invalid_utf8 else "strict"
    mark = "\ufeff" if at_start else ""
    for number, line in enumerate(lines, start=1):
        if number == 1:
            files.check_not_utf16(path, line)
        try:
            text = line.decode("utf-8", handling)
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}, line {number}: byte 0x{line[error.start]:02x} at column {error.start + 1} is not "
                "UTF-8; convert the file to UTF-8, or pass --drop_invalid_utf8 to drop such bytes"
            ) from error
        if mark:
            text, mark = text.removeprefix(mark), ""
        yield text.strip()


def read_lines(path: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Yields the lines of a file, decompressed.

    Args:
        path: local or remote.
        start: the byte where a line begins; only local files that are not compressed are read from elsewhere than 0.
        end: the byte where a line begins that is not read; None to read to the end.
    """
    number = 0
    try:
        with ExitStack() as stack:
            reader = _opened(path, stack)
            if start or end is not None:
                reader.seek(start)
            else:
                reader = _decompressed(reader)
            left = sys.maxsize if end is None else end - start
            while left > 0 and (line := reader.readline()):
                left -= len(line)
                yield line
                number += 1
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path}") from error
    except EOFError as error:
        raise UserError(
            f"{path} ends within its compressed data, after line {number} of the text; copy or download it again"
        ) from error
    except (OSError, zlib.error, zstandard.ZstdError) as error:
        position = f" after line {number} of the text" if number else ""
        raise UserError(f"cannot read {path}{position}: {getattr(error, 'strerror', None) or error}") from error
    except Exception as error:  # the error classes of TensorFlow and of fsspec's many file systems
        if not files.is_remote(path):
            raise
        raise UserError(f"cannot read {path}: {error or type(error).__name__}") from error


def _opened(path: str, stack: ExitStack) -> io.BufferedReader:
    if not files.is_remote(path):
        return stack.enter_context(io.BufferedReader(io.FileIO(path), _BLOCK))
    reader = stack.enter_context(files.open_bytes(path))
    return io.BufferedReader(_Stream(iter(partial(reader.read, _BLOCK), b"")), _BLOCK)


def _decompressed(reader: io.BufferedReader) -> io.BufferedReader:
    start = reader.peek(10)
    raw: Any
    if _GZIP.match(start):
        raw = gzip.GzipFile(fileobj=reader)
    elif _BZIP2.match(start):
        raw = bz2.BZ2File(reader)
    elif _ZSTANDARD.match(start):
        raw = _Stream(_zstandard_blocks(reader))
    else:
        return reader
    return io.BufferedReader(raw, _BLOCK)


def _zstandard_blocks(reader: io.BufferedReader) -> Iterator[bytes]:
    # Not the library's own file object, which takes the end of a truncated file for the end of the text. The window is
    # the largest there is: corpora are packed with "zstd --long=31".
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    frame = None
    block = b""
    while block or (block := reader.read(_COMPRESSED_BLOCK)):
        frame = frame or decompressor.decompressobj()
        yield frame.decompress(block)
        block = b""
        if frame.eof:
            block, frame = frame.unused_data, None
    if frame:
        raise EOFError


class _Stream(io.RawIOBase):
    """Blocks of bytes as a file to read."""

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


FileState = tuple[int, int] | None


def file_state(path: str) -> FileState:
    """Returns what changes when a local file is written: its size and the time of the last change; None of others."""
    if files.is_remote(path):
        return None
    with files.read_errors_explained(path):
        status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def check_unchanged(states: dict[str, FileState]) -> None:
    """Raises a UserError if one of these files is not in the state that it was in."""
    for path, before in states.items():
        if file_state(path) != before:
            raise UserError(f"{path} changed while it was read; run the same command again")
