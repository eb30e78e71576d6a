"""Instances to TFRecord files."""

import contextlib
from collections.abc import Iterable

import tensorflow as tf

from official_bert import files, records, text_pairs
from data_gen.instances import Instance
from official_bert.progress import Progress


def features(
    instance: Instance, max_seq_length: int, max_predictions_per_seq: int
) -> dict[str, list[int] | list[float]]:
    """Returns the record's features, padded with zeros (see records.pretraining_schema)."""

    def sequence(values: list[int]) -> list[int]:
        return text_pairs.pad(values, max_seq_length)

    def predictions(values: list[int]) -> list[int]:
        return text_pairs.pad(values, max_predictions_per_seq)

    return {
        "input_ids": sequence(instance.input_ids),
        "input_mask": sequence([1] * len(instance.input_ids)),
        "segment_ids": sequence(instance.segment_ids),
        "masked_lm_positions": predictions(instance.masked_lm_positions),
        "masked_lm_ids": predictions(instance.masked_lm_ids),
        "masked_lm_weights": text_pairs.pad([1.0] * len(instance.masked_lm_ids), max_predictions_per_seq, 0.0),
        "next_sentence_labels": [int(instance.is_random_next)],
    }


def write(
    instances: Iterable[Instance], total: int, paths: list[str], max_seq_length: int, max_predictions_per_seq: int
) -> None:
    """Writes the instances to the files in turn, one record each; the files appear together at the end, whole.

    Raises:
        UserError: a file cannot be written.
    """
    schema = records.pretraining_schema(max_seq_length, max_predictions_per_seq)
    progress = Progress("writing", total, "instances")
    with contextlib.ExitStack() as stack:
        # The renames come first in the stack, so that they happen after every writer is closed.
        beside = [stack.enter_context(files.written_whole(path)) for path in paths]
        writers = [stack.enter_context(tf.io.TFRecordWriter(path)) for path in beside]
        for number, instance in enumerate(instances):
            values = features(instance, max_seq_length, max_predictions_per_seq)
            writers[number % len(writers)].write(records.encode(values, schema))
            progress.update(number + 1)
