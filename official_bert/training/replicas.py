"""Distributes the rows of a batch over the replicas of a strategy.

B batch
"""

import itertools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from official_bert.optimization import distribution

_SHORTEST_BUCKET = 32


def make_length_buckets(max_seq_length: int) -> tuple[int, ...]:
    """Returns the lengths that batches are padded to if few shapes may occur: 32, 64, 128, ..., `max_seq_length`."""
    doubled = itertools.takewhile(lambda length: length < max_seq_length, (_SHORTEST_BUCKET << n for n in range(31)))
    return (*doubled, max_seq_length)


def distribute_rows(strategy: tf.distribute.Strategy, batch: Any) -> Any:
    """Returns each replica's rows of a batch, for strategy.run; to be called within a tf.function.

    Args:
        strategy: that of the replicas.
        batch: tensors [B, ...] in any structure; B is a multiple of the replicas.
    """
    replicas = strategy.num_replicas_in_sync
    if replicas == 1:
        return batch

    def rows_of(context: tf.distribute.experimental.ValueContext) -> Any:
        def part(values: tf.Tensor) -> tf.Tensor:
            rows = count_rows(values) // replicas
            first = context.replica_id_in_sync_group * rows
            return values[first : first + rows]

        return tf.nest.map_structure(part, batch)

    return strategy.experimental_distribute_values_from_function(rows_of)


def get_static_lengths(strategy: tf.distribute.Strategy, max_seq_length: int) -> tuple[int, ...]:
    """Returns the lengths that batches are padded to, each of which is compiled once; none where lengths are free."""
    return make_length_buckets(max_seq_length) if distribution.needs_static_shapes(strategy) else ()


def report_compilation(what: str, inputs: Mapping[str, Any], lengths: tuple[int, ...]) -> None:
    """Prints the shape that is being compiled where each of some lengths is; to be called while a graph is traced."""
    if lengths:
        shape = " x ".join(map(str, inputs["input_ids"].shape))
        print(f"compiling {what} for {shape}, one of {len(lengths)} lengths at most", flush=True)


def count_rows(values: tf.Tensor) -> Any:
    """Returns B: a number where the graph knows it."""
    return get_sizes(values)[0]


def get_sizes(values: tf.Tensor) -> list[Any]:
    """Returns the sizes of all axes: numbers where the graph knows them, as a TPU wants it."""
    return [tf.shape(values)[axis] if size is None else size for axis, size in enumerate(values.shape)]
