"""Files of rows with named columns, and datasets that consist of these files.

The kinds of files are:

parquet  Parquet. Row groups can be read separately.
arrow    A stream of Arrow record batches, as Hugging Face's datasets writes it. Batches can be read separately.
tfds     A file that TensorFlow Datasets prepared. It can only be read as a whole.

`expand` finds the files of Hugging Face's dataset folders, and of TensorFlow Datasets' datasets by name.
"""

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.utils import arrow_files, file_kinds, files, streams, tfds_files

PARQUET, ARROW, TFDS = KINDS = ("parquet", "arrow", "tfds")

# A part of a file: numbers of row groups (Parquet) or of record batches (Arrow). None means the end of the file.
Range = tuple[int, int | None]
WHOLE: Range = (0, None)

Rows = Iterator[tuple[str, dict[str, Any]]]

# Functions of a path, columns (None means all) and a range. They yield positions, such as "row 3", and values by
# column, with texts as bytes.
_READERS = {PARQUET: arrow_files.parquet_rows, ARROW: arrow_files.arrow_rows, TFDS: tfds_files.read_rows}

_MAGIC_BYTES = 16  # enough to recognize each kind


def detect_kind(path: str) -> str | None:
    """Returns "parquet", "arrow" or "tfds", or None if the file is something else, such as text.

    Raises:
        UserError: If the file is missing, unreadable or corrupt, or is a compressed Parquet or Arrow file.
    """
    if tfds_files.is_prepared_file(path):
        return TFDS
    start, is_compressed = streams.read_start(path, _MAGIC_BYTES)
    kind = None
    if start.startswith(b"PAR1"):
        kind = PARQUET
    elif start.startswith(b"\xff\xff\xff\xff"):
        kind = ARROW
    elif start.startswith(b"ARROW1\0\0"):
        raise UserError(f"{path} is in Arrow's file format (Feather); expected Arrow's stream format, or Parquet")
    elif (described := file_kinds.describe(start)) in (file_kinds.TFRECORD, file_kinds.WEB_ARCHIVE):
        raise UserError(
            f"{path} is {described}. Convert the texts in it to JSON lines, for example with "
            "examples/texts_to_json_lines.py."
        )
    if is_compressed and kind:
        raise UserError(f"{path} is a compressed {kind} file, which cannot be read in parts; decompress it")
    return kind


def find_ranges(path: str, kind: str, size: int) -> list[Range]:
    """Splits a file into ranges of about `size` bytes each, which together cover all rows in order.

    The ranges are for `read_rows`. A file that cannot be split, such as a remote one, is a single range.

    Raises:
        UserError: If the file is corrupt.
    """
    if files.is_remote(path) or kind == TFDS:
        return [WHOLE]
    return arrow_files.parquet_ranges(path, size) if kind == PARQUET else arrow_files.arrow_ranges(path, size)


def read_rows(
    path: str,
    kind: str,
    columns: Sequence[str] | None = None,
    part: Range = WHOLE,
    drop_invalid_utf8: bool = False,
    counts: collections.Counter[str] | None = None,
) -> Rows:
    """Yields each row of a file: its position, such as "row 3", and its values by column.

    Only a few rows are in memory at a time.

    Args:
        path: A local or remote file.
        kind: The result of `detect_kind`.
        columns: The columns to read. They must contain text or null. None reads all columns, of any type; text values
            that are not valid UTF-8 then stay bytes.
        part: One of the ranges from `find_ranges`.
        drop_invalid_utf8: Whether to drop bytes that are not valid UTF-8 instead of raising an error.
        counts: See `streams.drop_invalid_bytes`.

    Raises:
        UserError: If a column is missing or its values are not UTF-8 text, or the file is corrupt.
    """
    counts = collections.Counter() if counts is None else counts
    for position, row in _READERS[kind](path, columns, part):
        for name, value in row.items():
            if isinstance(value, bytes):
                try:
                    row[name] = streams.drop_invalid_bytes(value, counts) if drop_invalid_utf8 else value.decode()
                except UnicodeDecodeError as error:
                    if columns is None:  # the column may be binary, and unused
                        continue
                    raise UserError(
                        f"{path}, {position}: byte 0x{value[error.start]:02x} in {name!r} is not UTF-8; convert it to "
                        "UTF-8, or pass --drop_invalid_utf8 to drop such bytes"
                    ) from error
        yield position, row


def expand(patterns: Sequence[str], flag: str) -> list[str]:
    """Returns the files of names and glob patterns, in the given order. Extends `files.expand` by datasets.

    A folder written by Hugging Face's `save_to_disk` is replaced by its files. `tfds:NAME` or `tfds:NAME#SPLIT` (train
    by default) is replaced by the files of this dataset of TensorFlow Datasets.

    Args:
        patterns: File names, glob patterns and datasets.
        flag: The flag that contains them, without dashes, for error messages.

    Raises:
        UserError: If nothing matches, a folder has several splits, or the data set cannot be loaded.
    """
    patterns = [pattern.strip() for pattern in patterns if pattern.strip()]
    if not any(map(is_data_set, patterns)):
        return files.expand(patterns, flag)
    paths: list[str] = []
    for pattern in patterns:
        if pattern.startswith(tfds_files.PREFIX):
            paths += tfds_files.list_files(pattern)
        elif is_data_set(pattern):
            paths += arrow_files.list_files(pattern)
        else:
            paths += files.expand([pattern], flag)
    return paths


def is_data_set(name: str) -> bool:
    """Returns whether a name is a dataset: `tfds:NAME`, or a folder that Hugging Face's `save_to_disk` wrote."""
    return name.startswith(tfds_files.PREFIX) or arrow_files.is_dataset(name)


def fingerprint(paths: Sequence[str]) -> dict[str, str]:
    """Returns a text with the size and a checksum of each file, by path. A resumed run compares them."""
    return {path: f"{files.size(path):,} bytes, sha256 {files.sha256(path)}" for path in paths}


def check_unchanged(before: Mapping[str, str], patterns: Sequence[str], flag: str) -> None:
    """Raises a UserError if the input files of a run have changed since it was started.

    If they no longer exist, only a note is printed, because the run has already read them.

    Args:
        before: The result of `fingerprint` at the start of the run.
        patterns: The file names, glob patterns and datasets of the flag.
        flag: The flag, without dashes, for error messages.
    """
    try:
        now = fingerprint(expand(patterns, flag))
    except UserError as error:
        print(f"note: {error}; the data that was read before is used", flush=True)
        return
    if changed := sorted(path for path in {**before, **now} if before.get(path) != now.get(path)):
        path = changed[0]
        raise UserError(
            f"--{flag} has changed since: {path} was {before.get(path, 'not there')}, and is "
            f"{now.get(path, 'not there')}. Restore it, or pass another --output_dir."
        )
