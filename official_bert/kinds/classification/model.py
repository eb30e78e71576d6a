"""The model for classification: a dense layer on the pooled output.

B batch, C classes
"""

from typing import Any

import keras
from keras import ops

from official_bert.kinds import model
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.model import ERROR_LOSSES, ERROR_METRICS, SPARSE_METRICS

# Names of Keras' losses and metrics that take a number for each class.
_HINGES = ("Hinge", "SquaredHinge")
_COUNTS = ("TruePositives", "TrueNegatives", "FalsePositives", "FalseNegatives")
_TRADE_OFFS = ("PrecisionAtRecall", "RecallAtPrecision", "SensitivityAtSpecificity", "SpecificityAtSensitivity")
_SCORES = ("BinaryAccuracy", "BinaryCrossentropy", "Precision", "Recall", "F1Score", "FBetaScore", "AUC", "BinaryIoU")
_DISTRIBUTIONS = ("CategoricalCrossentropy", "CategoricalHinge")
BINARY_LOSSES = ("BinaryCrossentropy", "BinaryFocalCrossentropy", *_HINGES, *ERROR_LOSSES)
BINARY_METRICS = (*_SCORES, *_COUNTS, *_TRADE_OFFS, *_HINGES, *ERROR_METRICS)
_ONE_HOT_METRICS = ("CategoricalAccuracy", "TopKCategoricalAccuracy", "KLDivergence", "OneHotIoU", "OneHotMeanIoU")


def build_classifier(
    encoder: keras.Model,
    num_labels: int,
    dropout_rate: float = model.DROPOUT_RATE,
    seed: int | None = None,
    name: str | None = None,
) -> keras.Model:
    """Returns a classifier of texts or text pairs: dropout and a dense layer on the pooled output.

    The output is logits, [B, C]. Apply a softmax if each text has exactly one label, or a sigmoid if it can have
    several. The classifier shares its weights with `encoder`.

    Args:
        encoder: An encoder with the output `pooled_output`, from `official_bert.load` or `build_encoder`.
        num_labels: Number of classes, C.
        dropout_rate: Dropout rate of the pooled output in training.
        seed: Seed of the initial weights of the dense layer. None draws a random seed.
        name: Name of the model and prefix of the names of its new layers, for several heads on one encoder in one Keras
            model. Defaults to None: "classifier", and no prefix.
    """
    pooled = model.get_pooled(encoder)
    logits = model.add_head(encoder, pooled, num_labels, "sequence_classifier", dropout_rate, seed, name)
    return keras.Model(encoder.input, logits, name=name or "classifier")


class Model(model.TextKindModel[ClassificationSpec]):
    """The Keras head, loss and metrics of classification."""

    keras_losses = ("SparseCategoricalCrossentropy", "CategoricalFocalCrossentropy", *_DISTRIBUTIONS, *BINARY_LOSSES)
    keras_metrics = (*SPARSE_METRICS, *_DISTRIBUTIONS, *_ONE_HOT_METRICS, *BINARY_METRICS)

    def build_head(self, encoder: keras.Model, seed: int | None) -> keras.Model:
        return build_classifier(encoder, len(self.spec.labels), seed=seed)

    def soft_loss(self, targets: Any, logits: Any) -> Any:
        return keras.losses.categorical_crossentropy(targets, logits, from_logits=True)

    def soft_answers(self, logits: Any) -> Any:
        return ops.softmax(logits)
