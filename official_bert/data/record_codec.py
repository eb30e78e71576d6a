"""Encodes records as serialized tf.train.Examples and parses them.

Encoding needs only NumPy. Only `parse` imports TensorFlow, so that processes that only write records start quickly.
"""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from official_bert.data.record_schema import INT64, Schema

if TYPE_CHECKING:
    import tensorflow as tf


def encode(values: Mapping[str, np.ndarray], schema: Schema) -> list[bytes]:
    """Encodes a batch of records as serialized tf.train.Examples.

    Args:
        values: Features by name, each [B, *shape].
        schema: Shape and type of each feature.

    Raises:
        ValueError: If the shape of a feature differs from the schema.
    """
    columns: list[list[bytes]] = []  # Each holds one piece of every record.
    same_size: list[np.ndarray] = []  # Pending fields that have the same size in all records, each [B, bytes].
    for name, feature in schema.items():
        array = np.asarray(values[name])
        if array.shape[1:] != feature.shape:
            raise ValueError(f"{name} has shape {array.shape[1:]}; the schema says {feature.shape}")
        flat = array.reshape(len(array), -1)
        packed = _encode_integers(flat) if feature.dtype == INT64 else np.ascontiguousarray(flat, "<f4").view(np.uint8)
        if isinstance(packed, np.ndarray):
            start = np.frombuffer(_encode_field_start(name, feature.dtype, packed.shape[1]), np.uint8)
            same_size += [np.broadcast_to(start, (len(array), len(start))), packed]
            continue
        if same_size:
            columns.append(_split_rows(np.concatenate(same_size, axis=1)))
            same_size = []
        columns.append([_encode_field_start(name, feature.dtype, len(data)) + data for data in packed])
    if same_size:
        columns.append(_split_rows(np.concatenate(same_size, axis=1)))
    return [_encode_tag(1, len(body)) + body for body in map(b"".join, zip(*columns, strict=True))]


def _split_rows(array: np.ndarray) -> list[bytes]:
    count, width = array.shape
    data = array.tobytes()
    return [data[row * width : (row + 1) * width] for row in range(count)]


def _encode_integers(values: np.ndarray) -> np.ndarray | list[bytes]:
    """Encodes each row of numbers as varints, the format of integers in protocol buffers.

    A varint has seven bits per byte, lowest first, and the eighth bit of a byte tells that more bytes follow.

    Args:
        values: Integers [B, numbers].

    Returns:
        The bytes of each row: a list, or an array [B, numbers] if every number needs only one byte.
    """
    if values.dtype.kind != "u":
        values = values.astype(np.int64).view(np.uint64)
    largest = int(values.max(initial=0))
    if largest < 1 << 7:
        return values.astype(np.uint8)
    if largest < 1 << 16:
        # A table, because encoding takes more time here than anywhere else.
        table, presence = _make_varint_table()
        bits, present = table.take(values).view(np.uint8), presence.take(values).view(bool)
        present = present.reshape(len(values), -1)
        lengths = present.sum(axis=1)
        data = bits.reshape(present.shape)[present].tobytes()
    else:
        all_bits, all_present = _encode_varints(values, -(-largest.bit_length() // 7))
        lengths = all_present.sum(axis=(1, 2))
        data = all_bits[all_present].tobytes()
    ends = np.cumsum(lengths).tolist()
    return [data[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _encode_varints(values: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Encodes numbers as varints of at most `groups` bytes.

    Returns:
        `groups` bytes for each number, and which of these bytes belong to its varint, each [..., groups].
    """
    bits = np.empty((*values.shape, groups), np.uint8)
    present = np.empty((*values.shape, groups), bool)
    for group in range(groups):
        rest = values >> np.uint64(7 * group)
        present[..., group] = (rest > 0) | (group == 0)
        bits[..., group] = (rest & np.uint64(0x7F)) | ((rest > 0x7F) * np.uint64(0x80))
    return bits, present


@functools.cache
def _make_varint_table() -> tuple[np.ndarray, np.ndarray]:
    """Returns the results of `_encode_varints` for all numbers below 65,536. The four bytes of each are one integer."""
    bits, present = _encode_varints(np.arange(1 << 16, dtype=np.uint64), 4)
    return bits.view("<u4")[:, 0], present.view("<u4")[:, 0]


@functools.cache
def _encode_field_start(name: str, dtype: str, length: int) -> bytes:
    """Returns the bytes that precede the values of a feature: the tags and lengths of nested messages, and its name.

    Args:
        name: Name of the feature.
        dtype: INT64 or FLOAT.
        length: Number of bytes of the encoded values.
    """
    # Features.feature is a map: each entry holds the name (1) and a Feature (2); that holds a FloatList (2) or an
    # Int64List (3), and the list its packed values (1).
    values = _encode_tag(1, length)
    kind = _encode_tag(3 if dtype == INT64 else 2, len(values) + length)
    key = _encode_tag(1, len(name.encode())) + name.encode()
    value = _encode_tag(2, len(kind) + len(values) + length)
    return _encode_tag(1, len(key) + len(value) + len(kind) + len(values) + length) + key + value + kind + values


@functools.cache
def _encode_tag(number: int, length: int) -> bytes:
    """Returns the bytes that precede a length-delimited field of a protocol buffer: tag and length."""
    tag = bytes([number << 3 | 2])
    while length > 0x7F:
        tag += bytes([length & 0x7F | 0x80])
        length >>= 7
    return tag + bytes([length])


def parse(serialized: "tf.Tensor", schema: Schema) -> dict[str, "tf.Tensor"]:
    """Parses a batch of serialized records. Returns features by name, each [B, *shape].

    Integers are int32, because TPUs have no int64.
    """
    import tensorflow as tf

    spec = {name: tf.io.FixedLenFeature(feature.shape, feature.dtype) for name, feature in schema.items()}
    parsed = tf.io.parse_example(serialized, spec)
    are_in_range = [
        tf.reduce_all((parsed[name] >= 0) & (parsed[name] < feature.limit))
        for name, feature in schema.items()
        if feature.limit is not None
    ]
    if are_in_range:
        # GPUs and TPUs do not report an id that is out of range; they read some other row.
        tf.debugging.Assert(tf.reduce_all(are_in_range), ["a record contains an integer out of range"])
    return {name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value for name, value in parsed.items()}


def restore_masked_ids(batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the ids of a batch of records before masking, [B, S]. Records for dynamic masking have no masks."""
    ids = batch["input_ids"].copy()
    if "masked_lm_positions" in batch:
        record, prediction = np.nonzero(batch["masked_lm_weights"])
        ids[record, batch["masked_lm_positions"][record, prediction]] = batch["masked_lm_ids"][record, prediction]
    return ids
