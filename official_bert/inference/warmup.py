"""Reads and writes the warm-up requests of TensorFlow Serving: a TFRecord file of PredictionLog messages.

The package that defines the messages (tensorflow-serving-api) is not a dependency, so the fields that are needed are
declared here. The tests compare them with bytes that tensorflow-serving-api wrote.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from tensorflow.core.framework import tensor_pb2

from official_bert.data.dataset_options import make_dataset_options
from official_bert.errors import UserError
from official_bert.kinds.names import DEFAULT_SIGNATURE
from official_bert.tokenization.exact import MASK
from official_bert.utils import files

# A short and a long text, because the first text of a new length is slow.
EXAMPLES = (f"the {MASK} is here .", f"there are many words in this one, and it has a {MASK} too . " * 8)

# Fields of the messages by name: number and type. From prediction_log.proto, predict.proto and model.proto of
# tensorflow_serving/apis. A map field is a repeated message of keys and values.
_PACKAGE = "official_bert.warmup"
_MESSAGES = {
    "PredictionLog": {"predict_log": (6, "PredictLog")},
    "PredictLog": {"request": (1, "PredictRequest")},
    "PredictRequest": {"model_spec": (1, "ModelSpec"), "inputs": (2, "Input")},
    "ModelSpec": {"signature_name": (3, "string")},
    "Input": {"key": (1, "string"), "value": (2, "bytes")},  # The value is a serialized TensorProto.
}


def _create_message_classes() -> dict[str, Any]:
    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3")
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for name, (number, kind) in fields.items():
            label = field_type.LABEL_REPEATED if kind == "Input" else field_type.LABEL_OPTIONAL
            field = message.field.add(name=name, number=number, label=label)
            if kind in _MESSAGES:
                field.type, field.type_name = field_type.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                field.type = field_type.TYPE_STRING if kind == "string" else field_type.TYPE_BYTES
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


_CLASSES = _create_message_classes()


def warmup_requests(inputs: Mapping[str, Any]) -> bytes:
    """Returns the bytes of a warm-up file with a request to serving_default for a short and for a long text.

    Args:
        inputs: The TensorSpec, [None, ...], of each input.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "requests")
        with tf.io.TFRecordWriter(path) as writer:
            for text in EXAMPLES:
                log = _CLASSES["PredictionLog"]()
                log.predict_log.request.model_spec.signature_name = DEFAULT_SIGNATURE
                for name, spec in inputs.items():
                    tensor = tf.make_tensor_proto(tf.fill([1, *spec.shape[1:]], text))
                    log.predict_log.request.inputs.add(key=name, value=tensor.SerializeToString())
                writer.write(log.SerializeToString())
        return files.read_bytes(path)


def read_requests(path: str) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yields the signature name and the inputs of each PredictRequest in a warm-up file. Other messages are skipped.

    Raises:
        UserError: If the file is truncated or damaged.
    """
    try:
        records = tf.data.TFRecordDataset(files.local_copy(path)).with_options(make_dataset_options())
        for record in records.as_numpy_iterator():
            log = _CLASSES["PredictionLog"].FromString(record)
            if log.HasField("predict_log"):
                request = log.predict_log.request
                tensors = {each.key: tensor_pb2.TensorProto.FromString(each.value) for each in request.inputs}
                inputs = {name: tf.make_ndarray(tensor) for name, tensor in tensors.items()}
                yield request.model_spec.signature_name or DEFAULT_SIGNATURE, inputs
    except (tf.errors.OpError, DecodeError, ValueError) as error:
        raise UserError(f"{path} cannot be read as warm-up requests: {error}") from error
