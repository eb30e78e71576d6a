"""The schema of the TFRecord files: name, shape and type of each feature, for writing and for reading."""

import dataclasses
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from official_bert import files
from official_bert.errors import UserError


@dataclasses.dataclass(frozen=True)
class Feature:
    """A feature's shape, its type in the file (int64 or float32; the format has no other), and its range.

    Attributes:
        shape: of one record, without the batch.
        dtype: in the file.
        limit: integers are from 0 up to, not including, this; None where it is not known.
    """

    shape: tuple[int, ...]
    dtype: tf.DType
    limit: int | None = None

    @property
    def dtype_in_memory(self) -> tf.DType:
        """int32 for integers: TPUs have no int64."""
        return tf.int32 if self.dtype == tf.int64 else self.dtype


Schema = Mapping[str, Feature]


def pretraining_schema(
    max_seq_length: int,
    max_predictions_per_seq: int,
    vocab_size: int | None = None,
    type_vocab_size: int | None = None,
) -> dict[str, Feature]:
    """Returns the features of a pre-training record, the original's.

    - input_ids: ids after masking, padded with 0.
    - input_mask: 1 for a token, 0 for padding.
    - segment_ids: 0 for [CLS] a [SEP], 1 for b [SEP], 0 for padding.
    - masked_lm_positions: where a token is to be predicted, ascending, padded with 0.
    - masked_lm_ids: the ids that stood there before masking, padded with 0.
    - masked_lm_weights: 1.0 for a prediction, 0.0 for padding.
    - next_sentence_labels: 0 where b follows a in the text, 1 where it comes from elsewhere.

    Args:
        max_seq_length: positions of a record.
        max_predictions_per_seq: predictions of a record.
        vocab_size: the number of ids, if known.
        type_vocab_size: the number of segment ids, if known.
    """
    sequence, predictions = (max_seq_length,), (max_predictions_per_seq,)
    return {
        "input_ids": Feature(sequence, tf.int64, vocab_size),
        "input_mask": Feature(sequence, tf.int64, 2),
        "segment_ids": Feature(sequence, tf.int64, type_vocab_size),
        "masked_lm_positions": Feature(predictions, tf.int64, max_seq_length),
        "masked_lm_ids": Feature(predictions, tf.int64, vocab_size),
        "masked_lm_weights": Feature(predictions, tf.float32),
        "next_sentence_labels": Feature((1,), tf.int64, 2),
    }


def encode(values: Mapping[str, Sequence[Any]], schema: Schema) -> bytes:
    """Returns a serialized tf.train.Example with the schema's features, taken by name from `values`."""
    example = tf.train.Example()
    for name, feature in schema.items():
        if len(values[name]) != feature.shape[0]:
            raise ValueError(f"{name} has {len(values[name])} values; the schema says {feature.shape[0]}")
        target = example.features.feature[name]
        kind = target.int64_list if feature.dtype == tf.int64 else target.float_list
        kind.value.extend(values[name])
    return bytes(example.SerializeToString(deterministic=True))


def parse(serialized: tf.Tensor, schema: Schema) -> dict[str, tf.Tensor]:
    """Returns the features of a batch of serialized records, [B, *shape], integers as int32 (in the TF graph)."""
    spec = {name: tf.io.FixedLenFeature(feature.shape, feature.dtype) for name, feature in schema.items()}
    parsed = tf.io.parse_example(serialized, spec)
    return {name: tf.cast(parsed[name], feature.dtype_in_memory) for name, feature in schema.items()}


def read_file(path: str) -> Iterator[bytes]:
    """Yields the records of a TFRecord file, checking their checksums.

    Raises:
        UserError: the file is missing, cut short or damaged; the message gives the record's number and byte offset.
    """
    number = 0
    try:
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
            yield record
            number += 1
    except tf.errors.NotFoundError as error:
        raise UserError(f"there is no file {path}") from error
    except tf.errors.DataLossError as error:
        place = re.search(r"at (\d+)", error.message)
        near = f", near byte {place.group(1)}," if place else ""
        raise UserError(
            f"{path}: record {number} (from 0){near} is damaged; make the file again or restore it from a copy"
        ) from error


def count(path: str) -> int:
    """Returns the number of records in a TFRecord file; only the lengths are read, no checksum is checked.

    Raises:
        UserError: the file ends within a record.
    """
    total, offset, end = 0, 0, files.size(path)
    with tf.io.gfile.GFile(path, "rb") if files.is_remote(path) else open(path, "rb") as reader:
        while offset < end:
            reader.seek(offset)
            header = reader.read(8)
            # A frame: length (8 bytes), its checksum (4), the record, its checksum (4).
            length = struct.unpack("<Q", header)[0] if len(header) == 8 else end
            offset += 8 + 4 + length + 4
            if offset > end:
                raise UserError(f"{path} ends within record {total} (from 0); make the file again")
            total += 1
    return total


def find_damage(paths: Sequence[str], schema: Schema) -> str | None:
    """Reads all records and returns what is wrong with the first bad one, or None."""
    for path in paths:
        try:
            for number, record in enumerate(read_file(path)):
                problem = mismatch(record, schema)
                if problem:
                    return f"{path}: record {number} (from 0): {problem}"
        except UserError as error:
            return str(error)
    return None


def mismatch(serialized: bytes, schema: Schema) -> str | None:
    """Returns how a serialized record differs from the schema, in words, or None if it does not."""
    example = tf.train.Example()
    try:
        example.ParseFromString(serialized)
    except Exception:  # protobuf's DecodeError moves between its releases
        return "it is not a tf.train.Example"
    for name, feature in schema.items():
        if name not in example.features.feature:
            held = ", ".join(sorted(example.features.feature)) or "nothing"
            return f"it has no feature {name}; it holds {held}"
        kind = "int64_list" if feature.dtype == tf.int64 else "float_list"
        value = example.features.feature[name]
        if value.WhichOneof("kind") != kind:
            return f"{name} is stored as {value.WhichOneof('kind')}; expected {kind}"
        values = getattr(value, kind).value
        if len(values) != feature.shape[0]:
            return f"{name} has {len(values)} values; expected {feature.shape[0]}"
        if feature.limit is not None and not 0 <= min(values) <= max(values) < feature.limit:
            outside = next(value for value in values if not 0 <= value < feature.limit)
            return f"{name} holds {outside}; expected 0 to {feature.limit - 1}"
    return None
