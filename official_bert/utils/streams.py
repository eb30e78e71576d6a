"""Files as streams of bytes: local or remote, compressed (gzip, bzip2, xz, Zstandard) or not.

Compression is recognised by a file's first bytes, whatever its name.
"""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from official_bert.errors import UserError
from official_bert.utils import file_kinds, files

_BLOCK = 1 << 18  # bytes read at once
_COMPRESSED_BLOCK = 1 << 14  # bytes decompressed at once; smaller, as they can grow a thousandfold

_GZIP = re.compile(rb"\x1f\x8b")
_BZIP2 = re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)")  # the second: an empty stream
_XZ = re.compile(rb"\xfd7zXZ\0")
_ZSTANDARD = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")  # the second: a frame to be skipped, as of pzstd


def is_compressed(start: bytes) -> bool:
    """Whether a file that starts with these ten bytes, or all that it has, is compressed in a way that is read."""
    return any(kind.match(start) for kind in (_GZIP, _BZIP2, _XZ, _ZSTANDARD))


@contextlib.contextmanager
def open_decompressed(path: str) -> Iterator[io.BufferedReader]:
    """Yields what a file holds, decompressed; one that is not compressed and not remote can be sought in.

    A damaged file raises EOFError (it ends too early), OSError, zlib.error or lzma.LZMAError while it is read, which
    `explain_read_errors` makes UserErrors.
    """
    with contextlib.ExitStack() as stack:
        if files.is_remote(path):
            remote = stack.enter_context(files.open_bytes(path))
            reader: Any = io.BufferedReader(_Stream(iter(partial(remote.read, _BLOCK), b"")), _BLOCK)
        else:
            reader = stack.enter_context(io.BufferedReader(io.FileIO(path), _BLOCK))
        yield _decompressed(reader)


def read_start(path: str, size: int) -> tuple[bytes, bool]:
    """Returns the first bytes of what a file holds, and whether it is compressed; of a pipe, which is read once, none.

    Raises:
        UserError: the file is missing, unreadable, truncated or corrupt.
    """
    if not files.is_remote(path) and os.path.exists(path) and not os.path.isfile(path):
        return b"", False
    with explain_read_errors(path, "line", lambda: 0):
        with files.open_bytes(path) as reader:
            compressed = is_compressed(reader.read(10))
        with open_decompressed(path) as stream:
            return stream.read(size), compressed


@contextlib.contextmanager
def explain_read_errors(path: str, unit: str, count: Callable[[], int]) -> Iterator[None]:
    """Makes what goes wrong while `open_decompressed` is read a UserError.

    Args:
        path: the file.
        unit: what is read of it, such as "line".
        count: returns how many were read.
    """
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path}") from error
    except EOFError as error:
        raise UserError(
            f"{path} ends within its compressed data, after {unit} {count()} of the text; copy or download it again"
        ) from error
    except (OSError, zlib.error, lzma.LZMAError) as error:
        position = f" after {unit} {count()} of the text" if count() else ""
        raise UserError(f"cannot read {path}{position}: {getattr(error, 'strerror', None) or error}") from error
    except Exception as error:  # the error classes of TensorFlow and of fsspec's many file systems
        if not files.is_remote(path):
            raise
        raise UserError(f"cannot read {path}: {error or type(error).__name__}") from error


def read_lines(path: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Yields the lines of a file, decompressed.

    Args:
        path: local or remote.
        start: the byte where a line begins; only local files that are not compressed are read from elsewhere than 0.
        end: the byte where a line begins that is not read; None to read to the end.
    """
    number = 0
    with explain_read_errors(path, "line", lambda: number), open_decompressed(path) as reader:
        if start:
            reader.seek(start)
        left = sys.maxsize if end is None else end - start
        while left > 0 and (line := reader.readline()):
            left -= len(line)
            yield line
            number += 1


def decode_lines(
    path: str, lines: Iterable[bytes], drop_invalid_utf8: bool | None = None, at_start: bool = True
) -> Iterator[str]:
    """Yields the lines of a file as text; `path` is for errors.

    What is not UTF-8 is a UserError or dropped; UTF-16 and files of other kinds are errors. If the first line is the
    file's first, a byte order mark in it is dropped. None for `drop_invalid_utf8` means that the command has no such
    flag.
    """
    for number, line in enumerate(lines, start=1):
        if number == 1:
            file_kinds.check_text(path, line)
        try:
            text = line.decode("utf-8", "ignore" if drop_invalid_utf8 else "strict")
        except UnicodeDecodeError as error:
            problem = files.not_utf8(path, number, error, f" at column {error.start + 1}")
            flag = "" if drop_invalid_utf8 is None else "; or pass --drop_invalid_utf8 to drop such bytes"
            raise UserError(f"{problem}{flag}") from error
        yield text.removeprefix("\ufeff") if number == 1 and at_start else text


def _decompressed(reader: Any) -> Any:
    start = reader.peek(10)
    raw: Any
    if _GZIP.match(start):
        raw = gzip.GzipFile(fileobj=reader)
    elif _BZIP2.match(start):
        raw = bz2.BZ2File(reader)
    elif _XZ.match(start):
        raw = lzma.LZMAFile(reader)  # noqa: SIM115  (closed with the reader)
    elif _ZSTANDARD.match(start):
        raw = _Stream(_zstandard_blocks(reader))
    else:
        return reader
    return io.BufferedReader(raw, _BLOCK)


def _zstandard_blocks(reader: io.BufferedReader) -> Iterator[bytes]:
    import zstandard  # of an extra that not every command needs

    # Not the library's own file object, which takes the end of a truncated file for the end of the text. The window is
    # the largest there is: corpora are packed with "zstd --long=31".
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
