"""The model for multi-label classification: the layers of the classifier, with an independent loss for each label.

B batch size, C classes
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from official_bert.kinds import model
from official_bert.kinds.classification.model import BINARY_LOSSES, BINARY_METRICS, build_classifier
from official_bert.kinds.multi_label.spec import MultiLabelSpec


@keras.saving.register_keras_serializable(package="official_bert")
class WeightedBinaryCrossentropy(keras.losses.Loss):
    """The mean binary cross-entropy over labels, with a weight for the positive examples of each label.

    y_true is 0 or 1, and y_pred is logits, both [B, C]. `call` returns [B].

    Args:
        positive_weights: Weight of the positive examples of each label, [C].
        settings: Arguments of keras.losses.Loss.
    """

    def __init__(self, positive_weights: Sequence[float], **settings: Any) -> None:
        super().__init__(**settings)
        self.positive_weights = tuple(map(float, positive_weights))

    def call(self, y_true: Any, y_pred: Any) -> Any:
        expected = keras.ops.cast(y_true, y_pred.dtype)
        weights = keras.ops.convert_to_tensor(self.positive_weights, y_pred.dtype)
        missing, wrong = keras.ops.softplus(-y_pred), keras.ops.softplus(y_pred)
        return keras.ops.mean(weights * expected * missing + (1 - expected) * wrong, axis=-1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "positive_weights": list(self.positive_weights)}


class Model(model.TextKindModel[MultiLabelSpec]):
    """The Keras head, loss and metrics of multi-label classification."""

    keras_losses = BINARY_LOSSES
    keras_metrics = BINARY_METRICS

    def build_head(self, encoder: keras.Model, seed: int | None) -> keras.Model:
        return build_classifier(encoder, len(self.spec.labels), seed=seed)

    def loss(self) -> keras.losses.Loss:
        if not self.spec.positive_weights:
            return keras.losses.BinaryCrossentropy(from_logits=True)
        return WeightedBinaryCrossentropy(self.spec.positive_weights)

    def metrics(self) -> Any:
        return [keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)]

    def soft_loss(self, targets: Any, logits: Any) -> Any:
        return keras.losses.binary_crossentropy(targets, logits, from_logits=True)

    def soft_answers(self, logits: Any) -> Any:
        return ops.sigmoid(logits)
