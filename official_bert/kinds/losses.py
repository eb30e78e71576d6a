"""The losses of heads for which Keras has none.

B batch, S sequence, C classes
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from official_bert.kinds.features import NO_LABEL


@keras.saving.register_keras_serializable(package="official_bert")
class TaggingLoss(keras.losses.Loss):
    """The cross-entropy of tags, averaged over the tokens that have one.

    Keras averages what `call` returns over all tokens. Each token's loss is therefore divided by the share of tokens
    that have a tag: what remains is the mean over these. Over several replicas, learning.loss_share divides instead.

    y_true is [B, S] int32, with NO_LABEL where there is no tag; y_pred is logits, [B, S, C]; `call` returns [B, S].
    Weights are those of rows, [B] or [B, 1], or of tokens, [B, S].
    """

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        # Keras would multiply weights [B] with losses [B, S] along the wrong axis.
        return super().__call__(y_true, y_pred, None if sample_weight is None else by_token(sample_weight))

    def token_losses(self, y_true: Any, y_pred: Any) -> tuple[Any, Any]:
        """Returns the loss of each token, 0 where it has no tag, and 1 where it has one: both float32 [B, S]."""
        has_tag = keras.ops.cast(keras.ops.not_equal(y_true, NO_LABEL), "float32")
        tags = keras.ops.maximum(keras.ops.cast(y_true, "int32"), 0)
        losses = keras.losses.sparse_categorical_crossentropy(tags, y_pred, from_logits=True)  # [B, S]
        return losses * has_tag, has_tag

    def call(self, y_true: Any, y_pred: Any) -> Any:
        losses, has_tag = self.token_losses(y_true, y_pred)
        return losses / keras.ops.maximum(keras.ops.mean(has_tag), 1e-9)


def by_token(weights: Any) -> Any:
    """Returns weights of rows, [B], as weights of their tokens, float32 [B, 1]; others stay as they are."""
    weights = tf.cast(weights, tf.float32)
    if weights.shape.rank is None:  # as where Keras has met both
        return tf.reshape(weights, [tf.shape(weights)[0], -1])
    return weights[:, None] if weights.shape.rank == 1 else weights


@keras.saving.register_keras_serializable(package="official_bert")
class WeightedBinaryCrossentropy(keras.losses.Loss):
    """The cross-entropy of labels by themselves, where to miss one costs so many times as much; the mean over labels.

    y_true is 0 or 1 and y_pred logits, both [B, C]; `call` returns [B].

    Args:
        positive_weights: of each label, [C].
        settings: of keras.losses.Loss.
    """

    def __init__(self, positive_weights: Sequence[float], **settings: Any) -> None:
        super().__init__(**settings)
        self.positive_weights = tuple(map(float, positive_weights))

    def call(self, y_true: Any, y_pred: Any) -> Any:
        expected = keras.ops.cast(y_true, y_pred.dtype)
        weights = keras.ops.convert_to_tensor(self.positive_weights, y_pred.dtype)
        missed, found_wrongly = keras.ops.softplus(-y_pred), keras.ops.softplus(y_pred)
        return keras.ops.mean(weights * expected * missed + (1 - expected) * found_wrongly, axis=-1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "positive_weights": list(self.positive_weights)}


@keras.saving.register_keras_serializable(package="official_bert")
class SquaredError(keras.losses.Loss):
    """The squared errors of values, [B] and [B], one by one: Keras' own loss averages them before it weighs rows."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return keras.ops.square(y_pred - keras.ops.cast(y_true, y_pred.dtype))
