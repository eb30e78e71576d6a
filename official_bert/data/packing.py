"""Sequence packing: several short records share a row of the batch, so that it contains little padding.

Packing moves the records of a batch into fewer rows of the same length. In a packed model (see
modeling.encoder.build_encoder), records do not attend to each other, so losses and gradients are the same as for
the unpacked batch, up to rounding. Shapes are static: unused rows are empty.

N records per batch, S sequence, P predictions per row, R records per row. A batch consists of G groups of M records.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

_GROUP = 256  # Records that are packed together. Larger groups save almost nothing.
_SHORTEST = 8  # Tokens. A row has room for S / 8 records.
_DRAWS = 1000  # Simulated batches for the estimate of the number of rows.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packing:
    """The shapes of packed batches.

    Each replica computes its share of a batch in micro-batches, and skips micro-batches without records. A batch that
    needs more rows than usual has the same shape, but takes longer, because fewer micro-batches are skipped.

    Attributes:
        batch_size: N, the number of records per batch over all replicas.
        replicas: Number of replicas that share a batch.
        micro_batches: Number of micro-batches per replica, enough for the longest records.
        typical_micro_batches: Number of micro-batches that contain records in a typical batch.
        rows: Number of rows per micro-batch.
    """

    batch_size: int
    replicas: int
    micro_batches: int
    typical_micro_batches: int
    rows: int

    @property
    def typical_rows(self) -> int:
        """Number of rows that a typical step computes over all replicas."""
        return self.replicas * self.typical_micro_batches * self.rows


def choose_packing(rows_of_groups: Sequence[int], batch_size: int, replicas: int, accumulation_steps: int) -> Packing:
    """Chooses the shapes of packed batches for which a step computes the fewest rows.

    Args:
        rows_of_groups: A sample: the number of rows that each of some groups of `get_group_size(batch_size)` records
            needs.
        batch_size: Number of records per batch.
        replicas: Number of replicas that share a batch.
        accumulation_steps: Number of gradient accumulation steps. A typical batch needs as many micro-batches.
    """
    # RandomState draws the same numbers in every release of NumPy: a resumed run must have the same shapes.
    groups = math.ceil(batch_size / _GROUP)
    mean, deviation = groups * np.mean(rows_of_groups), math.sqrt(groups) * np.std(rows_of_groups)
    needed = np.ceil(np.random.RandomState(0).normal(mean, deviation, _DRAWS)).clip(1, batch_size)
    enough_for_half = needed[needed >= np.median(needed)]
    candidates = np.unique(np.ceil(enough_for_half / (replicas * accumulation_steps)))  # Rows per micro-batch.
    computed = [np.mean(np.ceil(needed / (replicas * rows)) * rows) for rows in candidates]
    rows = int(candidates[np.argmin(computed)])
    return Packing(
        batch_size=batch_size,
        replicas=replicas,
        micro_batches=math.ceil(batch_size / (replicas * rows)),
        typical_micro_batches=accumulation_steps,
        rows=rows,
    )


def get_group_size(batch_size: int) -> int:
    """Returns the number of records that are packed together, M."""
    return math.ceil(batch_size / math.ceil(batch_size / _GROUP))


def count_rows(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns the number of rows that the records of a batch need when packed, as int32 scalar."""
    return tf.reduce_max(_assign_rows(features)[0]) + 1


