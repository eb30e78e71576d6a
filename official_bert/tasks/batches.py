"""Batches of rows of about the same length, so that little is padding.

The original pads every row to the longest allowed. Here an epoch's rows are shuffled, sorted by length within pools of
many batches, cut into batches, and the batches shuffled again. Every row is in one batch of an epoch, and which rows
share a batch is a function of seed and epoch. Lengths are rounded up, so that the number of shapes is bounded; the last
batch is filled up with rows that weigh nothing, so that all have the same number of rows.

B batch, S sequence, N choices, R rows
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.tasks.task import LABELS, NO_LABEL, Array, Features

MULTIPLE = 8  # of which the lengths of batches are
_POOL = 64  # batches
_FILLER = -1  # in a plan: no row


def row_lengths(features: Features) -> Array:
    """Returns the tokens of each row, int64 [R]: those of its longest sequence."""
    return np.asarray(np.diff(features.splits).reshape(-1, features.choices).max(axis=1))


def training_plan(lengths: Array, batch_size: int, seed: int, epoch: int) -> Array:
    """Returns which rows make each batch of an epoch: int64 [batches, B], -1 where a batch is filled up."""
    rng = np.random.default_rng([seed, epoch])
    rows = rng.permutation(len(lengths))
    pool = _POOL * batch_size
    for start in range(0, len(rows), pool):
        part = rows[start : start + pool]
        rows[start : start + pool] = part[np.argsort(lengths[part], kind="stable")]
    return np.asarray(rng.permutation(_cut(rows, batch_size)))


def prediction_plan(lengths: Array, batch_size: int) -> Array:
    """Returns batches in the order of length, as `training_plan` does."""
    return _cut(np.argsort(lengths, kind="stable"), batch_size)


def _cut(rows: Array, batch_size: int) -> Array:
    missing = -len(rows) % batch_size
    return np.concatenate([rows, np.full(missing, _FILLER)]).reshape(-1, batch_size)


def padded_inputs(features: Features, rows: Array, max_seq_length: int, multiple: int = MULTIPLE) -> dict[str, Array]:
    """Returns the model's inputs for some rows: int32 [B, S], or [B, N, S] where rows have several sequences.

    Args:
        features: the rows.
        rows: the number of each; -1 gives an empty row.
        max_seq_length: S at most.
        multiple: S is rounded up to a multiple of it.
    """
    starts, lengths = _places(features, rows)
    longest = int(lengths.max(initial=1))
    inside = np.arange(min(-(-longest // multiple) * multiple, max_seq_length)) < lengths[:, None]  # [B * N, S]
    indices = (starts[:, None] + np.arange(inside.shape[1]))[inside]
    made = {"input_mask": inside.astype(np.int32)}
    for name, values in (("input_ids", features.input_ids), ("segment_ids", features.segment_ids)):
        made[name] = np.zeros(inside.shape, np.int32)
        made[name][inside] = values[indices]
    if features.choices == 1:
        return made
    return {name: each.reshape(len(rows), features.choices, -1) for name, each in made.items()}


def _places(features: Features, rows: Array) -> tuple[Array, Array]:
    """Where the sequences of rows begin, and their lengths: 0 for fillers."""
    sequences = (rows[:, None] * features.choices + np.arange(features.choices)).ravel()
    real = np.repeat(rows >= 0, features.choices)
    sequences = np.where(real, sequences, 0)
    starts = features.splits[sequences]
    return starts, np.where(real, features.splits[sequences + 1] - starts, 0)


def padded_targets(features: Features, rows: Array, length: int) -> dict[str, Array]:
    """Returns the targets of some rows; those of tokens are padded with NO_LABEL to the length."""
    made = {}
    for name, values in features.targets.items():
        if _of_tokens(features):
            starts, lengths = _places(features, rows)
            inside = np.arange(length) < lengths[:, None]
            made[name] = np.full(inside.shape, NO_LABEL, values.dtype)
            made[name][inside] = values[(starts[:, None] + np.arange(length))[inside]]
        else:
            made[name] = values[np.maximum(rows, 0)]
    return made


def _of_tokens(features: Features) -> bool:
    """Whether the targets are tags: one for each token rather than for each row."""
    labels = features.targets.get(LABELS)
    return labels is not None and len(labels) == len(features.input_ids) != len(features)


def for_fit(features: Features, batch_size: int, max_seq_length: int, seed: int = 0) -> tf.data.Dataset:
    """Returns batches for Keras' fit, in another order each time that they are gone through.

    Args:
        features: with targets.
        batch_size: B.
        max_seq_length: the longest length.
        seed: of the order.
    """
    lengths = row_lengths(features)
    epochs = itertools.count()
    return training_data(features, lambda: training_plan(lengths, batch_size, seed, next(epochs)), max_seq_length)


def training_data(
    features: Features,
    plan: Array | Callable[[], Array],
    max_seq_length: int,
    row_weights: Array | None = None,
    multiple: int = MULTIPLE,
) -> tf.data.Dataset:
    """Returns the batches of a plan for Keras' fit: inputs, targets and, but for tags, weights.

    Args:
        features: with targets.
        plan: as `training_plan` makes it, or a part of that; or a function that returns one for each time that the
            batches are gone through.
        max_seq_length: the longest length.
        row_weights: float32 [R], how much each row weighs; None for 1.
        multiple: as for `padded_inputs`.
    """

    def batch(rows: Array) -> tuple[Any, ...]:
        inputs = padded_inputs(features, rows, max_seq_length, multiple)
        targets = padded_targets(features, rows, inputs["input_ids"].shape[-1])
        weights = (rows >= 0).astype(np.float32)
        if row_weights is not None:
            weights *= row_weights[rows]
        if list(targets) == [LABELS]:
            return (inputs, targets[LABELS]) if _of_tokens(features) else (inputs, targets[LABELS], weights)
        return inputs, targets, dict.fromkeys(targets, weights)

    def batches() -> Iterator[tuple[Any, ...]]:
        for rows in plan() if callable(plan) else plan:
            yield batch(rows)

    first = plan() if callable(plan) else plan
    size = first.shape[1]
    signature = tf.nest.map_structure(lambda each: tf.TensorSpec((size, *each.shape[1:]), each.dtype), batch(first[0]))
    inner = (size, None) if features.choices == 1 else (size, features.choices, None)
    signature = (dict.fromkeys(signature[0], tf.TensorSpec(inner, tf.int32)), *signature[1:])
    if _of_tokens(features):
        signature = (signature[0], tf.TensorSpec((size, None), signature[1].dtype))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    made = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return made.apply(tf.data.experimental.assert_cardinality(len(first))).prefetch(4).with_options(options)
