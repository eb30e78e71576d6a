"""Losses and metrics that Keras does not have.

B batch, S sequence, C classes
"""

import abc
from typing import Any

import keras
import tensorflow as tf

from official_bert.kinds.features import NO_LABEL


class BatchLoss(keras.losses.Loss, abc.ABC):
    """A loss whose rows depend on the other rows of the batch."""

    @abc.abstractmethod
    def losses_of_rows(self, y_true: Any, y_pred: Any, is_row: Any) -> Any:
        """Returns the loss of each row, float32 [B].

        Args:
            y_true: The labels that `call` takes.
            y_pred: The outputs of the whole batch.
            is_row: float32 [B], 1 for each row, 0 for padding, which is not compared with other rows.
        """


@keras.saving.register_keras_serializable(package="official_bert")
class TaggingLoss(keras.losses.Loss):
    """The cross-entropy of tags, averaged over the tokens that have a tag.

    Keras averages the result of `call` over all tokens. Each loss is therefore divided by the share of tokens that have
    a tag, which gives the mean over these tokens. With several replicas, finetuning.loss_share divides instead.

    y_true is int32 [B, S], with NO_LABEL for tokens without a tag. y_pred is logits, [B, S, C]. `call` returns [B, S].
    Sample weights are per row, [B] or [B, 1], or per token, [B, S].
    """

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        # Keras would multiply weights [B] with losses [B, S] along the wrong axis.
        return super().__call__(y_true, y_pred, None if sample_weight is None else expand_token_weights(sample_weight))

    def token_losses(self, y_true: Any, y_pred: Any) -> tuple[Any, Any]:
        """Returns the loss of each token, and 1 for tokens with a tag, else 0. Both are float32 [B, S]."""
        has_tag = keras.ops.cast(keras.ops.not_equal(y_true, NO_LABEL), "float32")
        tags = keras.ops.maximum(keras.ops.cast(y_true, "int32"), 0)
        losses = keras.losses.sparse_categorical_crossentropy(tags, y_pred, from_logits=True)  # [B, S]
        return losses * has_tag, has_tag

    def call(self, y_true: Any, y_pred: Any) -> Any:
        losses, has_tag = self.token_losses(y_true, y_pred)
        return losses / keras.ops.maximum(keras.ops.mean(has_tag), 1e-9)


def expand_token_weights(weights: Any) -> Any:
    """Returns weights of rows as float32 [B, 1]. Weights of tokens, [B, S], keep their shape."""
    weights = tf.cast(weights, tf.float32)
    if weights.shape.rank is None:  # after Keras has seen weights of rows and of tokens
        return tf.reshape(weights, [tf.shape(weights)[0], -1])
    return weights[:, None] if weights.shape.rank == 1 else weights


@keras.saving.register_keras_serializable(package="official_bert")
class TagAccuracy(keras.metrics.Metric):
    """The share of correct tags among the tokens that have a tag.

    y_true is int32 [B, S], with NO_LABEL for tokens without a tag. y_pred is logits, [B, S, C]. Sample weights are per
    row, [B] or [B, 1], or per token, [B, S].
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
            weight = weight * expand_token_weights(sample_weight)
        self._right.assign_add(keras.ops.sum(weight * keras.ops.cast(is_right, "float32")))
        self._all.assign_add(keras.ops.sum(weight))

    def result(self) -> Any:
        return keras.ops.divide_no_nan(self._right, self._all)


@keras.saving.register_keras_serializable(package="official_bert")
class MetricOfClasses(keras.metrics.Metric):
    """Computes a metric of one-hot labels and probabilities, such as F1Score, from class indices and logits [B, C].

    y_true is the index of a row's class, [B] or [B, 1], or 0 and 1 for each class, [B, C].

    Args:
        metric: The Keras metric.
        is_single_label: Whether each row has exactly one label.
    """

    def __init__(self, metric: Any, is_single_label: bool, **settings: Any) -> None:
        self.metric, self._has_one_class = metric, is_single_label
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
        return {**super().get_config(), "metric": metric, "is_single_label": self._has_one_class}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "MetricOfClasses":
        return cls(**{**config, "metric": keras.saving.deserialize_keras_object(config["metric"])})
