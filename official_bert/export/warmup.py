"""Writes the warm-up requests of TensorFlow Serving: a TFRecord file of PredictionLog messages.

The package that defines the messages (tensorflow-serving-api) is not a dependency, so this module encodes them. The
tests compare them with bytes that tensorflow-serving-api wrote.
"""

from collections.abc import Mapping

import tensorflow as tf

from official_bert.kinds.names import DEFAULT_SIGNATURE
from official_bert.tokenization.exact import MASK

# A short and a long text, because the first text of a new length is slow.
EXAMPLES = (f"the {MASK} is here .", f"there are many words in this one, and it has a {MASK} too . " * 8)

# Numbers of the fields, from prediction_log.proto, predict.proto and model.proto of tensorflow_serving/apis.
_PREDICT_LOG, _REQUEST, _MODEL_SPEC, _INPUTS, _SIGNATURE_NAME, _KEY, _VALUE = 6, 1, 1, 2, 3, 1, 2


def write_requests(path: str, inputs: Mapping[str, tf.TensorSpec]) -> None:
    """Writes the file: one request to serving_default, with inputs [1, ...], for each example."""
    with tf.io.TFRecordWriter(path) as writer:
        for text in EXAMPLES:
            request = _encode_field(_MODEL_SPEC, _encode_field(_SIGNATURE_NAME, DEFAULT_SIGNATURE.encode()))
            for name, spec in inputs.items():
                tensor = tf.make_tensor_proto(tf.fill([1, *spec.shape[1:]], text)).SerializeToString()
                request += _encode_field(_INPUTS, _encode_field(_KEY, name.encode()) + _encode_field(_VALUE, tensor))
            writer.write(_encode_field(_PREDICT_LOG, _encode_field(_REQUEST, request)))


def _encode_field(number: int, content: bytes) -> bytes:
    """Returns a field of a protocol buffer: number and type, the length in groups of seven bits, and the content."""
    head, length = bytes([number << 3 | 2]), len(content)
    while length > 127:
        head, length = head + bytes([length & 127 | 128]), length >> 7
    return head + bytes([length]) + content
