"""What fit shows of heads for which Keras has no metric.

B batch, S sequence, C classes
"""

from typing import Any

import keras

from official_bert.tasks.heads.features import NO_LABEL
from official_bert.tasks.heads.losses import by_token


@keras.saving.register_keras_serializable(package="official_bert")
class TagAccuracy(keras.metrics.Metric):
    """The share of right tags among the tokens that have one: y_true [B, S], y_pred [B, S, C] logits.

    Weights are those of rows, [B] or [B, 1], or of tokens, [B, S].
    """

    def __init__(self, name: str = "accuracy", **settings: Any) -> None:
        super().__init__(name=name, **settings)
        self._right = self.add_weight(name="right", initializer="zeros")
        self._all = self.add_weight(name="all", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        y_true = keras.ops.cast(y_true, "int32")
        has_tag = keras.ops.not_equal(y_true, NO_LABEL)
        is_right = keras.ops.equal(keras.ops.cast(keras.ops.argmax(y_pred, axis=-1), "int32"), y_true)
        weight = keras.ops.cast(has_tag, "float32")
        if sample_weight is not None:
            weight = weight * by_token(sample_weight)
        self._right.assign_add(keras.ops.sum(weight * keras.ops.cast(is_right, "float32")))
        self._all.assign_add(keras.ops.sum(weight))

    def result(self) -> Any:
        return keras.ops.divide_no_nan(self._right, self._all)


@keras.saving.register_keras_serializable(package="official_bert")
class AbsoluteError(keras.metrics.Mean):
    """The mean of absolute errors over all rows: Keras' own metric takes that of the batches', however small."""

    def __init__(self, name: str = "mean_absolute_error", **settings: Any) -> None:
        super().__init__(name=name, **settings)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        errors = keras.ops.abs(y_pred - keras.ops.cast(y_true, y_pred.dtype))
        super().update_state(errors, sample_weight)
