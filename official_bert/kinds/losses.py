"""Losses and metrics that Keras does not have.

B batch size, S sequence length, C classes
"""

import abc
from typing import Any

import keras
import tensorflow as tf

from official_bert.kinds.features import NO_LABEL


class BatchLoss(keras.losses.Loss, abc.ABC):
    """Base class of losses that compare each example with the other examples of the batch, as contrastive losses do."""

    @abc.abstractmethod
    def compute_row_losses(self, y_true: Any, y_pred: Any, is_row: Any) -> Any:
        """Returns the loss of each example, float32 [B].

        Args:
            y_true: The labels, as in `call`.
            y_pred: The model's outputs for the whole batch.
            is_row: 1 for examples and 0 for padding, float32 [B]. Examples are not compared with padding.
        """


@keras.saving.register_keras_serializable(package="official_bert")
class TaggingLoss(keras.losses.Loss):
    """The cross-entropy of tags, averaged over the tokens that have a tag.

    `call` returns a loss for each token, [B, S], which Keras averages over all tokens. The losses are therefore divided
    by the share of tokens that have a tag. Under several replicas, finetuning.loss_share divides the sum instead.

    y_true is int32 [B, S], with NO_LABEL for tokens without a tag. y_pred is logits, [B, S, C]. Sample weights are per
    text, [B] or [B, 1], or per token, [B, S].
    """

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        # Keras would multiply weights [B] with losses [B, S] along the wrong axis.
        return super().__call__(y_true, y_pred, None if sample_weight is None else expand_token_weights(sample_weight))

    def token_losses(self, y_true: Any, y_pred: Any) -> tuple[Any, Any]:
        """Returns the cross-entropy of each token, 0 for tokens without a tag, and which tokens have a tag (1 or 0).

        Args:
            y_true: The tag index of each token or NO_LABEL, int32 [B, S].
            y_pred: Logits, [B, S, C].

        Returns:
            Two float32 tensors, [B, S].
        """
        has_tag = keras.ops.cast(keras.ops.not_equal(y_true, NO_LABEL), "float32")
        tags = keras.ops.maximum(keras.ops.cast(y_true, "int32"), 0)
        losses = keras.losses.sparse_categorical_crossentropy(tags, y_pred, from_logits=True)  # [B, S]
        return losses * has_tag, has_tag

    def call(self, y_true: Any, y_pred: Any) -> Any:
        losses, has_tag = self.token_losses(y_true, y_pred)
        return losses / keras.ops.maximum(keras.ops.mean(has_tag), 1e-9)


def expand_token_weights(weights: Any) -> Any:
    """Expands sample weights per text, [B], to float32 [B, 1], so that they broadcast over tokens.

    Weights of shape [B, 1] or per token, [B, S], keep their shape.
    """
    weights = tf.cast(weights, tf.float32)
    if weights.shape.rank is None:  # after Keras has seen weights of rows and of tokens
        return tf.reshape(weights, [tf.shape(weights)[0], -1])
    return weights[:, None] if weights.shape.rank == 1 else weights


@keras.saving.register_keras_serializable(package="official_bert")
class TagAccuracy(keras.metrics.Mean):
    """The share of correct tags among the tokens that have a tag.

    y_true is int32 [B, S], with NO_LABEL for tokens without a tag. y_pred is logits, [B, S, C]. Sample weights are per
    text, [B] or [B, 1], or per token, [B, S].
    """

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        y_true = keras.ops.cast(y_true, "int32")
        weight = keras.ops.cast(keras.ops.not_equal(y_true, NO_LABEL), "float32")
        if sample_weight is not None:
            weight = weight * expand_token_weights(sample_weight)
        is_right = keras.ops.equal(keras.ops.cast(keras.ops.argmax(y_pred, axis=-1), "int32"), y_true)
        # Flat, because Keras would average the weights of each text over its padding, which depends on the batch.
        super().update_state(keras.ops.reshape(is_right, [-1]), keras.ops.reshape(weight, [-1]))


@keras.saving.register_keras_serializable(package="official_bert")
class MetricOfClasses(keras.metrics.Metric):
    """Wraps a Keras metric of classes, and converts labels and logits to the form that the metric expects.

    y_true is a class index per example, [B] or [B, 1], or a number per class, [B, C]. y_pred is logits, [B, C].
    Depending on its class and settings, the metric receives indices or one-hot rows, and logits or probabilities.

    Binary metrics such as AUC and Precision receive only the second class, as the positive class, if there are two
    classes and each example has one label. With more classes, they receive the decisions on all classes together.

    Args:
        metric: The Keras metric.
        is_single_label: Whether each example has exactly one label.
        settings: Arguments of keras.metrics.Metric.
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
    """Returns whether a Keras loss or metric expects class indices instead of one-hot rows.

    The names of these Keras classes start with "Sparse".
    """
    return type(loss_or_metric).__name__.startswith("Sparse")


def reads_logits(metric: Any) -> bool:
    """Returns whether a Keras metric of classes expects logits instead of probabilities.

    This depends on the metric's settings from_logits and threshold (0 means logits). Metrics without these settings
    receive logits, except F-scores and KLDivergence.
    """
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
    """Returns whether a Keras metric decides on each class separately, as Precision, AUC and BinaryAccuracy do."""
    is_score_of_classes = isinstance(metric, keras.metrics.FBetaScore)
    return not is_score_of_classes and (_is_thresholded(metric) or type(metric).__name__.startswith("Binary"))


def _reads_positive_class(metric: Any) -> bool:
    """Returns whether a binary Keras metric has no setting for several classes (class_id, top_k, multi_label)."""
    config = metric.get_config()
    names_classes = config.get("class_id") is not None or config.get("top_k") or config.get("multi_label")
    return _is_binary(metric) and not names_classes
