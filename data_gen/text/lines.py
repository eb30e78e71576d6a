"""The lines of text files, of any compression, near and far; and whether such files change."""

import os
import sys
from collections.abc import Iterable, Iterator

from official_bert.errors import UserError
from official_bert.utils import files, streams


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
    with streams.errors_explained(path, "line", lambda: number), streams.opened(path) as reader:
        if start:
            reader.seek(start)
        left = sys.maxsize if end is None else end - start
        while left > 0 and (line := reader.readline()):
            left -= len(line)
            yield line
            number += 1


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
