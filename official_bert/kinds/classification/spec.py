"""One of several classes for each text or pair.

E examples, R rows, C classes
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from official_bert.kinds import calibration, python_data, scores
from official_bert.kinds.features import LABELS, Array, Features, Outputs
from official_bert.kinds.label_spec import LabelSpec
from official_bert.kinds.probabilities import margins_of_rows, softmax
from official_bert.kinds.text_spec import TextExample
from official_bert.modeling.choices import CLASSIFICATION

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

NO_ANSWER = ""  # in place of a class that is not probable enough


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassificationSpec(LabelSpec):
    """One class of several. A label is a number.

    Attributes:
        min_confidence: a class that is less probable than this is no answer.
    """

    kind: ClassVar[str] = CLASSIFICATION
    best_metric: ClassVar[str] = "accuracy"
    decisions: ClassVar[tuple[str, ...]] = ("label",)
    has_one_class: ClassVar[bool] = True

    min_confidence: float = 0.0

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | ({"min_confidence": self.min_confidence} if self.min_confidence else {})

    rescaled = staticmethod(calibration.rescaled_classes)

    def certainties(self, predictions: Array, examples: Sequence[TextExample]) -> tuple[Array, Array]:
        expected = np.array([example.label for example in examples])
        return predictions.max(axis=-1), np.argmax(predictions, axis=-1) == expected

    def labels_from(self, y: Any) -> list[int]:
        return python_data.numbers_of(python_data.as_list(python_data.of_classes(y, self.labels), "y"), self.labels)

    def graph_labels(self, spec: Any, is_batched: bool) -> Callable[[Any], Any] | None:
        if not self._has_simple_labels(spec, is_batched):
            return None
        import tensorflow as tf

        is_mixed = python_data.are_values(self.labels) and not python_data.are_whole_numbers(self.labels)
        if spec.dtype != tf.string and is_mixed:
            return None  # Python compares a value with names
        expected = f"one of {', '.join(self.labels)}"
        names = [python_data.class_name(label) for label in self.labels]
        if spec.dtype != tf.string and python_data.are_whole_numbers(self.labels):
            return self._looked_up(tf.constant([int(name) for name in names], tf.int64), expected)
        if spec.dtype != tf.string:
            classes = len(self.labels)

            def checked(y: Any) -> Any:
                number = tf.cast(y, tf.float32)
                is_class = (number >= 0) & (number < classes) & (tf.math.floor(number) == number)
                return python_data.asserted(y, y, is_class, "label", f"{expected}, or a number from 0 to {classes - 1}")

            return checked
        by_name = self._looked_up(tf.constant(names), expected)
        # As python_data.class_name.
        return lambda y: by_name(tf.strings.regex_replace(y, r"^(-?[0-9]+)\.0+$", r"\1"))

    def _looked_up(self, names: "tf.Tensor", expected: str) -> Callable[[Any], Any]:
        """What makes classes' numbers of their names, strings or whole numbers, [C]."""
        import tensorflow as tf

        initializer = tf.lookup.KeyValueTensorInitializer(names, tf.range(len(self.labels)))
        table = tf.lookup.StaticHashTable(initializer, default_value=-1)

        def lookup(y: Any) -> Any:
            keys = tf.cast(y, names.dtype)
            numbers = table.lookup(keys)
            is_name = (numbers >= 0) & (True if y.dtype == tf.string else tf.cast(keys, y.dtype) == y)
            return python_data.asserted(numbers, y, is_name, "label", expected)

        return lookup

    def targets(self, labels: Sequence[int]) -> Array:
        return np.array(labels, np.int32)

    def blank_targets(self, tokens: int) -> dict[str, Array]:
        return {LABELS: np.zeros(1, np.int32)}

    def loss(self) -> "keras.losses.Loss":
        import keras

        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def weights_by_class(self, class_weight: Mapping[Any, float] | str) -> Array:
        return python_data.weights_by_class(class_weight, self.labels)

    def activated(self, logits: Array) -> Array:
        return softmax(logits / self.temperature)

    def predicted_labels(self, predictions: Array) -> list[int]:
        return [int(number) for number in np.argmax(predictions, axis=-1)]

    def name_of(self, label: int) -> str:
        return self.labels[label]

    def prediction_names(self, predictions: Array) -> list[str]:
        return [
            self.labels[label] if max(row) >= self.min_confidence else NO_ANSWER
            for label, row in zip(self.predicted_labels(predictions), predictions, strict=True)
        ]

    def named_answers(self, predictions: Array, examples: Sequence[TextExample]) -> dict[str, list[Any]]:
        return {
            "label": self.prediction_names(predictions),
            "probability": [float(max(row)) for row in predictions],
            "labels": [list(self.labels)] * len(predictions),
            "probabilities": [row.tolist() for row in predictions],
        }

    def margins(self, outputs: Outputs, features: Features, examples: Sequence[TextExample]) -> list[float]:
        rows = self.decode(outputs, features, examples)
        to_least = np.abs(rows.max(axis=-1) - self.min_confidence) if self.min_confidence else [np.inf] * len(rows)
        return [float(min(pair)) for pair in zip(margins_of_rows(rows), to_least, strict=True)]

    def scores(self, predictions: Array, examples: Sequence[TextExample]) -> dict[str, float]:
        predicted, expected = self.predicted_labels(predictions), [example.label for example in examples]
        values = {
            "accuracy": scores.accuracy(predicted, expected),
            "f1_macro": scores.f1(predicted, expected, average="macro"),
            "matthews_correlation": scores.matthews(predicted, expected),
        }
        if self.min_confidence:
            confidences, is_right = self.certainties(predictions, examples)
            answered = confidences >= self.min_confidence
            values["coverage"] = float(np.mean(answered))
            values["accuracy_of_answered"] = float(np.mean(is_right[answered])) if answered.any() else 0.0
        return values

    def soft_targets(self, targets: Array, classes: int) -> Array:
        return np.asarray(np.eye(classes)[targets])

    def soft_loss(self, targets: Any, logits: Any) -> Any:
        import keras

        return keras.losses.categorical_crossentropy(targets, logits, from_logits=True)

    def soft_answers(self, logits: Any) -> Any:
        from keras import ops

        return ops.softmax(logits)
