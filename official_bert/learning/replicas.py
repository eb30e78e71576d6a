"""Batches over the replicas of a strategy: each gets its rows.

B batch
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from official_bert.learning import batches
from official_bert.optimization import distribution


def shared_out(strategy: tf.distribute.Strategy, batch: Any) -> Any:
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
            rows = number_of_rows(values) // replicas
            first = context.replica_id_in_sync_group * rows
            return values[first : first + rows]

        return tf.nest.map_structure(part, batch)

    return strategy.experimental_distribute_values_from_function(rows_of)


def static_lengths(strategy: tf.distribute.Strategy, max_seq_length: int) -> tuple[int, ...]:
    """Returns the lengths that batches are padded to, each of which is compiled once; none where lengths are free."""
    return batches.length_buckets(max_seq_length) if distribution.needs_static_shapes(strategy) else ()


def say_compiling(what: str, inputs: Mapping[str, Any], lengths: tuple[int, ...]) -> None:
    """Prints the shape that is being compiled where each of some lengths is; to be called while a graph is traced."""
    if lengths:
        shape = " x ".join(map(str, inputs["input_ids"].shape))
        print(f"compiling {what} for {shape}, one of {len(lengths)} lengths at most", flush=True)


def number_of_rows(values: tf.Tensor) -> Any:
    """Returns B: a number where the graph knows it."""
    return sizes_of(values)[0]


def sizes_of(values: tf.Tensor) -> list[Any]:
    """Returns the sizes of all axes: numbers where the graph knows them, as a TPU wants it."""
    return [tf.shape(values)[axis] if size is None else size for axis, size in enumerate(values.shape)]
