"""The losses of heads for which Keras has none.

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
            y_true: As for `call`.
            y_pred: The outputs of the whole batch.
            is_row: 1 for each row, 0 for padding, which no row is compared with; float32 [B].
        """


@keras.saving.register_keras_serializable(package="official_bert")
class TaggingLoss(keras.losses.Loss):
    """The cross-entropy of tags, averaged over the tokens that have one.

    Keras averages what `call` returns over all tokens. Each token's loss is therefore divided by the share of tokens
    that have a tag: what remains is the mean over these. Over several replicas, finetuning.loss_share divides instead.

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
