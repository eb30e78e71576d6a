"""TFRecord files, read in order and counted."""

import contextlib
import re
import struct
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from official_bert.data.dataset_options import make_dataset_options
from official_bert.errors import UserError
from official_bert.utils import file_kinds, files
from official_bert.utils.progress import Progress

_BYTES_AT_ONCE = 1 << 14

# A command that finds all its files, at their full length, does not make them again.
REPAIR_HINT = "remove it and run the command that made it again, or restore it from a copy"


def track_reading(what: str, paths: Iterable[str]) -> Callable[[int], None]:
    """Returns what takes the number of bytes of each piece that was read, and shows progress through the files.

    Threads may share it.
    """
    progress, read, lock = Progress(what, sum(map(files.size, paths)) / 1e6, "MB"), 0, threading.Lock()

    def advance(size: int) -> None:
        nonlocal read
        with lock:
            read += size
            progress.update(read / 1e6)

    return advance


def get_compression(paths: Sequence[str]) -> str:
    """Returns how all of these files are compressed, as TensorFlow names it: "GZIP", or "" for not at all.

    Raises:
        UserError: one is missing, or some are compressed and others are not.
    """
    first_of: dict[str, str] = {}  # the first file of each kind
    for path in paths:
        with files.explain_read_errors(path), files.open_bytes(path) as reader:
            # A record of 559,903 bytes would begin alike; those of BERT are far smaller.
            first_of.setdefault("GZIP" if reader.read(3) == b"\x1f\x8b\x08" else "", path)
    if len(first_of) > 1:
        raise UserError(f"{first_of['GZIP']} is compressed and {first_of['']} is not; give files of one kind")
    return next(iter(first_of), "")


def read_file(path: str) -> Iterator[bytes]:
    """Yields the records of a TFRecord file, checking their checksums.

    Raises:
        UserError: the file is missing, of another kind, cut short or damaged; of damage the message gives the
            record's number and byte offset.
    """
    import tensorflow as tf

    options = make_dataset_options()
    number, near = 0, ""
    kind = get_compression([path])
    try:
        for record in tf.data.TFRecordDataset(files.local_copy(path), kind).with_options(options).as_numpy_iterator():
            yield record
            number += 1
        return
    except tf.errors.NotFoundError as error:
        raise UserError(f"there is no file {path}") from error
    except tf.errors.DataLossError as error:
        offset = re.search(r"at (\d+)", error.message)
        if offset and not kind:
            near = f", near byte {offset.group(1)},"
    if kind:
        # TensorFlow decompresses much at once, and then has lost the good records before the damage as well.
        with tempfile.NamedTemporaryFile() as plain, contextlib.suppress(tf.errors.DataLossError):
            for piece in _decompressed(path):
                plain.write(piece)
            plain.flush()
            rest = tf.data.TFRecordDataset(plain.name).skip(number)
            for record in rest.with_options(options).as_numpy_iterator():
                yield record
                number += 1
    if not number:
        check_is_tfrecord(path)
    raise UserError(f"{path}: record {number} (from 0){near} is damaged; {REPAIR_HINT}")


def check_is_tfrecord(path: str) -> None:
    """Raises a UserError if a file, by its first bytes, is no TFRecord file at all, whole or damaged."""
    with files.explain_read_errors(path), files.open_bytes(path) as reader:
        start = next(_decompressed(path), b"") if get_compression([path]) else reader.read(file_kinds.START)
    kind = file_kinds.describe(start)
    if kind != file_kinds.TFRECORD and (kind or b"\0" not in start):
        raise UserError(
            f"{path} is {kind or 'text'}, not a TFRecord file; official-bert make-records makes TFRecord files from "
            "text"
        )


def _decompressed(path: str) -> Iterator[bytes]:
    """Yields what a gzip file holds, up to where it is damaged or ends."""
    reading = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    with files.open_bytes(path) as reader:
        while piece := reader.read(_BYTES_AT_ONCE):
            before = reading.copy()
            try:
                yield reading.decompress(piece)
                continue
            except zlib.error:
                pass  # what there is before the damage, byte by byte
            with contextlib.suppress(zlib.error):
                for byte in piece:
                    yield before.decompress(bytes([byte]))
            return


def count_records(path: str) -> int:
    """Returns the number of records in a TFRecord file; unless it is compressed, only the lengths are read.

    Raises:
        UserError: the file ends within a record.
    """
    if get_compression([path]):
        return sum(1 for _ in read_file(path))
    total, offset, end = 0, 0, files.size(path)
    with files.open_bytes(path) as reader:
        while offset < end:
            reader.seek(offset)
            header = reader.read(8)
            # A frame: length (8 bytes), its checksum (4), the record, its checksum (4).
            length = struct.unpack("<Q", header)[0] if len(header) == 8 else end
            offset += 8 + 4 + length + 4
            if offset > end:
                check_is_tfrecord(path)
                raise UserError(f"{path} ends within record {total} (from 0); {REPAIR_HINT}")
            total += 1
    return total
