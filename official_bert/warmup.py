"""The requests by which TensorFlow Serving warms up a model: a TFRecord file of PredictionLog messages.

The messages are put together here field by field, since the package with their definitions (tensorflow-serving-api) is
for clients; the tests read them with it.
"""

import os
import tempfile
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from official_bert import files
from official_bert.tokenization import MASK

# Field numbers of tensorflow_serving/apis: prediction_log.proto, predict.proto, model.proto.
_PREDICT_LOG, _REQUEST, _MODEL_SPEC, _INPUTS, _SIGNATURE_NAME = 6, 1, 1, 2, 3
_MAP_KEY, _MAP_VALUE = 1, 2
_LENGTH_DELIMITED = 2

# A short text and one that is not, so that both are known before the first request comes.
EXAMPLES = (f"the {MASK} is here .", f"there are many words in this one, and it has a {MASK} too . " * 8)


def warmup_requests(inputs: Mapping[str, Any]) -> bytes:
    """Returns the file's content: a request to serving_default for each example.

    Args:
        inputs: the signature's inputs, string tensors, by name; the first axis is the batch.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "requests")
        with tf.io.TFRecordWriter(path) as writer:
            for text in EXAMPLES:
                values = {name: tf.fill([1, *spec.shape[1:]], text) for name, spec in inputs.items()}
                writer.write(_field(_PREDICT_LOG, _field(_REQUEST, predict_request("serving_default", values))))
        return files.read_bytes(path)


def predict_request(signature: str, inputs: Mapping[str, Any]) -> bytes:
    """Returns a PredictRequest of TensorFlow Serving, serialized.

    Args:
        signature: the signature's name.
        inputs: tensors by name.
    """
    message = _field(_MODEL_SPEC, _field(_SIGNATURE_NAME, signature.encode()))
    for name, value in inputs.items():
        tensor = tf.make_tensor_proto(value).SerializeToString()
        message += _field(_INPUTS, _field(_MAP_KEY, name.encode()) + _field(_MAP_VALUE, tensor))
    return message


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes, as protocol buffers are written: key, length, content."""
    return bytes([number << 3 | _LENGTH_DELIMITED]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])
