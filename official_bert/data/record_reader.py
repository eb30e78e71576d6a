"""Reads and counts the records of TFRecord files."""

import gzip
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence

from official_bert.data.dataset_options import make_dataset_options
from official_bert.errors import UserError
from official_bert.utils import file_kinds, files
from official_bert.utils.progress import Progress

# A command does not make a file again if all its files exist with their full length.
REPAIR_HINT = "remove it and rerun the command that made it, or restore it from a copy"
# Bytes around a record in a file: its length (8), the checksum of the length (4), and after the record its own (4).
_FRAME = 8 + 4 + 4


def track_reading(description: str, paths: Iterable[str]) -> Callable[[int], None]:
    """Returns a function that prints progress lines about reading files.

    Call it with the number of bytes of each piece that was read. It is thread-safe.

    Args:
        description: Description of the work. Each progress line starts with it.
        paths: The files that will be read.
    """
    progress = Progress(description, sum(map(files.size, paths)) / 1e6, "MB")
    return lambda size: progress.advance(size / 1e6)


def get_compression(paths: Sequence[str]) -> str:
    """Returns the compression of files as TensorFlow names it: "GZIP", or "" for none.

    Raises:
        UserError: If a file is missing, or only some of the files are compressed.
    """
    first_files: dict[str, str] = {}  # Compression to the first file that has it.
    for path in paths:
        with files.explain_read_errors(path), files.open_bytes(path) as reader:
            # A plain file could start with these bytes only if its first record had 559,903 bytes.
            first_files.setdefault("GZIP" if reader.read(3) == b"\x1f\x8b\x08" else "", path)
    if len(first_files) > 1:
        raise UserError(
            f"{first_files['GZIP']} is compressed but {first_files['']} is not; compress all of the files, or none"
        )
    return next(iter(first_files), "")


def read_file(path: str) -> Iterator[bytes]:
    """Yields the records of a TFRecord file and verifies their checksums.

    Raises:
        UserError: If the file is missing, truncated, corrupted, or not a TFRecord file. The message gives the index
            and byte offset of a corrupted record.
    """
    import tensorflow as tf

    options = make_dataset_options()
    number, end, near = 0, 0, ""
    kind = get_compression([path])
    try:
        for record in tf.data.TFRecordDataset(files.local_copy(path), kind).with_options(options).as_numpy_iterator():
            yield record
            number += 1
            end += _FRAME + len(record)
        if kind or end == files.size(path):  # TensorFlow ignores up to 11 bytes after the last record
            return
    except tf.errors.NotFoundError as error:
        raise UserError(f"{path} does not exist") from error
    except tf.errors.DataLossError as error:
        if kind:  # TensorFlow decompresses large blocks and also loses the intact records of the block.
            near = " or one after it"
        elif offset := re.search(r"at (\d+)", error.message):
            near = f", near byte {offset.group(1)},"
    if not number:
        check_is_tfrecord(path)
    raise UserError(f"{path}: record {number} (from 0){near} is corrupted; {REPAIR_HINT}")


def check_is_tfrecord(path: str) -> None:
    """Raises a UserError if the first bytes of a file show that it is not a TFRecord file, not even a damaged one."""
    with files.explain_read_errors(path), files.open_bytes(path) as reader:
        content = gzip.GzipFile(fileobj=reader) if get_compression([path]) else reader
        start = content.read(file_kinds.START)
    kind = file_kinds.describe(start)
    if kind != file_kinds.TFRECORD and (kind or b"\0" not in start):
        raise UserError(
            f"{path} is {kind or 'text'}, not a TFRecord file; official-bert make-records makes TFRecord files from "
            "text"
        )


def count_records(path: str) -> int:
    """Returns the number of records in a TFRecord file. In an uncompressed file, only the records' lengths are read.

    Raises:
        UserError: If the file ends within a record.
    """
    if get_compression([path]):
        return sum(1 for _ in read_file(path))
    total, offset, end = 0, 0, files.size(path)
    with files.open_bytes(path) as reader:
        while offset < end:
            reader.seek(offset)
            header = reader.read(8)
            length = struct.unpack("<Q", header)[0] if len(header) == 8 else end
            offset += _FRAME + length
            if offset > end:
                check_is_tfrecord(path)
                raise UserError(f"{path} ends within record {total} (from 0); {REPAIR_HINT}")
            total += 1
    return total
