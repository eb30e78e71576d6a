"""Splits rows into batches with little padding.

A row is what the model reads at once: the token ids of one text, of a text pair, or of a window of a long text. In
multiple choice, it is the N sequences of the choices.

The original pads every row to the maximum length. Here the rows of an epoch are shuffled and split into batches, and
each batch is padded to its longest row. To group rows by length, they are first sorted within pools of many batches,
and the batches are shuffled again. Each row occurs once per epoch. The seed and the epoch determine the batches.

Lengths are rounded up to bound the number of shapes: to a multiple of two, to a multiple of eight if XLA compiles each
shape, or to one of a few buckets if compiling takes longer still. The last batch may contain empty rows, which have no
tokens and count in no loss or metric.

B batch, S sequence, N choices, R rows
"""

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.data.dataset_options import make_dataset_options
from official_bert.errors import UserError
from official_bert.kinds.features import LABELS, MULTIPLE, NO_LABEL, Array, Features, padded_inputs, sequence_positions
from official_bert.utils.allocator import retune_allocator

COMPILED_MULTIPLE = 8  # lengths are rounded up to a multiple of it if XLA compiles each, on a CPU or GPU
_POOL = 64  # batches in a pool
_EMPTY = -1  # index of an empty row
_TRIES = 32  # batches to try for a row that shares a text with another row of its batch


def pad_batches(batch_indices: Array, multiple: int) -> Array:
    """Appends empty rows (index -1) to each batch, until the batch size is a multiple of `multiple`.

    Args:
        batch_indices: Row indices of each batch [batches, B].
        multiple: The batch size is rounded up to a multiple of this number.
    """
    return np.pad(batch_indices, ((0, 0), (0, -batch_indices.shape[1] % multiple)), constant_values=_EMPTY)


def draw_batches(
    lengths: Array,
    batch_size: int,
    seed: int,
    epoch: int,
    classes: Array | None = None,
    texts: Array | None = None,
    group_by_length: bool = False,
    prints_note: bool = True,
) -> Array:
    """Draws the batches of an epoch. Returns the row indices of each batch [batches, B] int64, with -1 for empty rows.

    Args:
        lengths: Number of tokens of each row [R].
        batch_size: Number of rows per batch, B.
        seed: Seed of the order.
        epoch: Number of the epoch.
        classes: Class of each row [R], to balance classes: the epoch has equally many rows of each, so rows of rare
            classes occur several times, and some rows of frequent classes do not occur. If None, each row occurs once.
        texts: Numbers that identify the texts of each row [R, N], where equal texts have equal numbers. Rows that share
            a text are put into different batches, and left out if they fit into none. If None, rows of a batch may
            share texts.
        group_by_length: Whether the rows of a batch have similar lengths.
        prints_note: Whether to print the number of rows that are left out.

    Raises:
        UserError: If `texts` is given and a batch has only one row.
    """
    if texts is not None and batch_size < 2:
        raise UserError(
            "the batch size is 1, but the loss compares each row with the other rows of its batch; use 2 or more"
        )
    rng = np.random.default_rng([seed, epoch])
    rows = rng.permutation(len(lengths) if classes is None else _draw_balanced_rows(classes, rng))
    pool = _POOL * batch_size
    for start in range(0, len(rows) if group_by_length else 0, pool):
        part = rows[start : start + pool]
        rows[start : start + pool] = part[np.argsort(lengths[part], kind="stable")]
    batches = split_into_batches(rows, batch_size)
    return np.asarray(rng.permutation(batches if texts is None else _separate_equal_texts(batches, texts, prints_note)))


def _separate_equal_texts(batches: Array, texts: Array, prints_note: bool) -> Array:
    """Moves rows between batches so that no two rows of a batch share a text. Rows that fit into no batch are left out.

    Args:
        batches: Row indices of each batch [batches, B].
        texts: Numbers that identify the texts of each row [R, N].
        prints_note: Whether to print the number of rows that are left out.
    """
    size = batches.shape[1]
    separated: list[tuple[list[int], set[int]]] = [([], set()) for _ in batches]  # the rows, and their texts

    def add(row: int, rows: list[int], texts_of_rows: set[int]) -> bool:
        """Adds a row to a batch unless they have a common text. Returns whether the row was added."""
        own = texts[row].tolist()
        if not texts_of_rows.isdisjoint(own):
            return False
        rows.append(row)
        texts_of_rows.update(own)
        return True

    waiting = [
        row
        for batch, rows in zip(separated, batches.tolist(), strict=True)
        for row in rows
        if row >= 0 and not add(row, *batch)
    ]
    for row in waiting:
        with_room = list(itertools.islice((batch for batch in separated if len(batch[0]) < size), _TRIES))
        any(add(row, *batch) for batch in with_room)
    count = int(np.sum(batches >= 0))
    left_out = count - sum(len(rows) for rows, _ in separated)
    if left_out and prints_note:
        print(f"note: the epoch leaves out {left_out:,} of {count:,} rows, because other rows contain the same texts")
    return np.stack([np.pad(rows, (0, size - len(rows)), constant_values=_EMPTY) for rows, _ in separated])


