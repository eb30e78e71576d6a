"""Reads and writes the warm-up requests of TensorFlow Serving: a TFRecord file of PredictionLog messages.

The messages are encoded and decoded here, because the package that defines them (tensorflow-serving-api) is not a
dependency. The tests compare them with bytes that tensorflow-serving-api wrote.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework import tensor_pb2

from official_bert.data.dataset_options import dataset_options
from official_bert.errors import UserError
from official_bert.kinds.names import DEFAULT_SIGNATURE
from official_bert.tokenization.exact import MASK
from official_bert.utils import files

# Field numbers of tensorflow_serving/apis: prediction_log.proto, predict.proto, model.proto.
_PREDICT_LOG, _REQUEST, _MODEL_SPEC, _INPUTS, _SIGNATURE_NAME = 6, 1, 1, 2, 3
_MAP_KEY, _MAP_VALUE = 1, 2
# Wire types, and the number of bytes of fixed-length types. The reader skips all except _LENGTH_DELIMITED.
_VARINT, _LENGTH_DELIMITED = 0, 2
_FIXED_LENGTHS = {1: 8, 5: 4}

# A short and a long text, because the first text of a new length is slow.
EXAMPLES = (f"the {MASK} is here .", f"there are many words in this one, and it has a {MASK} too . " * 8)


def warmup_requests(inputs: Mapping[str, Any]) -> bytes:
    """Returns the content of the file: one request to serving_default, with inputs [B, ...], for each example."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "requests")
        with tf.io.TFRecordWriter(path) as writer:
            for text in EXAMPLES:
                values = {name: tf.fill([1, *spec.shape[1:]], text) for name, spec in inputs.items()}
                writer.write(_field(_PREDICT_LOG, _field(_REQUEST, predict_request(DEFAULT_SIGNATURE, values))))
        return files.read_bytes(path)


def predict_request(signature: str, inputs: Mapping[str, Any]) -> bytes:
    """Returns a serialized PredictRequest that sends tensors by name to a signature."""
    message = _field(_MODEL_SPEC, _field(_SIGNATURE_NAME, signature.encode()))
    for name, value in inputs.items():
        tensor = tf.make_tensor_proto(value).SerializeToString()
        message += _field(_INPUTS, _field(_MAP_KEY, name.encode()) + _field(_MAP_VALUE, tensor))
    return message


def _field(number: int, content: bytes) -> bytes:
    """Returns a length-delimited protocol buffer field: key, length, content."""
    return bytes([number << 3 | _LENGTH_DELIMITED]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


def read_requests(path: str) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yields the signature and the inputs of each PredictRequest in a warm-up file. Other logs are skipped.

    Raises:
        UserError: If the file is truncated or damaged.
    """
    try:
        records = tf.data.TFRecordDataset(files.local_copy(path)).with_options(dataset_options())
        for record in records.as_numpy_iterator():
            for log in _fields(record, _PREDICT_LOG):
                for request in _fields(log, _REQUEST):
                    yield _read_request(request)
    except (tf.errors.OpError, DecodeError, ValueError) as error:
        raise UserError(f"{path} cannot be read as warm-up requests: {error}") from error


def _read_request(request: bytes) -> tuple[str, dict[str, np.ndarray]]:
    names = [name.decode() for spec in _fields(request, _MODEL_SPEC) for name in _fields(spec, _SIGNATURE_NAME)]
    inputs = {}
    for entry in _fields(request, _INPUTS):
        key, value = b"".join(_fields(entry, _MAP_KEY)), b"".join(_fields(entry, _MAP_VALUE))
        inputs[key.decode()] = tf.make_ndarray(tensor_pb2.TensorProto.FromString(value))
    return names[-1] if names and names[-1] else DEFAULT_SIGNATURE, inputs


def _fields(message: bytes, wanted: int) -> list[bytes]:
    """Returns the contents of all length-delimited fields with the number `wanted`."""
    contents, position = [], 0
    while position < len(message):
        key, position = _read_varint(message, position)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            _, position = _read_varint(message, position)
            continue
        if kind == _LENGTH_DELIMITED:
            length, position = _read_varint(message, position)
        elif kind in _FIXED_LENGTHS:
            length = _FIXED_LENGTHS[kind]
        else:
            raise ValueError(f"field {number} has the unknown wire type {kind}")
        if position + length > len(message):
            raise ValueError(f"field {number} is truncated")
        if kind == _LENGTH_DELIMITED and number == wanted:
            contents.append(message[position : position + length])
        position += length
    return contents


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    """Returns the number that starts at a position, and the position after it."""
    number = shift = 0
    while position < len(message):
        byte = message[position]
        number, shift, position = number | (byte & 0x7F) << shift, shift + 7, position + 1
        if byte < 0x80:
            return number, position
    raise ValueError("a number is truncated")