def pack(features: dict[str, tf.Tensor], packing: Packing) -> dict[str, tf.Tensor]:
    """Packs the records of a batch, several into each row.

    The result has these features, [replicas * micro-batches, rows, ...] each:

    - input_ids, input_mask, segment_ids: [..., S] int32.
    - record_ids: [..., S] int32, the number of a token's record in its row, from 1. 0 for padding.
    - position_ids: [..., S] int32, the position of a token in its record.
    - masked_lm_positions, masked_lm_ids, masked_lm_weights: [..., P], the predictions of all records in the row.
      Positions count from the start of the row.
    - record_starts: [..., R] int32, the positions of [CLS]. 0 for missing records.
    - next_sentence_labels, next_sentence_weights: [..., R], one per record. The weight of missing records is 0.

    Args:
        features: Features of N records (see record_schema.pretraining_schema).
        packing: The shapes of the packed batch.

    Raises:
        ValueError: If there are other features, because nothing defines how to pack them.
    """
    ids, weights = features["input_ids"], features["masked_lm_weights"]
    length, predictions = ids.shape[1], weights.shape[1]
    records = _get_max_records(length)
    row, start, first_prediction, number = _assign_rows(features)  # [N] each
    # The rows of a replica are contiguous. Micro-batches are filled in turn, each of them evenly over the replicas.
    micro_batch, rest = row // (packing.replicas * packing.rows), row % (packing.replicas * packing.rows)
    replica_and_micro_batch = rest % packing.replicas * packing.micro_batches + micro_batch
    row = tf.where(row < 0, -1, replica_and_micro_batch * packing.rows + rest // packing.replicas)

    def move_to_rows(values: tf.Tensor, position: tf.Tensor, exists: tf.Tensor, width: int) -> tf.Tensor:
        """Moves values to positions in the rows of their records.

        Args:
            values: Values of each record [N, any].
            position: The position in the row for each value [N, any].
            exists: Which values to move [N, any].
            width: Length of a row of the result.

        Returns:
            The values, with 0 at other positions [replicas * micro-batches, rows, width].
        """
        blocks = (packing.replicas * packing.micro_batches, packing.rows)
        size = math.prod(blocks) * width
        target = tf.where(exists & (row >= 0)[:, None], row[:, None] * width + position, size)
        return tf.reshape(tf.scatter_nd(target[..., None], values, [size + 1])[:size], (*blocks, width))

    is_token = features["input_mask"] > 0  # [N, S]
    in_record = tf.broadcast_to(tf.range(length), tf.shape(ids))
    position = start[:, None] + in_record
    record_ids = move_to_rows(tf.broadcast_to(number[:, None] + 1, tf.shape(ids)), position, is_token, length)

    is_prediction = weights > 0  # [N, P]
    slot = first_prediction[:, None] + tf.cumsum(tf.cast(is_prediction, tf.int32), axis=1, exclusive=True)
    in_row = start[:, None] + features["masked_lm_positions"]

    is_record = tf.ones_like(number, tf.bool)[:, None]  # [N, 1]
    labels = features["next_sentence_labels"]
    packed = {
        "input_ids": move_to_rows(ids, position, is_token, length),
        "input_mask": tf.cast(record_ids > 0, tf.int32),
        "segment_ids": move_to_rows(features["segment_ids"], position, is_token, length),
        "record_ids": record_ids,
        "position_ids": move_to_rows(in_record, position, is_token, length),
        "masked_lm_positions": move_to_rows(in_row, slot, is_prediction, predictions),
        "masked_lm_ids": move_to_rows(features["masked_lm_ids"], slot, is_prediction, predictions),
        "masked_lm_weights": move_to_rows(weights, slot, is_prediction, predictions),
        "record_starts": move_to_rows(start[:, None], number[:, None], is_record, records),
        "next_sentence_labels": move_to_rows(labels, number[:, None], is_record, records),
        "next_sentence_weights": move_to_rows(tf.ones_like(labels, tf.float32), number[:, None], is_record, records),
    }
    if unknown := sorted(features.keys() - packed.keys()):
        raise ValueError(f"no rule for packing the features {unknown}; add one to packing.pack, or turn packing off")
    return packed


def spread_over_rows(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Adds the features of packed batches to a batch in which each record has a row of its own."""
    input_mask, labels = features["input_mask"], features["next_sentence_labels"]
    return {
        **features,
        "record_ids": input_mask,
        "position_ids": tf.broadcast_to(tf.range(tf.shape(input_mask)[1]), tf.shape(input_mask)),
        "record_starts": tf.zeros_like(labels),
        "next_sentence_weights": tf.cast(input_mask[:, :1], tf.float32),
    }


def _get_max_records(length: int) -> int:
    """Returns the maximum number of records per row, R, for a sequence length."""
    return max(1, length // _SHORTEST)


def _assign_rows(features: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Assigns records to rows by best fit: longest records first, each to the fullest row that has enough room.

    Returns:
        Four tensors [N] int32. For each record: its row (numbered without gaps, -1 for a record without tokens), its
        first position in the row, the index of its first prediction in the row, and its index among the row's records.
    """
    count = features["input_ids"].shape[0]
    length, predictions = features["input_ids"].shape[1], features["masked_lm_weights"].shape[1]
    groups = math.ceil(count / _GROUP)
    size = get_group_size(count)
    tokens = tf.reduce_sum(features["input_mask"], axis=1)
    # The size of a record: its tokens, its predictions, and 1.
    sizes = tf.stack([tokens, tf.math.count_nonzero(features["masked_lm_weights"] > 0, 1, dtype=tf.int32)], axis=1)
    sizes = tf.concat([sizes, tf.ones_like(sizes[:, :1])], axis=1) * tf.cast(tokens > 0, tf.int32)[:, None]  # [N, 3]
    sizes = tf.reshape(tf.pad(sizes, [[0, groups * size - count], [0, 0]]), (groups, size, 3))
    order = tf.argsort(sizes[:, :, 0], axis=1, direction="DESCENDING", stable=True)  # [G, M]
    capacity = tf.constant([length, predictions, _get_max_records(length)])
    free = tf.broadcast_to(capacity, (groups, size, 3))
    longest_first = tf.transpose(tf.gather(sizes, order, batch_dims=1), (1, 0, 2))  # [M, G, 3]

    def place(
        number: tf.Tensor, free: tf.Tensor, rows: tf.TensorArray, starts: tf.TensorArray
    ) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray, tf.TensorArray]:
        needed = longest_first[number][:, None]  # [G, 1, 3]
        fits = tf.reduce_all(free >= needed, axis=2)  # [G, M]; true for at least one empty row.
        row = tf.argmin(tf.where(fits, free[:, :, 0], length + 1), axis=1, output_type=tf.int32)  # [G]
        start = capacity - tf.gather(free, row, batch_dims=1)  # [G, 3]
        free -= tf.one_hot(row, size, dtype=tf.int32)[:, :, None] * needed
        return number + 1, free, rows.write(number, row), starts.write(number, start)

    rows = tf.TensorArray(tf.int32, size, element_shape=(groups,))
    starts = tf.TensorArray(tf.int32, size, element_shape=(groups, 3))
    _, free, rows, starts = tf.while_loop(lambda number, *_: number < size, place, (0, free, rows, starts))
    rank = tf.argsort(order, axis=1)  # The index of each record in the order.
    row = tf.gather(tf.transpose(rows.stack()), rank, batch_dims=1)  # [G, M]
    start = tf.gather(tf.transpose(starts.stack(), (1, 0, 2)), rank, batch_dims=1)  # [G, M, 3]
    # Empty rows are at the end of a group and are not numbered.
    used = tf.reduce_sum(tf.cast(free[:, :, 2] < capacity[2], tf.int32), axis=1)  # [G]
    row += tf.cumsum(used, exclusive=True)[:, None]
    row = tf.where(sizes[:, :, 2] > 0, row, -1)
    row, start = tf.reshape(row, [-1])[:count], tf.reshape(start, [-1, 3])[:count]
    return row, start[:, 0], start[:, 1], start[:, 2]
