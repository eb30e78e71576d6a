"""Reads pre-training records as batches of arrays. Errors name the damaged record.

B batch, L sequence length, P predictions
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from official_bert.data import record_codec, record_damage, record_reader, record_schema
from official_bert.data.dataset_options import make_dataset_options
from official_bert.errors import UserError
from official_bert.utils import files

Batch = dict[str, np.ndarray]

_RECORDS_AT_ONCE = 1000

_UNKNOWN_VOCAB_SIZE = 2**31  # Larger ids do not fit into the integers of a batch.


def infer_schema(
    paths: Sequence[str],
    vocab_size: int | None = None,
    max_seq_length: int | None = None,
    max_predictions_per_seq: int | None = None,
) -> record_schema.Schema:
    """Infers the schema (features and shapes) of pre-training records from the first readable record in some files.

    Records for dynamic masking have no features for predictions.

    Args:
        paths: TFRecord files.
        vocab_size: Number of tokens in the vocabulary. If None, any id is valid.
        max_seq_length: Length of the records. If None, it is inferred.
        max_predictions_per_seq: Number of prediction slots of the records. If None, it is inferred.

    Raises:
        UserError: If the files contain no readable record.
    """
    lengths = _count_values(_read_first_record(paths))
    length = max_seq_length or max(1, lengths.get("input_ids", 0))
    if not any(name.startswith("masked_lm_") for name in lengths):
        return record_schema.unmasked_schema(length, vocab_size or _UNKNOWN_VOCAB_SIZE, type_vocab_size=2)
    predictions = max_predictions_per_seq or max(1, lengths.get("masked_lm_positions", 0))
    return record_schema.pretraining_schema(length, predictions, vocab_size or _UNKNOWN_VOCAB_SIZE, type_vocab_size=2)


def _read_first_record(paths: Sequence[str]) -> bytes:
    damage: UserError | None = None
    for path in paths:
        try:
            for record in record_reader.read_file(path):
                return record
        except UserError as error:
            damage = damage or error
    raise damage or UserError(f"no records in {', '.join(paths)}")


def _count_values(record: bytes) -> dict[str, int]:
    """Returns the number of integers in each feature of a serialized record, or {} if it is not a tf.train.Example."""
    try:
        features = tf.train.Example.FromString(record).features.feature
    except Exception:  # The module of protobuf's DecodeError differs between releases.
        return {}
    return {name: len(value.int64_list.value) for name, value in features.items()}


def read_batches(path: str, schema: record_schema.Schema, advance: Callable[[int], None]) -> Iterator[Batch]:
    """Yields the records of a file in order, as batches: the features by name, each [B, *shape].

    Args:
        path: A TFRecord file.
        schema: Names and shapes of the features.
        advance: Function that is called with the number of bytes that were read from the file since its last call.

    Raises:
        UserError: If a record is damaged or differs from the schema. All records before it are yielded first.
    """
    compression = record_reader.get_compression([path])
    data = tf.data.TFRecordDataset(files.local_copy(path), compression).batch(_RECORDS_AT_ONCE).prefetch(1)
    data = data.with_options(make_dataset_options())
    done, unread = 0, files.size(path)
    try:
        for serialized in data.as_numpy_iterator():
            yield _parse_records(serialized, schema)
            done += len(serialized)
            size = min(sum(map(len, serialized)), unread)  # Records may be larger than their compressed file.
            advance(size)
            unread -= size
        advance(unread)
        return
    except tf.errors.OpError:
        pass  # One of the next records is damaged: they are read one by one below, to name it.
    for number, record in enumerate(record_reader.read_file(path)):
        if number >= done:
            if problem := record_damage.describe_mismatch(record, schema):
                raise UserError(
                    f"{path}: record {number} (from 0): {problem}; was it made with another --vocab_file, "
                    "or by make-records with another --max_seq_length or --max_predictions_per_seq?"
                )
            yield _parse_records([record], schema)


def _parse_records(serialized: Sequence[bytes], schema: record_schema.Schema) -> Batch:
    return {name: value.numpy() for name, value in record_codec.parse(tf.constant(serialized), schema).items()}


def count_tokens(batch: Batch) -> np.ndarray:
    """Returns the number of tokens [B] in each record, including [CLS] and [SEP], without padding."""
    return batch["input_mask"].sum(axis=1)


def count_first_segment_tokens(batch: Batch) -> np.ndarray:
    """Returns the number of tokens in each record's first segment, [CLS] a [SEP] [B]."""
    return ((batch["input_mask"] == 1) & (batch["segment_ids"] == 0)).sum(axis=1)


def is_text(batch: Batch) -> np.ndarray:
    """Returns a bool mask [B, L] of the positions that contain text: neither [CLS] nor [SEP] nor padding."""
    position = np.arange(batch["input_ids"].shape[1])
    length, first = count_tokens(batch)[:, None], count_first_segment_tokens(batch)[:, None]
    return (position > 0) & (position < length - 1) & (position != first - 1)


def get_token_name(tokens: Mapping[int, str], number: int) -> str:
    """Returns the token of an id, or a placeholder for an id that no token has (the line repeats an earlier token).

    Args:
        tokens: The token of each id.
        number: The id.
    """
    return tokens.get(int(number), f"<id {number}>")
