"""Writes TFRecord files without TensorFlow."""

import contextlib
import functools
import itertools
import struct
from collections.abc import Iterator, Sequence
from gzip import GzipFile
from typing import Any

import google_crc32c
import numpy as np

from data_gen.pipelines import shuffle
from data_gen.rules.vectorized_instances import Instances
from official_bert.data import record_codec, record_schema
from official_bert.utils import files
from official_bert.utils.progress import Progress

_RECORDS_AT_ONCE = 1000


def frame_records(records: Sequence[bytes]) -> bytes:
    """Concatenates serialized records in the TFRecord format: length, checksum of the length, content, its checksum.

    The checksums are masked CRC-32C: rotated by 15 bits, plus a constant.
    """
    crc = np.fromiter(map(google_crc32c.value, records), np.uint32, len(records))
    checksums = ((crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(0xA282EAD8)).astype("<u4").tobytes()
    lengths = map(_frame_length, map(len, records))
    ends = [checksums[start : start + 4] for start in range(0, len(checksums), 4)]
    return b"".join(itertools.chain.from_iterable(zip(lengths, records, ends, strict=True)))


@functools.lru_cache(10_000)
def _frame_length(length: int) -> bytes:
    packed = struct.pack("<Q", length)
    crc = google_crc32c.value(packed)
    return packed + struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@contextlib.contextmanager
def open_shard(path: str, gzip: bool) -> Iterator[Any]:
    """Yields a writer of bytes to a file, compressed or not."""
    with open(path, "wb") as raw:
        # The header contains no name and no time, so that equal records give equal bytes.
        zipped = GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) if gzip else None
        with zipped or contextlib.nullcontext(raw) as writer:
            yield writer


def write(instances: Instances, paths: list[str]) -> None:
    """Writes instances to record files, one instance to each file in turn. All files appear when all are complete.

    Raises:
        UserError: If a file cannot be written.
    """
    schema = record_schema.pretraining_schema(instances.ids.shape[1], instances.labels.shape[1])
    count = len(instances.length)
    progress = Progress("writing", count, "instances")
    with contextlib.ExitStack() as stack:
        temporary = [stack.enter_context(files.write_atomically(path)) for path in paths]
        writers = [stack.enter_context(open(path, "wb")) for path in temporary]
        for start in range(0, count, _RECORDS_AT_ONCE):
            rows = shuffle.select_rows(instances, slice(start, start + _RECORDS_AT_ONCE))
            records = record_codec.encode(shuffle.make_features(rows), schema)
            for number, writer in enumerate(writers):
                writer.write(frame_records(records[(number - start) % len(writers) :: len(writers)]))
            progress.advance(len(records))
