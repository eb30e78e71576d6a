"""The model for classification: a dense layer on the pooled output.

B batch, C classes
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from official_bert.kinds import class_labels, model
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
    encoder: keras.Model, num_labels: int, dropout_rate: float = model.DROPOUT_RATE, seed: int | None = None
) -> keras.Model:
    """Returns a classifier of texts or text pairs: dropout and a dense layer on the pooled output.

    The output is logits, [B, C]. Apply a softmax if each text has exactly one label, or a sigmoid if it can have
    several. The classifier shares its weights with `encoder`.

    Args:
        encoder: An encoder with the output `pooled_output`, from `official_bert.load` or `build_encoder`.
        num_labels: Number of classes, C.
        dropout_rate: Dropout rate of the pooled output in training.
        seed: Seed of the initial weights of the dense layer. None draws a random seed.
    """
    pooled = model.add_pooled(encoder, dropout_rate)
    logits = model.add_dense(encoder, pooled, num_labels, "sequence_classifier", seed)
    return keras.Model(encoder.input, model.add_float32(logits), name="classifier")


class Model(model.TextKindModel[ClassificationSpec]):
    """The Keras head, loss and metrics of classification."""

    keras_losses = ("SparseCategoricalCrossentropy", "CategoricalFocalCrossentropy", *_DISTRIBUTIONS, *BINARY_LOSSES)
    keras_metrics = (*SPARSE_METRICS, *_DISTRIBUTIONS, *_ONE_HOT_METRICS, *BINARY_METRICS)

    def build_head(self, encoder: keras.Model, seed: int | None) -> keras.Model:
        return build_classifier(encoder, len(self.spec.labels), seed=seed)

    def loss(self) -> keras.losses.Loss:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def soft_loss(self, targets: Any, logits: Any) -> Any:
        return keras.losses.categorical_crossentropy(targets, logits, from_logits=True)

    def soft_answers(self, logits: Any) -> Any:
        return ops.softmax(logits)

    def graph_labels(self, element_spec: Any, is_batched: bool) -> Callable[[Any], Any] | None:
        if not self.has_simple_labels(element_spec, is_batched):
            return None
        labels, is_text = self.spec.labels, element_spec.dtype == tf.string
        are_whole_numbers = class_labels.are_whole_numbers(labels)
        if not is_text and class_labels.are_values(labels) and not are_whole_numbers:
            return None  # Python code compares values with names
        expected = f"one of {', '.join(labels)}"
        names = [class_labels.class_name(label) for label in labels]
        if not is_text and are_whole_numbers:
            return self._build_lookup(tf.constant([int(name) for name in names], tf.int64), expected)
        if not is_text:
            classes = len(labels)

            def check_class(y: Any) -> Any:
                number = tf.cast(y, tf.float32)
                is_class = (number >= 0) & (number < classes) & (tf.math.floor(number) == number)
                return model.check_values(y, y, is_class, "label", f"{expected}, or a number from 0 to {classes - 1}")

            return check_class
        by_name = self._build_lookup(tf.constant(names), expected)
        # The same as class_labels.class_name.
        return lambda y: by_name(tf.strings.regex_replace(y, r"^(-?[0-9]+)\.0+$", r"\1"))

    def _build_lookup(self, names: tf.Tensor, expected: str) -> Callable[[Any], Any]:
        """Returns a TensorFlow function that maps labels to class indices and raises an error for an unknown label.

        Args:
            names: Names of the classes, as strings or int64.
            expected: Description of valid labels, for the error message.
        """
        initializer = tf.lookup.KeyValueTensorInitializer(names, tf.range(len(self.spec.labels)))
        table = tf.lookup.StaticHashTable(initializer, default_value=-1)

        def lookup(y: Any) -> Any:
            keys = tf.cast(y, names.dtype)
            indices = table.lookup(keys)
            is_name = (indices >= 0) & (True if y.dtype == tf.string else tf.cast(keys, y.dtype) == y)
            return model.check_values(indices, y, is_name, "label", expected)

        return lookup
