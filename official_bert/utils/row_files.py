"""Files that hold rows with named columns.

parquet  Parquet; row groups are read apart.
arrow    a stream of Arrow's record batches, as Hugging Face's datasets write it; batches are read apart.
tfds     a file that TensorFlow Datasets prepared; each file is read whole.

Files, folders of Hugging Face's datasets, and data sets of TensorFlow Datasets by name: `expand` finds the files.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from official_bert.errors import UserError
from official_bert.utils import arrow_files, file_kinds, files, streams, tfds_files

PARQUET, ARROW, TFDS = "parquet", "arrow", "tfds"

# A part of a file: of Parquet numbers of row groups, else bytes; None stands for the end of the file.
Range = tuple[int, int | None]
WHOLE: Range = (0, None)

Rows = Iterator[tuple[str, dict[str, Any]]]


class _Kind(NamedTuple):
    # Path, columns (None for all) and range to the position of each row, such as "row 3", and its values; texts are
    # bytes.
    rows: Callable[[str, Sequence[str] | None, Range], Rows]
    # Path and number of bytes to ranges of about so many bytes that hold whole rows, of a local file.
    ranges: Callable[[str, int], list[Range]]


_KINDS = {
    PARQUET: _Kind(arrow_files.parquet_rows, arrow_files.parquet_ranges),
    ARROW: _Kind(arrow_files.arrow_rows, arrow_files.arrow_ranges),
    TFDS: _Kind(tfds_files.read_rows, lambda path, size: [WHOLE]),
}
KINDS = tuple(_KINDS)

_START = 16  # bytes by which a kind is known


def detect_kind(path: str) -> str | None:
    """Returns which of the kinds a file is; None where it is none of them, but text.

    Raises:
        UserError: the file is missing, unreadable, truncated or corrupt; or of such a kind, but compressed as a whole.
    """
    if tfds_files.is_prepared_file(path):
        return TFDS
    start, is_compressed = streams.read_start(path, _START)
    kind = None
    if start.startswith(b"PAR1"):
        kind = PARQUET
    elif start.startswith(b"\xff\xff\xff\xff"):
        kind = ARROW
    elif start.startswith(b"ARROW1\0\0"):
        raise UserError(f"{path} is of Arrow's file format (Feather); expected its stream format, or Parquet")
    elif (described := file_kinds.describe(start)) in (file_kinds.TFRECORD, file_kinds.WEB_ARCHIVE):
        raise UserError(
            f"{path} is {described}. Convert the texts in it to JSON lines, for example with "
            "examples/texts_to_json_lines.py."
        )
    if is_compressed and kind:
        raise UserError(f"{path} is a compressed {kind} file, which cannot be read in parts; decompress it")
    return kind


def find_ranges(path: str, kind: str, size: int) -> list[Range]:
    """Returns ranges of a file, of about `size` bytes each, whose rows, one after the other, are those of the file.

    A remote file is one range, and so is what cannot be cut.

    Raises:
        UserError: the file is damaged.
    """
    return [WHOLE] if files.is_remote(path) else _KINDS[kind].ranges(path, size)


def read_rows(
    path: str,
    kind: str,
    columns: Sequence[str] | None = None,
    part: Range = WHOLE,
    drop_invalid_utf8: bool = False,
) -> Rows:
    """Yields the position in the file of each row, such as "row 3", and its values by column; texts are str.

    Few rows are in memory at a time.

    Args:
        path: local or remote.
        kind: as of `detect_kind`.
        columns: those to read, which are texts or missing (None) in every row; None for all columns of any type, of
            which those of bytes that are not UTF-8 stay bytes.
        part: one of `find_ranges`.
        drop_invalid_utf8: whether what is not UTF-8 is dropped instead of being an error.

    Raises:
        UserError: the file has not these columns, a value of theirs is no text or not UTF-8, or the file is damaged.
    """
    handling = "ignore" if drop_invalid_utf8 else "strict"
    for position, row in _KINDS[kind].rows(path, columns, part):
        for name, value in row.items():
            if isinstance(value, bytes):
                try:
                    row[name] = value.decode("utf-8", handling)
                except UnicodeDecodeError as error:
                    if columns is None:  # it may be no text, and not be needed
                        continue
                    raise UserError(
                        f"{path}, {position}: byte 0x{value[error.start]:02x} in {name!r} is not UTF-8; convert it to "
                        "UTF-8, or pass --drop_invalid_utf8 to drop such bytes"
                    ) from error
        yield position, row


def expand(patterns: Sequence[str], flag: str) -> list[str]:
    """Returns the files that names stand for, in the order given, as `files.expand`, which takes all but two kinds.

    A folder that Hugging Face's `save_to_disk` wrote stands for its files, and `tfds:NAME` (or `tfds:NAME#SPLIT`; the
    part is train unless named) for those of a data set of TensorFlow Datasets.

    Raises:
        UserError: nothing was given, a pattern matches no file, the folder has several splits, or the data set cannot
            be had.
    """
    patterns = [pattern.strip() for pattern in patterns if pattern.strip()]
    if not any(map(is_data_set, patterns)):
        return files.expand(patterns, flag)
    paths: list[str] = []
    for pattern in patterns:
        if pattern.startswith(tfds_files.PREFIX):
            paths += tfds_files.list_files(pattern)
        elif is_data_set(pattern):
            paths += arrow_files.files_of_dataset(pattern)
        else:
            paths += files.expand([pattern], flag)
    return paths


def fingerprint(paths: Sequence[str]) -> dict[str, str]:
    """Returns for each file its length and a checksum of its contents, by which a later run knows it again."""
    found = {}
    for path in paths:
        checksum, size = 0, 0
        with files.explain_read_errors(path), files.open_bytes(path) as reader:
            while piece := reader.read(1 << 20):
                checksum, size = zlib.crc32(piece, checksum), size + len(piece)
        found[path] = f"{size:,} bytes, crc32 {checksum:08x}"
    return found


def check_unchanged(before: Mapping[str, str], patterns: Sequence[str], flag: str) -> None:
    """Raises a UserError if the files that a flag names are others than before, or hold something else.

    Of text that is not there any more a line is printed: what was read of it is used.
    """
    try:
        now = fingerprint(expand(patterns, flag))
    except UserError as error:
        print(f"note: {error}; what was read of it before is used", flush=True)
        return
    if changed := sorted(path for path in {**before, **now} if before.get(path) != now.get(path)):
        path = changed[0]
        raise UserError(
            f"--{flag} has changed since: {path} was {before.get(path, 'not there')}, and is "
            f"{now.get(path, 'not there')}; restore it, or give another --output_dir"
        )


def is_data_set(name: str) -> bool:
    """Whether a name stands for a data set of several files: one of TensorFlow Datasets, or Hugging Face's folder."""
    return name.startswith(tfds_files.PREFIX) or arrow_files.is_dataset(name)
