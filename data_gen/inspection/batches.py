"""Record files as batches of arrays, in order, for inspection and verification; errors name the bad record.

B batch, L sequence length, P predictions
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from official_bert.data import record_codec, record_damage, record_reader, record_schema
from official_bert.data.dataset_options import dataset_options
from official_bert.errors import UserError
from official_bert.utils import files

Batch = dict[str, np.ndarray]

_RECORDS_AT_ONCE = 1000

# Where the size of the vocabulary is not known; larger ids would not fit the integers of a batch.
_ANY_ID = 2**31


def schema_of(
    paths: Sequence[str],
    vocab_size: int | None = None,
    max_seq_length: int | None = None,
    max_predictions_per_seq: int | None = None,
) -> record_schema.Schema:
    """Returns the schema of pre-training records: with predictions, or without where masking happens during training.

    Which of the two, and what is None (see record_schema.pretraining_schema), follow from the first record that can be
    read.

    Raises:
        UserError: there is no record, or none that can be read.
    """
    lengths = _lengths(_first_record(paths))
    length = max_seq_length or max(1, lengths.get("input_ids", 0))
    if not any(name.startswith("masked_lm_") for name in lengths):
        return record_schema.unmasked_schema(length, vocab_size or _ANY_ID, type_vocab_size=2)
    predictions = max_predictions_per_seq or max(1, lengths.get("masked_lm_positions", 0))
    return record_schema.pretraining_schema(length, predictions, vocab_size or _ANY_ID, type_vocab_size=2)


def _first_record(paths: Sequence[str]) -> bytes:
    damage: UserError | None = None
    for path in paths:
        try:
            for record in record_reader.read_file(path):
                return record
        except UserError as error:
            damage = damage or error
    raise damage or UserError(f"there is no record in {', '.join(paths)}")


def _lengths(record: bytes) -> dict[str, int]:
    """How many integers each feature of a record holds; nothing where it is not a tf.train.Example."""
    try:
        features = tf.train.Example.FromString(record).features.feature
    except Exception:  # protobuf's DecodeError moves between its releases
        return {}
    return {name: len(value.int64_list.value) for name, value in features.items()}


def read_batches(path: str, schema: record_schema.Schema, advance: Callable[[int], None]) -> Iterator[Batch]:
    """Yields a file's records in order, features by name as [B, *shape].

    Args:
        path: a TFRecord file.
        schema: of the records.
        advance: called with the number of the file's bytes that were read since the last call.

    Raises:
        UserError: a record is damaged or differs from the schema, once all records before it have been yielded; it
            names the record.
    """
    compression = record_reader.compression([path])
    data = tf.data.TFRecordDataset(files.local_copy(path), compression).batch(_RECORDS_AT_ONCE).prefetch(1)
    data = data.with_options(dataset_options())
    done, unread = 0, files.size(path)
    try:
        for serialized in data.as_numpy_iterator():
            yield _parsed(serialized, schema)
            done += len(serialized)
            size = min(sum(map(len, serialized)), unread)  # of a compressed file's records, more than the file
            advance(size)
            unread -= size
        advance(unread)
        return
    except tf.errors.OpError:
        pass  # One of the next records is bad: they are read one by one below, to name it.
    for number, record in enumerate(record_reader.read_file(path)):
        if number >= done:
            if problem := record_damage.describe_mismatch(record, schema):
                raise UserError(
                    f"{path}: record {number} (from 0): {problem}; was it made with another --vocab_file, "
                    "or by make-records with another --max_seq_length or --max_predictions_per_seq?"
                )
            yield _parsed([record], schema)


def read_together(paths: Sequence[str], schema: record_schema.Schema) -> Iterator[tuple[np.ndarray, Batch]]:
    """Yields the records of several files in order, each with the number of its file in `paths`: [B], and features.

    Raises:
        UserError: a file is missing, or some are compressed and others are not.
        tensorflow.errors.OpError: a record is damaged or differs from the schema; `read_batches` of the file names it.
    """
    kind = record_reader.compression(paths)

    def numbered(number: tf.Tensor, path: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.zip((tf.data.Dataset.from_tensors(number).repeat(), tf.data.TFRecordDataset(path, kind)))

    of_files = tf.data.Dataset.from_tensor_slices(list(map(files.local_copy, paths))).enumerate()
    data = of_files.flat_map(numbered).batch(_RECORDS_AT_ONCE).prefetch(1)
    data = data.with_options(dataset_options())
    for numbers, serialized in data.as_numpy_iterator():
        yield numbers, _parsed(serialized, schema)


def _parsed(serialized: Sequence[bytes], schema: record_schema.Schema) -> Batch:
    return {name: value.numpy() for name, value in record_codec.parse(tf.constant(serialized), schema).items()}


def text_lengths(batch: Batch) -> np.ndarray:
    """How many tokens each record has, [CLS] and [SEP] included, [B]."""
    return batch["input_mask"].sum(axis=1)


def first_lengths(batch: Batch) -> np.ndarray:
    """How many tokens [CLS] a [SEP] has in each record, [B]."""
    return ((batch["input_mask"] == 1) & (batch["segment_ids"] == 0)).sum(axis=1)


def is_text(batch: Batch) -> np.ndarray:
    """Which positions hold a token of a or b, neither [CLS], nor [SEP], nor padding: [B, L] bool."""
    position = np.arange(batch["input_ids"].shape[1])
    length, first = text_lengths(batch)[:, None], first_lengths(batch)[:, None]
    return (position > 0) & (position < length - 1) & (position != first - 1)


def unmasked_ids(batch: Batch) -> np.ndarray:
    """The ids before masking, [B, L]."""
    ids = batch["input_ids"].copy()
    if "masked_lm_positions" in batch:
        row, slot = np.nonzero(batch["masked_lm_weights"])
        ids[row, batch["masked_lm_positions"][row, slot]] = batch["masked_lm_ids"][row, slot]
    return ids


def token_name(tokens: Mapping[int, str], number: int) -> str:
    """Returns the token of an id, from id to token; a line of the vocabulary that a later one repeats has none."""
    return tokens.get(int(number), f"<id {number}>")
