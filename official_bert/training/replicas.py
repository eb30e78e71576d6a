"""Divides the rows of a batch among the replicas of a distribution strategy.

B batch size
"""

import itertools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from official_bert.optimization import distribution

_SHORTEST_BUCKET = 32


def make_length_buckets(max_seq_length: int) -> tuple[int, ...]:
    """Returns the sequence lengths that batches are padded to if few shapes are allowed.

    They are 32, 64, 128 and so on, and max_seq_length.
    """
    doubled = itertools.takewhile(lambda length: length < max_seq_length, (_SHORTEST_BUCKET << n for n in range(31)))
    return (*doubled, max_seq_length)


def distribute_rows(strategy: tf.distribute.Strategy, batch: Any) -> Any:
    """Splits a batch into equal parts, one for each replica, for `strategy.run`. Call it within a tf.function.

    Args:
        strategy: The distribution strategy.
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
    """Returns the sequence lengths that batches are padded to under a strategy that compiles each shape separately.

    Returns an empty tuple for other strategies (all but TPUs), which allow any length.
    """
    return make_length_buckets(max_seq_length) if distribution.needs_static_shapes(strategy) else ()


def report_compilation(step: str, inputs: Mapping[str, Any], lengths: tuple[int, ...]) -> None:
    """Prints the shape of a step that is being compiled. Does nothing if `lengths` is empty. Call it while tracing.

    Args:
        step: Name of the step, such as "prediction".
        inputs: The model's inputs by name.
        lengths: All sequence lengths that will be compiled.
    """
    if lengths:
        shape = " x ".join(map(str, inputs["input_ids"].shape))
        print(f"compiling {step} for inputs of shape {shape}, one of at most {len(lengths)} shapes", flush=True)


def count_rows(values: tf.Tensor) -> Any:
    """Returns the size of the first axis, as an int if it is static, else as a scalar tensor."""
    return get_sizes(values)[0]


def get_sizes(values: tf.Tensor) -> list[Any]:
    """Returns the sizes of all axes. Static sizes are ints, which TPUs need, and others are scalar tensors."""
    return [tf.shape(values)[axis] if size is None else size for axis, size in enumerate(values.shape)]
