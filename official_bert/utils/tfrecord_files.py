"""TFRecord files of tf.train.Examples of any features, read without TensorFlow.

A record is its length (8 bytes), that one's checksum (4), the Example, its checksum (4). An Example is a protocol
buffer: a map of names to lists of bytes, floats or integers.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from official_bert.errors import UserError
from official_bert.utils import streams

_HEADER, _FOOTER = 12, 4
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5  # kinds of values in a protocol buffer
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3  # numbers of the fields of a tf.train.Feature


def begins_record(start: bytes) -> bool:
    """Whether a file that starts so is one of records."""
    # No record has 4 GB, so that of text no checksum is made.
    return len(start) >= _HEADER and start[4:8] == bytes(4) and _checksum(start[:8]) == start[8:_HEADER]


def ranges(path: str, size: int) -> list[tuple[int, int | None]]:
    """Returns ranges of bytes that hold whole records, of about `size` bytes each; one where the file is compressed."""
    if streams.read_start(path, _HEADER)[1]:
        return [(0, None)]
    starts, offset, length = [0], 0, os.path.getsize(path)
    with open(path, "rb") as reader:
        while offset < length:
            if offset >= starts[-1] + size:
                starts.append(offset)
            reader.seek(offset)
            header = reader.read(8)
            offset += _HEADER + int.from_bytes(header, "little") + _FOOTER
    return list(zip(starts, [*starts[1:], None], strict=True))


def rows(
    path: str, columns: Sequence[str] | None, part: tuple[int, int | None]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """As row_files.read_rows, with texts as bytes; a list of one value is that value."""
    number, (start, end) = 0, part
    with streams.errors_explained(path, "record", lambda: number), streams.opened(path) as reader:
        if start:
            reader.seek(start)
        left = None if end is None else end - start
        while left != 0 and (header := reader.read(_HEADER)):
            position = f"record {number + 1}"
            if not begins_record(header):
                raise UserError(f"{path}, {position}: the length of the record is damaged, or the file ends there")
            length = int.from_bytes(header[:8], "little")
            record = reader.read(length)
            if len(record) < length or reader.read(_FOOTER) != _checksum(record):
                raise UserError(f"{path}, {position}: the record is damaged, or the file ends within it")
            try:
                row = parse_example(record)
            except (ValueError, IndexError, struct.error) as error:
                raise UserError(f"{path}, {position}: no tf.train.Example: {error}") from error
            yield position, row if columns is None else _chosen(path, position, row, columns)
            number += 1
            left = None if left is None else left - _HEADER - length - _FOOTER


def _chosen(path: str, position: str, row: dict[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    for name in columns:
        if name not in row:
            raise UserError(
                f"{path}, {position}: the Example has no feature {name!r}; it has {', '.join(map(repr, row)) or 'none'}"
            )
        if not isinstance(row[name], bytes):
            raise UserError(f"{path}, {position}: the feature {name!r} is not one text, but {str(row[name])[:60]}")
    return {name: row[name] for name in columns}


def parse_example(record: bytes) -> dict[str, Any]:
    """Returns the values of a tf.train.Example by name; a list of one value is that value.

    Raises:
        ValueError: it is none.
        IndexError: it ends too early.
    """
    values = {}
    for _, features in _fields(record):
        for _, entry in _fields(features):
            parts = dict(_fields(entry))
            (kind, content), *others = _fields(parts[2]) if parts.get(2) else [(_BYTES_LIST, b"")]
            if others or kind not in (_BYTES_LIST, _FLOAT_LIST, _INT64_LIST):
                raise ValueError("a feature is not one list of bytes, floats or integers")
            of_feature = _list(kind, content)
            values[bytes(parts[1]).decode()] = of_feature[0] if len(of_feature) == 1 else of_feature
    return values


def _list(kind: int, content: bytes) -> list[Any]:
    """Returns the values of a list; numbers are packed into one field, or have a field each."""
    values: list[Any] = []
    for _, value in _fields(content):
        if kind == _BYTES_LIST:
            values.append(bytes(value))
        elif kind == _FLOAT_LIST:
            values += np.frombuffer(value, "<f4").tolist()
        elif isinstance(value, int):
            values.append(value)
        else:
            position = 0
            while position < len(value):
                number, position = _varint(value, position)
                values.append(number - (number >> 63 << 64))  # two's complement
    return values


def _fields(message: Any) -> Iterator[tuple[int, Any]]:
    """Yields number and value of the fields of a protocol buffer."""
    if isinstance(message, int):
        raise ValueError("a number where a message was expected")
    position = 0
    view = memoryview(message)
    while position < len(view):
        key, position = _varint(view, position)
        kind = key & 7
        if kind == _VARINT:
            value: Any
            value, position = _varint(view, position)
        elif kind in (_BYTES, _EIGHT_BYTES, _FOUR_BYTES):
            length = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(kind)
            if length is None:
                length, position = _varint(view, position)
            if position + length > len(view):
                raise ValueError("a field is longer than the record")
            value, position = view[position : position + length], position + length
        else:
            raise ValueError(f"a field of kind {kind}")
        yield key >> 3, value


def _varint(view: Any, position: int) -> tuple[int, int]:
    """Returns a number of seven bits a byte, and the position behind it."""
    number = shift = 0
    while True:
        byte = view[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _checksum(data: bytes) -> bytes:
    """Returns CRC-32C, rotated by 15 bits and shifted, as the format has it."""
    import google_crc32c  # of an extra that not every command needs

    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
