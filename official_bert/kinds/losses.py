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
    """Passes labels and logits to a Keras metric in the form that it reads.

    y_true is the index of a row's class, [B] or [B, 1], or a number for each class, [B, C]. y_pred is logits, [B, C].
    The metric receives indices or rows, and logits or probabilities, depending on its class and its settings. With two
    classes of which each row has one, metrics such as AUC and Precision receive the second class only, as a positive
    class. With more classes, they count the decisions on all classes together.

    Args:
        metric: The Keras metric.
        is_single_label: Whether each row has exactly one label.
    """

    def __init__(self, metric: Any, is_single_label: bool, **settings: Any) -> None:
        self.metric, self._is_single_label = metric, is_single_label
        super().__init__(**{"name": metric.name, **settings})

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        ops, classes = keras.ops, y_pred.shape[-1]
        has_rows = len(y_true.shape) == 2 and y_true.shape[-1] == classes
        if has_rows and reads_indices(self.metric):
            y_true = ops.argmax(y_true, axis=-1)
        elif not has_rows and not reads_indices(self.metric):
            y_true = ops.one_hot(ops.cast(ops.reshape(y_true, [-1]), "int32"), classes)
        if not reads_logits(self.metric):
            y_pred = ops.softmax(y_pred) if self._is_single_label else ops.sigmoid(y_pred)
            # For a softmax, Keras' binary cross-entropy would read the logits, which the copy does not have.
            y_pred = tf.identity(y_pred) if _is_binary(self.metric) else y_pred
        if self._is_single_label and classes == 2 and _reads_positive_class(self.metric):
            # The difference of two logits is the logit of the second class.
            y_pred = y_pred[:, 1:] - (y_pred[:, :1] if reads_logits(self.metric) else 0.0)
            y_true = y_true[:, 1:]
        self.metric.update_state(y_true, y_pred, sample_weight=sample_weight)

    def result(self) -> Any:
        return self.metric.result()

    def reset_state(self) -> None:
        self.metric.reset_state()

    def get_config(self) -> dict[str, Any]:
        metric = keras.saving.serialize_keras_object(self.metric)
        return {**super().get_config(), "metric": metric, "is_single_label": self._is_single_label}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "MetricOfClasses":
        return cls(**{**config, "metric": keras.saving.deserialize_keras_object(config["metric"])})


def reads_indices(loss_or_metric: Any) -> bool:
    """Returns whether a Keras loss or metric of classes reads the index of a row's class, not a number per class."""
    return type(loss_or_metric).__name__.startswith("Sparse")


def reads_logits(metric: Any) -> bool:
    """Returns whether a Keras metric of classes reads logits, for which 0 is the threshold of a probability of 0.5."""
    config = metric.get_config()
    if "from_logits" in config:
        return bool(config["from_logits"])
    thresholds = config.get("thresholds", config.get("threshold"))
    return thresholds in (0, [0]) or not (
        _is_thresholded(metric) or isinstance(metric, keras.metrics.FBetaScore | keras.metrics.KLDivergence)
    )


def _is_thresholded(metric: Any) -> bool:
    return not {"threshold", "thresholds", "num_thresholds"}.isdisjoint(metric.get_config())


def _is_binary(metric: Any) -> bool:
    """Returns whether a Keras metric decides on each class by itself."""
    is_score_of_classes = isinstance(metric, keras.metrics.FBetaScore)
    return not is_score_of_classes and (_is_thresholded(metric) or type(metric).__name__.startswith("Binary"))


def _reads_positive_class(metric: Any) -> bool:
    """Returns whether a Keras metric reads a binary label and an output per row, unless its settings name classes."""
    config = metric.get_config()
    names_classes = config.get("class_id") is not None or config.get("top_k") or config.get("multi_label")
    return _is_binary(metric) and not names_classes
