"""Records as bytes: serialized tf.train.Examples, written and read.

Writing needs NumPy alone. TensorFlow is imported where records are parsed: processes that only write do without it.
"""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from official_bert.data.record_schema import INT64, Schema

if TYPE_CHECKING:
    import tensorflow as tf


def encode(values: Mapping[str, np.ndarray], schema: Schema) -> list[bytes]:
    """Returns a batch of records as serialized tf.train.Examples.

    Args:
        values: feature by name, [B, *shape].
        schema: which features, and their types.

    Raises:
        ValueError: a feature has another shape than the schema says.
    """
    columns: list[list[bytes]] = []  # pieces of the records, by record
    alike: list[np.ndarray] = []  # the fields since, of as many bytes in all records, [B, bytes] each
    for name, feature in schema.items():
        array = np.asarray(values[name])
        if array.shape[1:] != feature.shape:
            raise ValueError(f"{name} has shape {array.shape[1:]}; the schema says {feature.shape}")
        flat = array.reshape(len(array), -1)
        packed = _packed_integers(flat) if feature.dtype == INT64 else np.ascontiguousarray(flat, "<f4").view(np.uint8)
        if isinstance(packed, np.ndarray):
            start = np.frombuffer(_field_start(name, feature.dtype, packed.shape[1]), np.uint8)
            alike += [np.broadcast_to(start, (len(array), len(start))), packed]
            continue
        if alike:
            columns.append(_rows(np.concatenate(alike, axis=1)))
            alike = []
        columns.append([_field_start(name, feature.dtype, len(data)) + data for data in packed])
    if alike:
        columns.append(_rows(np.concatenate(alike, axis=1)))
    return [_tagged(1, len(body)) + body for body in map(b"".join, zip(*columns, strict=True))]


def _rows(array: np.ndarray) -> list[bytes]:
    count, width = array.shape
    data = array.tobytes()
    return [data[row * width : (row + 1) * width] for row in range(count)]


def _packed_integers(values: np.ndarray) -> np.ndarray | list[bytes]:
    """Each row of [B, numbers] as varints: seven bits a byte, the lowest first, the eighth bit set on all but the last.

    Rows of numbers that take a byte each are an array, [B, bytes].
    """
    if values.dtype.kind != "u":
        values = values.astype(np.int64).view(np.uint64)
    largest = int(values.max(initial=0))
    if largest < 1 << 7:
        return values.astype(np.uint8)
    if largest < 1 << 16:
        # By table: this is the most frequent work of all.
        table, presence = _varints_below_65536()
        bits, present = table.take(values).view(np.uint8), presence.take(values).view(bool)
        present = present.reshape(len(values), -1)
        lengths = present.sum(axis=1)
        data = bits.reshape(present.shape)[present].tobytes()
    else:
        all_bits, all_present = _varints(values, -(-largest.bit_length() // 7))
        lengths = all_present.sum(axis=(1, 2))
        data = all_bits[all_present].tobytes()
    ends = np.cumsum(lengths).tolist()
    return [data[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _varints(values: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bytes of varints, of as many bytes as the largest has, and which of them there are: [..., groups]."""
    bits = np.empty((*values.shape, groups), np.uint8)
    present = np.empty((*values.shape, groups), bool)
    for group in range(groups):
        rest = values >> np.uint64(7 * group)
        present[..., group] = (rest > 0) | (group == 0)
        bits[..., group] = (rest & np.uint64(0x7F)) | ((rest > 0x7F) * np.uint64(0x80))
    return bits, present


@functools.cache
def _varints_below_65536() -> tuple[np.ndarray, np.ndarray]:
    """`_varints` of these numbers, each one's four bytes (at most three are used) as one number."""
    bits, present = _varints(np.arange(1 << 16, dtype=np.uint64), 4)
    return bits.view("<u4")[:, 0], present.view("<u4")[:, 0]


@functools.cache
def _field_start(name: str, dtype: str, length: int) -> bytes:
    """What stands before the numbers of a feature: the nested messages' tags and lengths, and its name."""
    # Features.feature is a map: each entry holds the name (1) and a Feature (2); that holds a FloatList (2) or an
    # Int64List (3), and the list its packed values (1).
    values = _tagged(1, length)
    kind = _tagged(3 if dtype == INT64 else 2, len(values) + length)
    key = _tagged(1, len(name.encode())) + name.encode()
    value = _tagged(2, len(kind) + len(values) + length)
    return _tagged(1, len(key) + len(value) + len(kind) + len(values) + length) + key + value + kind + values


@functools.cache
def _tagged(number: int, length: int) -> bytes:
    """The start of a length-delimited field of a protocol buffer."""
    tag = bytes([number << 3 | 2])
    while length > 0x7F:
        tag += bytes([length & 0x7F | 0x80])
        length >>= 7
    return tag + bytes([length])


def parse(serialized: "tf.Tensor", schema: Schema) -> dict[str, "tf.Tensor"]:
    """Returns the features of a batch of serialized records, [B, *shape], integers as int32: TPUs have no int64."""
    import tensorflow as tf

    spec = {name: tf.io.FixedLenFeature(feature.shape, feature.dtype) for name, feature in schema.items()}
    parsed = tf.io.parse_example(serialized, spec)
    for name, feature in schema.items():
        if feature.limit is not None:
            # Here, since a GPU or TPU would read another row, silently, for an id that is out of range.
            tf.debugging.assert_non_negative(parsed[name], name)
            tf.debugging.assert_less(parsed[name], tf.constant(feature.limit, tf.int64), name)
    return {name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value for name, value in parsed.items()}
