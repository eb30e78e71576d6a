"""Prepares the loss, metrics and optimizer for TextModel.compile."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.finetuning.loss_share import check_reduction
from official_bert.keras_models.losses_and_metrics import check_losses, check_metrics, reads_one_hot
from official_bert.kinds.input_adapters import format_value
from official_bert.kinds.losses import TaggingLoss
from official_bert.kinds.model import create_kind_model
from official_bert.kinds.spec import KindSpec
from official_bert.optimization.all_reduce_clip import AllReduceClipMixin
from official_bert.optimization.loss_scale import DynamicLossScale


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertOptimizerSettings:
    """Settings of BERT's optimizer, which `fit` creates once the number of steps is known.

    Raises:
        UserError: If a value is out of range.
    """

    learning_rate: float = 5e-5
    warmup_proportion: float = 0.1
    layer_decay: float = 1.0
    adam_bias_correction: bool = True

    def __post_init__(self) -> None:
        is_rate = not isinstance(self.learning_rate, bool)
        # float32 holds no more than 1e38.
        _check_number("learning_rate", self.learning_rate, is_rate, lambda x: 0 < x < 1e38, "a positive number")
        _check_number("warmup_proportion", self.warmup_proportion, True, lambda x: 0 <= x <= 1, "a number from 0 to 1")
        _check_number("layer_decay", self.layer_decay, True, lambda x: 0 < x <= 1, "a number above 0, at most 1")


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Raises a UserError if a callback sets the learning rate, because BERT's optimizer follows its own schedule."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.LearningRateScheduler | keras.callbacks.ReduceLROnPlateau):
            raise UserError(
                f"{type(callback).__name__} changes the learning rate, but the default optimizer follows a schedule; "
                "call model.compile(official_bert.BertAdamW(5e-5)) before fit, or remove the callback"
            )


def check_precision(optimizer: Any, policy_name: str) -> None:
    """Raises a UserError if the weights are not float32, but the optimizer is one of BERT's, which need that."""
    dtype = keras.dtype_policies.get(policy_name).variable_dtype
    if isinstance(optimizer, AllReduceClipMixin) and dtype != "float32":
        raise UserError(
            f"the model has dtype={policy_name}, but {type(optimizer).__name__} needs float32 weights; create the "
            "model with dtype=mixed_bfloat16 or dtype=float32, or compile an optimizer of Keras"
        )


def _check_number(name: str, value: Any, may_be_number: bool, is_valid: Any, expected: str) -> None:
    if not (may_be_number and isinstance(value, int | float | np.number) and is_valid(value)):
        raise UserError(f"{name} is {format_value(value)}; expected {expected}")


def keras_arguments(
    spec: KindSpec, loss: Any, metrics: Any, settings: Mapping[str, Any], pads_rows: bool, has_regularizers: bool
) -> dict[str, Any]:
    """Returns the arguments for keras.Model.compile, except the optimizer.

    Args:
        spec: The spec of the model's task, whose loss and metrics are the defaults.
        loss: The user's loss of logits. If None, the loss of the kind is used.
        metrics: The user's metrics of logits. If None, the metrics of the kind are used.
        settings: Further arguments that the user passed to compile.
        pads_rows: Whether batches may contain padding rows, which must not count (several replicas or micro-batches).
        has_regularizers: Whether the model has regularization losses.

    Raises:
        UserError: If the arguments contradict each other, or a loss or metric expects probabilities.
    """
    kind_model = create_kind_model(spec)
    checked_loss = kind_model.loss() if loss is None else check_losses(loss, spec)
    has_one_hot = reads_one_hot(checked_loss, spec)
    arguments = {
        "loss": checked_loss,
        "loss_weights": spec.loss_weights() if loss is None else None,
        "weighted_metrics": None,
        **settings,
        "metrics": check_metrics(kind_model.metrics() if metrics is None else metrics, spec, has_one_hot),
    }
    if arguments["weighted_metrics"]:
        arguments["weighted_metrics"] = check_metrics(arguments["weighted_metrics"], spec, has_one_hot)
    if arguments.get("jit_compile", "auto") == "auto":
        arguments["jit_compile"] = False
    if not pads_rows:
        return arguments
    where = "with several replicas or gradient accumulation,"
    check_reduction(arguments["loss"])
    if isinstance(arguments["loss"], TaggingLoss) and (arguments["loss_weights"] or has_regularizers):
        raise UserError(f"{where} the loss of tags does not support loss_weights and regularizers; remove them")
    if arguments["metrics"]:
        # Padding rows have weight 0, which Keras passes to weighted metrics only.
        if arguments["weighted_metrics"]:
            raise UserError(f"{where} metrics and weighted_metrics cannot be combined; remove one of them")
        arguments |= {"weighted_metrics": arguments["metrics"], "metrics": None}
    return arguments


def prepare_optimizer(optimizer: Any, policy_name: str, strategy: tf.distribute.Strategy) -> keras.optimizers.Optimizer:
    """Returns the optimizer, wrapped for loss scaling if the model's dtype policy is mixed_float16.

    Without loss scaling, float16 gradients underflow. Keras adds it by itself only if mixed_float16 is the global
    policy.

    Args:
        optimizer: An optimizer, or its name or configuration.
        policy_name: Name of the model's dtype policy.
        strategy: The distribution strategy of the model.

    Raises:
        UserError: If the learning rate is not finite, or the optimizer cannot scale the loss.
    """
    optimizer = keras.optimizers.get(optimizer)
    _check_rate(optimizer)
    if policy_name != "mixed_float16" or isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return optimizer
    if isinstance(optimizer, AllReduceClipMixin):
        with strategy.scope():
            optimizer.loss_scale = optimizer.loss_scale or DynamicLossScale()
        return optimizer
    if strategy.num_replicas_in_sync > 1:
        raise UserError(
            "mixed_float16 requires loss scaling, which Keras' optimizers do not support with several replicas; use "
            "BERT's optimizer, or mixed_bfloat16"
        )
    return keras.optimizers.LossScaleOptimizer(optimizer)


def _check_rate(optimizer: keras.optimizers.Optimizer) -> None:
    rate = optimizer.get_config().get("learning_rate")  # A dict for a schedule.
    if isinstance(rate, float) and not 0 <= rate < math.inf:
        raise UserError(f"the optimizer's learning_rate is {rate}; expected a finite number, 0 or more")
    schedule = getattr(optimizer, "_learning_rate", None)  # The public attribute is the current rate.
    if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        for step in (0, 1):  # NaN in the settings shows in the first steps.
            rate = float(schedule(tf.constant(step, tf.int64)))
            if not 0 <= rate < math.inf:
                raise UserError(
                    f"the optimizer's schedule returns {rate} for step {step}; expected a finite number, 0 or more"
                )