def _draw_balanced_rows(classes: Array, rng: np.random.Generator) -> Array:
    """Draws as many row indices as there are rows, with equally many of each class (some classes get one more).

    Args:
        classes: Class of each row [R].
        rng: The random generator.
    """
    names = rng.permutation(np.unique(classes))
    counts = [len(classes) // len(names) + (place < len(classes) % len(names)) for place in range(len(names))]
    drawn = [
        np.resize(rng.permutation(np.flatnonzero(classes == name)), n) for name, n in zip(names, counts, strict=True)
    ]
    return np.concatenate(drawn)


def split_into_batches(rows: Array, batch_size: int) -> Array:
    """Splits row indices into batches [batches, B]. The last batch is padded with -1."""
    missing = -len(rows) % batch_size
    return np.concatenate([rows, np.full(missing, _EMPTY)]).reshape(-1, batch_size)


def pad_targets(features: Features, rows: Array, length: int) -> dict[str, Array]:
    """Returns the targets of some rows, by output. Token labels are padded with NO_LABEL.

    Args:
        features: Features with targets.
        rows: Indices of the rows, with -1 for empty rows.
        length: Length to which token labels are padded.
    """
    arrays = {}
    for name, values in features.targets.items():
        if name == LABELS and features.has_token_outputs:
            starts, lengths = sequence_positions(features, rows)
            inside = np.arange(length) < lengths[:, None]
            arrays[name] = np.full(inside.shape, NO_LABEL, values.dtype)
            arrays[name][inside] = values[(starts[:, None] + np.arange(length))[inside]]
        else:
            arrays[name] = values[np.maximum(rows, 0)]
    return arrays


def pad_batch(
    features: Features,
    rows: Array,
    max_seq_length: int,
    row_weights: Array | None = None,
    multiple: int = MULTIPLE,
    buckets: Sequence[int] = (),
) -> tuple[Any, ...]:
    """Returns the arrays of a batch: padded inputs, targets and, if there are any, weights.

    Args:
        features: The features of all rows, with targets.
        rows: Indices of the batch's rows. -1 gives an empty row.
        max_seq_length: Maximum length of the padded rows.
        row_weights: Weight of each row in the loss, float32 [R], or [R, 1] for token labels. If None, all rows count
            equally.
        multiple: The length of the padded rows is rounded up to a multiple of this number.
        buckets: Lengths. If there are any, the length of the padded rows is rounded up to one of them instead.

    Returns:
        A tuple of inputs by name, targets (an array, or arrays by output) and, if `row_weights` is given, weights.
    """
    inputs = padded_inputs(features, rows, max_seq_length, multiple, buckets)
    targets = pad_targets(features, rows, inputs["input_ids"].shape[-1])
    batch = inputs, targets[LABELS] if list(targets) == [LABELS] else targets
    return batch if row_weights is None else (*batch, row_weights[rows])


def make_any_length_spec(values: Array) -> tf.TensorSpec:
    """Returns the TensorSpec of an array of a batch whose sequence length may vary.

    This is the last axis of int32 arrays with several axes. All other axes are fixed.
    """
    has_length = values.ndim > 1 and values.dtype == np.int32
    return tf.TensorSpec((*values.shape[:-1], None) if has_length else values.shape, values.dtype)


def make_dataset(
    batches: Callable[[], Iterator[tuple[Any, ...]]], cardinality: int, have_equal_sizes: bool = False
) -> tf.data.Dataset:
    """Returns a dataset for Keras' `fit` from an iterator over batches.

    Args:
        batches: Function that returns an iterator over batches. It is called for each epoch, and once before to get a
            first batch. A batch is a tuple of inputs, targets and possibly weights: arrays or dicts of arrays [B, ...].
            The last axis of int32 arrays with several axes is the sequence, whose length may vary.
        cardinality: Number of batches, or tf.data's constant for an unknown number.
        have_equal_sizes: Whether all batches have the same number of rows. If Keras knows it, its steps are faster.

    Raises:
        UserError: If `batches` yields no batch.
    """

    def spec(values: Array) -> tf.TensorSpec:
        one = make_any_length_spec(values)
        return one if have_equal_sizes else tf.TensorSpec((None, *one.shape[1:]), one.dtype)

    first = next(batches(), None)
    if first is None:
        raise UserError("the data set is empty; pass at least one example")
    options = make_dataset_options(tf.data.experimental.AutoShardPolicy.OFF)
    signature = tf.nest.map_structure(spec, first)
    # TensorFlow never releases the function passed to from_generator, so that function must not keep the data, and
    # with the data the model, in memory. The attribute keeps them as long as the data set exists.
    reference = weakref.ref(batches)

    def call() -> Iterator[tuple[Any, ...]]:
        generator = reference()
        assert generator is not None, "the data set was deleted"
        retune_allocator()  # here, because TensorFlow changes the settings when it creates the data set
        return generator()

    dataset = tf.data.Dataset.from_generator(call, output_signature=signature)
    dataset.batches = batches
    if cardinality != tf.data.UNKNOWN_CARDINALITY:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(cardinality))
    return dataset.prefetch(4).with_options(options)
