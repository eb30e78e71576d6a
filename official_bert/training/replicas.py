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
    """Splits a batch into the rows of each replica, for `strategy.run`. Call it within a tf.function.

    Args:
        strategy: The strategy of the replicas.
        batch: A structure of tensors [B, ...]. B must be a multiple of the number of replicas.
    """
    replicas = strategy.num_replicas_in_sync
    if replicas == 1:
        return batch

    def take_rows(context: tf.distribute.experimental.ValueContext) -> Any:
        def part(values: tf.Tensor) -> tf.Tensor:
            rows = count_rows(values) // replicas
            first = context.replica_id_in_sync_group * rows
            return values[first : first + rows]

        return tf.nest.map_structure(part, batch)

    return strategy.experimental_distribute_values_from_function(take_rows)


def get_static_lengths(strategy: tf.distribute.Strategy, max_seq_length: int) -> tuple[int, ...]:
    """Returns the lengths that batches are padded to, each compiled once. Empty if any length is allowed."""
    return make_length_buckets(max_seq_length) if distribution.needs_static_shapes(strategy) else ()


def report_compilation(step: str, inputs: Mapping[str, Any], lengths: tuple[int, ...]) -> None:
    """Prints the shape that is compiled, if each of `lengths` is. Call it while the graph is traced."""
    if lengths:
        shape = " x ".join(map(str, inputs["input_ids"].shape))
        print(f"compiling {step} for {shape}, one of at most {len(lengths)} lengths", flush=True)


def count_rows(values: tf.Tensor) -> Any:
    """Returns B, as a number if the shape is static."""
    return get_sizes(values)[0]


def get_sizes(values: tf.Tensor) -> list[Any]:
    """Returns the sizes of all axes, as numbers if they are static, which TPUs need."""
    return [tf.shape(values)[axis] if size is None else size for axis, size in enumerate(values.shape)]
