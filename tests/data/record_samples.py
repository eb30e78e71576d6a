"""Records that can be identified by their first token, and files of them."""

import pathlib

import numpy as np
import tensorflow as tf

from official_bert.data import record_codec, record_schema

SCHEMA = record_schema.pretraining_schema(8, 2, vocab_size=100, type_vocab_size=2)


def values(number: int) -> dict[str, list[float]]:
    return {
        "input_ids": [number, 1, 2, 3, 4, 0, 0, 0],
        "input_mask": [1, 1, 1, 1, 1, 0, 0, 0],
        "segment_ids": [0, 0, 0, 1, 1, 0, 0, 0],
        "masked_lm_positions": [1, 0],
        "masked_lm_ids": [7, 0],
        "masked_lm_weights": [1.0, 0.0],
        "next_sentence_labels": [1],
    }


def encoded(record: dict[str, list[float]], schema: record_schema.Schema) -> bytes:
    return record_codec.encode({name: np.array([value]) for name, value in record.items()}, schema)[0]


def write(path: pathlib.Path, numbers: range) -> str:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in numbers:
            writer.write(encoded(values(number), SCHEMA))
    return str(path)


ALL = [10 * i + k for i in range(5) for k in range(7 + i)]


def first_ids(batches: tf.data.Dataset, count: int) -> list[list[int]]:
    return [batch["input_ids"][:, 0].numpy().tolist() for batch in batches.take(count)]
