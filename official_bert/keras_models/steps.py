"""What Keras' fit and evaluate call for each batch where several replicas, or a TPU, take the steps.

Keras' own functions take the mean of the replicas' means, which is another number where replicas have different numbers
of rows, and fail under a strategy of several workers.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from official_bert.optimization import distribution


def takes_own_steps(strategy: tf.distribute.Strategy) -> bool:
    """Whether Keras' own functions would not do."""
    return (
        strategy.num_replicas_in_sync > 1
        or distribution.is_multi_worker(strategy)
        or distribution.needs_static_shapes(strategy)
    )


def on_all_replicas(model: keras.Model, step: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    """Returns what fit and evaluate call: takes steps on batches, and returns the metrics.

    Args:
        model: in fit or evaluate.
        step: of a replica, which updates the metrics.
    """
    strategy = model.distribute_strategy

    def step_and_metrics(data: Any) -> dict[str, Any]:
        strategy.run(step, args=(data,))
        return model.get_metrics_result()

    is_static = distribution.needs_static_shapes(strategy)
    traced = tf.function(step_and_metrics, reduce_retracing=not is_static, autograph=False)

    def function(batches: Any) -> dict[str, Any]:
        metrics: dict[str, Any] = {}
        for _, data in zip(range(model.steps_per_execution), batches, strict=False):
            metrics = traced(_without_optionals(data))
        if not metrics:
            raise StopIteration
        return metrics

    return function


def _without_optionals(data: Any) -> Any:
    """What Keras' adapters hand over where there is nothing, such as no weights, becomes None."""
    return tuple(None if isinstance(part, tf.experimental.Optional) else part for part in data)


def shared_out(strategy: tf.distribute.Strategy, batches: tf.data.Dataset) -> Any:
    """Returns batches, of a multiple of the replicas' rows, for fit and evaluate.

    Keras has them shared out among the replicas of one process; this does it where there are several.
    """
    if not distribution.is_multi_worker(strategy):
        return batches
    steps = int(batches.cardinality())
    parts_of_step = 1

    def of_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
        nonlocal parts_of_step
        replicas = context.num_replicas_in_sync
        parts_of_step = replicas // context.num_input_pipelines

        def parts_of(*batch: Any) -> tf.data.Dataset:
            rows = tf.shape(tf.nest.flatten(batch)[0], tf.int64)[0] // replicas

            def part(number: tf.Tensor) -> Any:
                first = (context.input_pipeline_id * parts_of_step + number) * rows
                return tf.nest.map_structure(lambda each: each[first : first + rows], batch)

            return tf.data.Dataset.range(parts_of_step).map(part)

        parts = batches.flat_map(parts_of)
        return parts.apply(tf.data.experimental.assert_cardinality(steps * parts_of_step)) if steps > 0 else parts

    shared = strategy.distribute_datasets_from_function(of_worker)
    if parts_of_step > 1:
        shared._cardinality = steps  # Keras takes it for the steps; TensorFlow counts each replica's part
    return shared
