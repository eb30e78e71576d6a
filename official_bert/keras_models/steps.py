"""Functions for the training and evaluation steps of FittingModel.

B rows of one replica
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from official_bert.optimization import distribution


def uses_own_loop(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether Keras' own train and test functions must be replaced.

    This is the case with several replicas, and on TPUs.
    """
    return strategy.num_replicas_in_sync > 1 or distribution.needs_static_shapes(strategy)


def run_on_replicas(model: keras.Model, step: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    """Returns the function that fit or evaluate calls with an iterator of batches: it runs `step` on all replicas.

    Args:
        model: The model, which has the metrics.
        step: The step on one replica, which updates the metrics.

    Returns:
        A function that runs steps_per_execution steps and returns the metrics and their current values.
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
            # For a batch without weights, Keras' data adapters pass an Optional.
            metrics = traced(tuple(None if isinstance(part, tf.experimental.Optional) else part for part in data))
        if not metrics:
            raise StopIteration
        return metrics

    return function


def add_axis(y: Any, outputs: Any) -> tuple[Any, Any]:
    """Reshapes targets and outputs from [B] to [B, 1]. Other shapes are returned unchanged.

    Keras would average values of shape [B] before it applies sample weights.
    """
    if not isinstance(y, dict) and len(y.shape) == len(outputs.shape) == 1:
        return y[:, None], outputs[:, None]
    return y, outputs
