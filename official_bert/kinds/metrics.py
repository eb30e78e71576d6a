"""What fit shows of heads for which Keras has no metric.

B batch, S sequence, C classes
"""

from typing import Any

import keras

from official_bert.kinds.features import NO_LABEL
from official_bert.kinds.losses import by_token


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
class MetricOfClasses(keras.metrics.Metric):
    """A metric that takes rows of 0 and 1 and probabilities, such as F1Score, of logits [B, C].

    y_true is the number of a row's class, [B] or [B, 1], or 0 and 1 for each class, [B, C].

    Args:
        metric: that it is.
        has_one_class: whether a row is of one of the classes, and not of any number of them.
    """

    def __init__(self, metric: Any, has_one_class: bool, **settings: Any) -> None:
        self.metric, self._has_one_class = metric, has_one_class
        super().__init__(**{"name": metric.name, **settings})

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        ops, classes = keras.ops, y_pred.shape[-1]
        if len(y_true.shape) == 1 or y_true.shape[-1] != classes:
            y_true = ops.one_hot(ops.cast(ops.reshape(y_true, [-1]), "int32"), classes)
        y_pred = ops.softmax(y_pred) if self._has_one_class else ops.sigmoid(y_pred)
        self.metric.update_state(y_true, y_pred, sample_weight=sample_weight)

    def result(self) -> Any:
        return self.metric.result()

    def reset_state(self) -> None:
        self.metric.reset_state()

    def get_config(self) -> dict[str, Any]:
        metric = keras.saving.serialize_keras_object(self.metric)
        return {**super().get_config(), "metric": metric, "has_one_class": self._has_one_class}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "MetricOfClasses":
        return cls(**{**config, "metric": keras.saving.deserialize_keras_object(config["metric"])})
