"""Several records in a row of the sequence's length, so that little of a batch is padding.

A batch keeps its records: packing moves them into fewer rows of the same length, and a packed model (see
modeling.encoder.build_encoder) lets none of them see another. Losses and gradients are those of the unpacked batch, to
rounding. Shapes are static: rows that are not needed are empty.

N records of a batch, S sequence, P predictions of a row, R records of a row; a batch is cut into G groups of M records
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

_GROUP = 256  # records that are packed with each other; packing more of them together gains next to nothing
_SHORTEST = 8  # tokens: room is left for S / 8 records in a row
_DRAWS = 1000  # batches whose number of rows is estimated


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packing:
    """The shapes of packed batches.

    Each replica takes its share of a batch in parts, one after the other, and leaves out parts without records. A batch
    whose records need more rows than usual therefore only takes longer.
    """

    batch_size: int  # N, records of a batch, over all replicas
    replicas: int  # how many share a batch
    parts: int  # of a replica's share: those that are usually needed first, then what the worst batch may need
    usual_parts: int  # how many of them are usually needed
    rows: int  # of a part

    @property
    def usual_rows(self) -> int:
        """Rows that a step usually computes, over all replicas."""
        return self.replicas * self.usual_parts * self.rows


def choose_packing(rows_of_groups: Sequence[int], batch_size: int, replicas: int, micro_batches: int) -> Packing:
    """Returns the shapes with which steps compute the fewest rows.

    Args:
        rows_of_groups: how many rows some groups of `group_size(batch_size)` records need.
        batch_size: records of a batch.
        replicas: how many share it.
        micro_batches: parts that a replica usually cuts its share into.
    """
    # RandomState's numbers are the same in every release of NumPy: a run that goes on must have the same shapes.
    groups = math.ceil(batch_size / _GROUP)
    mean, deviation = groups * np.mean(rows_of_groups), math.sqrt(groups) * np.std(rows_of_groups)
    needed = np.ceil(np.random.RandomState(0).normal(mean, deviation, _DRAWS)).clip(1, batch_size)
    enough_for_half = needed[needed >= np.median(needed)]
    candidates = np.unique(np.ceil(enough_for_half / (replicas * micro_batches)))  # rows of a part
    computed = [np.mean(np.ceil(needed / (replicas * rows)) * rows) for rows in candidates]
    rows = int(candidates[np.argmin(computed)])
    parts = math.ceil(batch_size / (replicas * rows))
    return Packing(batch_size=batch_size, replicas=replicas, parts=parts, usual_parts=micro_batches, rows=rows)


def group_size(batch_size: int) -> int:
    """Returns M: how many records of a batch are packed with each other."""
    return math.ceil(batch_size / math.ceil(batch_size / _GROUP))


def count_rows(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns how many rows the records of a batch need: [] int32."""
    return tf.reduce_max(_assign(features)[0]) + 1


