"""Batches of rows with little padding.

The original pads every row to the longest allowed. Here an epoch's rows are shuffled and cut into batches, each of
which is padded to its longest row. To group rows by length, they are sorted within pools of many batches first, and the
batches are shuffled again. Every row is in one batch of an epoch. Which rows share a batch is a function of seed and
epoch. Lengths are rounded up, so that the number of shapes is bounded: to a multiple of two; where XLA compiles each,
of eight; where compiling takes longer still, to one of a few buckets. The last batch may be filled up with rows without
a token, which count in nothing.

B batch, S sequence, N choices, R rows
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.data.dataset_options import dataset_options
from official_bert.errors import UserError
from official_bert.kinds.features import LABELS, NO_LABEL, Array, Features
from official_bert.kinds.rows import MULTIPLE as MULTIPLE
from official_bert.kinds.rows import padded_inputs as padded_inputs
from official_bert.kinds.rows import row_lengths as row_lengths
from official_bert.kinds.rows import sequence_positions
from official_bert.utils.allocator import retune_allocator

COMPILED_MULTIPLE = 8  # of which lengths are where XLA compiles each, on a CPU or GPU
_POOL = 64  # batches
_FILLER = -1  # in batch indices: no row
_TRIES = 32  # batches in which room is sought for a row that shares a text with one of its own batch


def pad_batches(batch_indices: Array, multiple: int) -> Array:
    """Returns batches, [batches, B], with empty rows (-1) after each batch, up to a multiple of rows."""
    return np.pad(batch_indices, ((0, 0), (0, -batch_indices.shape[1] % multiple)), constant_values=_FILLER)


def draw_batches(
    lengths: Array,
    batch_size: int,
    seed: int,
    epoch: int,
    classes: Array | None = None,
    texts: Array | None = None,
    group_by_length: bool = False,
) -> Array:
    """Returns which rows make each batch of an epoch: int64 [batches, B], -1 where a batch is filled up.

    Args:
        lengths: of the rows, [R].
        batch_size: B.
        seed: of the order.
        epoch: its number.
        classes: of the rows, [R]: as many rows of each class are taken, those of rare ones several times and those of
            frequent ones not all; None takes every row once.
        texts: of the rows, [R, N], equal for equal texts: rows that have one in common do not share a batch, and those
            for which there is no such batch are left out, with a line that counts them; None takes any rows together.
        group_by_length: Whether the rows of a batch have similar lengths.

    Raises:
        UserError: rows are to learn from the others of their batch, which has one row alone.
    """
    if texts is not None and batch_size < 2:
        raise UserError("batches of one row have nothing to tell its texts from; take a larger batch size")
    rng = np.random.default_rng([seed, epoch])
    rows = rng.permutation(len(lengths) if classes is None else _balanced(classes, rng))
    pool = _POOL * batch_size
    for start in range(0, len(rows) if group_by_length else 0, pool):
        part = rows[start : start + pool]
        rows[start : start + pool] = part[np.argsort(lengths[part], kind="stable")]
    batches = split_into_batches(rows, batch_size)
    return np.asarray(rng.permutation(batches if texts is None else _separate_equal_texts(batches, texts)))


def _separate_equal_texts(batches: Array, texts: Array) -> Array:
    """The batches, [batches, B], in none of which two rows have a text, [R, N], in common; -1 fills what is left."""
    size = batches.shape[1]
    kept = [_BatchOfDistinctTexts(texts) for _ in batches]
    waiting = [
        row
        for batch, rows in zip(kept, batches.tolist(), strict=True)
        for row in rows
        if row >= 0 and not batch.add(row)
    ]
    for row in waiting:
        with_room = list(itertools.islice((batch for batch in kept if len(batch.rows) < size), _TRIES))
        if not any(batch.add(row) for batch in with_room):
            # A batch takes it in place of a row for which there is room elsewhere.
            any(batch.exchange(row, with_room[0]) for batch in itertools.islice(kept, _TRIES))
    rows = int(np.sum(batches >= 0))
    if left_out := rows - sum(len(batch.rows) for batch in kept):
        print(f"note: {left_out:,} of {rows:,} rows are left out of an epoch, since others have the same texts")
    return np.stack([np.pad(batch.rows, (0, size - len(batch.rows)), constant_values=_FILLER) for batch in kept])


class _BatchOfDistinctTexts:
    """A batch of rows without a text in common."""

    def __init__(self, texts: Array) -> None:
        self.rows: list[int] = []
        self._texts = texts
        self._places: dict[int, int] = {}  # among the rows, of the one that has a text

    def add(self, row: int) -> bool:
        """Takes a row if it shares no text with those that are here; returns whether it does."""
        own = self._texts[row].tolist()
        if any(text in self._places for text in own):
            return False
        self._places |= dict.fromkeys(own, len(self.rows))
        self.rows.append(row)
        return True

    def exchange(self, row: int, room: "_BatchOfDistinctTexts") -> bool:
        """Takes a row in place of one that `room` takes; returns whether that was possible."""
        own = self._texts[row].tolist()
        in_common = {self._places[text] for text in own if text in self._places}
        places = range(len(self.rows)) if not in_common else in_common if len(in_common) == 1 else ()
        for place in places:
            other = self.rows[place]
            if room is not self and room.add(other):
                for text in self._texts[other].tolist():
                    self._places.pop(text, None)
                self.rows[place] = row
                self._places |= dict.fromkeys(own, place)
                return True
        return False


def _balanced(classes: Array, rng: np.random.Generator) -> Array:
    """As many rows as there are classes' numbers, of each class that occurs as many, or one more."""
    names = rng.permutation(np.unique(classes))
    counts = [len(classes) // len(names) + (place < len(classes) % len(names)) for place in range(len(names))]
    drawn = [
        np.resize(rng.permutation(np.flatnonzero(classes == name)), n) for name, n in zip(names, counts, strict=True)
    ]
    return np.concatenate(drawn)


def batch_by_length(lengths: Array, batch_size: int) -> Array:
    """Returns batches in the order of length, as `draw_batches` does."""
    return split_into_batches(np.argsort(lengths, kind="stable"), batch_size)


def split_into_batches(rows: Array, batch_size: int) -> Array:
    """Returns rows in batches, [batches, B], the last one filled up with -1."""
    missing = -len(rows) % batch_size
    return np.concatenate([rows, np.full(missing, _FILLER)]).reshape(-1, batch_size)


def pad_targets(features: Features, rows: Array, length: int) -> dict[str, Array]:
    """Returns the targets of some rows; those of tokens are padded with NO_LABEL to the length."""
    arrays = {}
    for name, values in features.targets.items():
        if _has_token_targets(features):
            starts, lengths = sequence_positions(features, rows)
            inside = np.arange(length) < lengths[:, None]
            arrays[name] = np.full(inside.shape, NO_LABEL, values.dtype)
            arrays[name][inside] = values[(starts[:, None] + np.arange(length))[inside]]
        else:
            arrays[name] = values[np.maximum(rows, 0)]
    return arrays


def _has_token_targets(features: Features) -> bool:
    """Whether the targets are tags: one for each token rather than for each row."""
    labels = features.targets.get(LABELS)
    return labels is not None and len(labels) == len(features.input_ids) != len(features)


def pad_batch(
    features: Features,
    rows: Array,
    max_seq_length: int,
    row_weights: Array | None = None,
    multiple: int = MULTIPLE,
    buckets: Sequence[int] = (),
) -> tuple[Any, ...]:
    """Returns inputs, targets (an array, or arrays by output) and, where rows weigh differently, weights of some rows.

    Args:
        features: with targets.
        rows: the number of each; -1 gives an empty row.
        max_seq_length: the longest length.
        row_weights: float32 [R], or [R, 1] for tags, how much each row weighs; None for 1.
        multiple: as for `padded_inputs`.
        buckets: as for `padded_inputs`.
    """
    inputs = padded_inputs(features, rows, max_seq_length, multiple, buckets)
    targets = pad_targets(features, rows, inputs["input_ids"].shape[-1])
    batch = inputs, targets[LABELS] if list(targets) == [LABELS] else targets
    return batch if row_weights is None else (*batch, row_weights[rows])


def make_any_length_spec(values: Array) -> tf.TensorSpec:
    """Returns the specification of arrays like this one, of any length S where they have one.

    That is the last axis of int32 arrays of several axes.
    """
    is_of_tokens = values.ndim > 1 and values.dtype == np.int32
    return tf.TensorSpec((*values.shape[:-1], None) if is_of_tokens else values.shape, values.dtype)


def make_dataset(
    batch: Callable[[Array], tuple[Any, ...]], batch_indices: Sequence[Array] | Array | Callable[[], Sequence[Array]]
) -> tf.data.Dataset:
    """Returns a data set for Keras' fit.

    Args:
        batch: from the numbers of some rows to inputs, targets and maybe weights: arrays, or dicts of arrays, whose
            first axis is the rows. The last axis of int32 arrays with several is the sequence, whose length differs.
        batch_indices: the rows of each batch; or a function that returns them for each time that they are gone through.
    """

    def batches() -> Iterator[tuple[Any, ...]]:
        retune_allocator()  # this runs when TensorFlow has made the data set
        for rows in batch_indices() if callable(batch_indices) else batch_indices:
            yield batch(rows)

    first = batch_indices() if callable(batch_indices) else batch_indices
    sizes = {len(rows) for rows in first}
    size = sizes.pop() if len(sizes) == 1 else None

    return _from_generator(batches, batch(first[0]), size, len(first))


def make_streamed_dataset(batches: Callable[[], Iterator[tuple[Any, ...]]], cardinality: int) -> tf.data.Dataset:
    """Returns a data set for Keras' fit of batches of any size, as a generator yields them.

    Args:
        batches: Returns an iterator over what `batch` of `make_dataset` returns. Called for each pass over the data,
            and once before, for a first batch.
        cardinality: their number, or what tf.data has for one that is not known.

    Raises:
        UserError: there are none.
    """
    first = next(batches(), None)
    if first is None:
        raise UserError("there are no examples: the data set is empty")
    return _from_generator(batches, first, None, cardinality)


def _from_generator(
    batches: Callable[[], Iterator[tuple[Any, ...]]], first: tuple[Any, ...], size: int | None, cardinality: int
) -> tf.data.Dataset:
    def spec(values: Array) -> tf.TensorSpec:
        one = make_any_length_spec(values)
        return tf.TensorSpec((size, *one.shape[1:]), one.dtype)

    options = dataset_options(tf.data.experimental.AutoShardPolicy.OFF)
    signature = tf.nest.map_structure(spec, first)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    if cardinality != tf.data.UNKNOWN_CARDINALITY:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(cardinality))
    return dataset.prefetch(4).with_options(options)