def pack(features: dict[str, tf.Tensor], packing: Packing) -> dict[str, tf.Tensor]:
    """Returns a batch with several records in a row.

    Rows of replicas * parts * packing.rows, in that order, as [replicas * parts, rows, ...]:

    - input_ids, input_mask, segment_ids: [..., S] int32, as before.
    - record_ids: [..., S] int32, the number of a token's record in its row, from 1; 0 for padding.
    - position_ids: [..., S] int32, a token's position in its record.
    - masked_lm_positions, masked_lm_ids, masked_lm_weights: [..., P], those of all the row's records; positions count
      from the row's beginning.
    - record_starts: [..., R] int32, the positions of the records' [CLS]; 0 where there are fewer than R.
    - next_sentence_labels, next_sentence_weights: [..., R], of each record; the weight is 0 where there is none.

    Args:
        features: of N records (see record_schema.pretraining_schema).
        packing: the shapes.
    """
    ids, weights = features["input_ids"], features["masked_lm_weights"]
    length, predictions = ids.shape[1], weights.shape[1]
    records = _records_of_row(length)
    row, start, first_prediction, number = _assign(features)  # [N] each
    # A replica's rows stand together; parts are filled one after the other, and each of them on all replicas alike.
    part, rest = row // (packing.replicas * packing.rows), row % (packing.replicas * packing.rows)
    replica_and_part = rest % packing.replicas * packing.parts + part
    row = tf.where(row < 0, -1, replica_and_part * packing.rows + rest // packing.replicas)

    def in_rows(values: tf.Tensor, position: tf.Tensor, exists: tf.Tensor, width: int) -> tf.Tensor:
        """Moves what exists, [N, any], to positions of the records' rows: [replicas * parts, rows, width]."""
        blocks = (packing.replicas * packing.parts, packing.rows)
        size = math.prod(blocks) * width
        target = tf.where(exists & (row >= 0)[:, None], row[:, None] * width + position, size)
        return tf.reshape(tf.scatter_nd(target[..., None], values, [size + 1])[:size], (*blocks, width))

    is_token = features["input_mask"] > 0  # [N, S]
    in_record = tf.broadcast_to(tf.range(length), tf.shape(ids))
    position = start[:, None] + in_record
    record_ids = in_rows(tf.broadcast_to(number[:, None] + 1, tf.shape(ids)), position, is_token, length)

    is_prediction = weights > 0  # [N, P]
    slot = first_prediction[:, None] + tf.cumsum(tf.cast(is_prediction, tf.int32), axis=1, exclusive=True)
    in_row = start[:, None] + features["masked_lm_positions"]

    is_record = tf.ones_like(number, tf.bool)[:, None]  # [N, 1]
    labels = features["next_sentence_labels"]
    return {
        "input_ids": in_rows(ids, position, is_token, length),
        "input_mask": tf.cast(record_ids > 0, tf.int32),
        "segment_ids": in_rows(features["segment_ids"], position, is_token, length),
        "record_ids": record_ids,
        "position_ids": in_rows(in_record, position, is_token, length),
        "masked_lm_positions": in_rows(in_row, slot, is_prediction, predictions),
        "masked_lm_ids": in_rows(features["masked_lm_ids"], slot, is_prediction, predictions),
        "masked_lm_weights": in_rows(weights, slot, is_prediction, predictions),
        "record_starts": in_rows(start[:, None], number[:, None], is_record, records),
        "next_sentence_labels": in_rows(labels, number[:, None], is_record, records),
        "next_sentence_weights": in_rows(tf.ones_like(labels, tf.float32), number[:, None], is_record, records),
    }


def spread_over_rows(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns an unpacked batch, as in evaluation, as a packed model takes it: every record in a row of its own."""
    input_mask, labels = features["input_mask"], features["next_sentence_labels"]
    return {
        **features,
        "record_ids": input_mask,
        "position_ids": tf.broadcast_to(tf.range(tf.shape(input_mask)[1]), tf.shape(input_mask)),
        "record_starts": tf.zeros_like(labels),
        "next_sentence_weights": tf.cast(input_mask[:, :1], tf.float32),
    }


def _records_of_row(length: int) -> int:
    return max(1, length // _SHORTEST)


def _assign(features: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Finds a row for each record: the longest first, each into the fullest row that has room for it.

    Returns:
        For each record, [N] int32: the row, numbered without gaps; the first position and the first prediction that
        are its own there; and its number among the row's records, from 0. The row of a record without tokens is -1.
    """
    count = features["input_ids"].shape[0]
    length, predictions = features["input_ids"].shape[1], features["masked_lm_weights"].shape[1]
    groups = math.ceil(count / _GROUP)
    size = group_size(count)
    tokens = tf.reduce_sum(features["input_mask"], axis=1)
    # What a record takes of a row: tokens, predictions, and one of its records.
    taken = tf.stack([tokens, tf.math.count_nonzero(features["masked_lm_weights"] > 0, 1, dtype=tf.int32)], axis=1)
    taken = tf.concat([taken, tf.ones_like(taken[:, :1])], axis=1) * tf.cast(tokens > 0, tf.int32)[:, None]  # [N, 3]
    taken = tf.reshape(tf.pad(taken, [[0, groups * size - count], [0, 0]]), (groups, size, 3))
    order = tf.argsort(taken[:, :, 0], axis=1, direction="DESCENDING", stable=True)  # [G, M]
    capacity = tf.constant([length, predictions, _records_of_row(length)])
    free = tf.broadcast_to(capacity, (groups, size, 3))  # of each row
    longest_first = tf.transpose(tf.gather(taken, order, batch_dims=1), (1, 0, 2))  # [M, G, 3]

    def place(
        number: tf.Tensor, free: tf.Tensor, rows: tf.TensorArray, starts: tf.TensorArray
    ) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray, tf.TensorArray]:
        needed = longest_first[number][:, None]  # [G, 1, 3]
        fits = tf.reduce_all(free >= needed, axis=2)  # [G, M]; an empty row is always among them
        row = tf.argmin(tf.where(fits, free[:, :, 0], length + 1), axis=1, output_type=tf.int32)  # [G]
        start = capacity - tf.gather(free, row, batch_dims=1)  # [G, 3]
        free -= tf.one_hot(row, size, dtype=tf.int32)[:, :, None] * needed
        return number + 1, free, rows.write(number, row), starts.write(number, start)

    rows = tf.TensorArray(tf.int32, size, element_shape=(groups,))
    starts = tf.TensorArray(tf.int32, size, element_shape=(groups, 3))
    _, free, rows, starts = tf.while_loop(lambda number, *_: number < size, place, (0, free, rows, starts))
    before = tf.argsort(order, axis=1)  # where in that order a record stands
    row = tf.gather(tf.transpose(rows.stack()), before, batch_dims=1)  # [G, M]
    start = tf.gather(tf.transpose(starts.stack(), (1, 0, 2)), before, batch_dims=1)  # [G, M, 3]
    # Empty rows stand at a group's end, and are left out.
    used = tf.reduce_sum(tf.cast(free[:, :, 2] < capacity[2], tf.int32), axis=1)  # [G]
    row += tf.cumsum(used, exclusive=True)[:, None]
    row = tf.where(taken[:, :, 2] > 0, row, -1)
    row, start = tf.reshape(row, [-1])[:count], tf.reshape(start, [-1, 3])[:count]
    return row, start[:, 0], start[:, 1], start[:, 2]
