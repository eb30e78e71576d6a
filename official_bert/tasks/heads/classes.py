"""Heads of texts and pairs that have classes: one of several, or any number of them.

E examples, R rows, C classes
"""

import abc
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from official_bert.errors import UserError
from official_bert.modeling.choices import CLASSIFICATION, MULTI_LABEL
from official_bert.tasks.heads import calibration, python_data, scores
from official_bert.tasks.heads.features import LABELS, Array, Features, Outputs
from official_bert.tasks.heads.probabilities import margins_of_rows, softmax
from official_bert.tasks.heads.texts import TextExample, TextHead

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

# What is chosen after training, of which the features do not depend.
DECISIONS = ("temperature", "thresholds", "min_confidence")
NO_ANSWER = ""  # in place of a class that is not probable enough


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelHead(TextHead):
    """What the heads of classes share; predictions are probabilities.

    Attributes:
        labels: the classes' names.
        temperature: what logits are divided by before they become probabilities (see `calibrated`).
    """

    labels: tuple[str, ...] = ()
    temperature: float = 1.0

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | ({"temperature": self.temperature} if self.temperature != 1.0 else {})

    @staticmethod
    @abc.abstractmethod
    def rescaled(probabilities: Array, temperature: float) -> Array:
        """Returns probabilities as if their logits had been divided by a temperature."""

    @abc.abstractmethod
    def certainties(self, predictions: Array, examples: Sequence[TextExample]) -> tuple[Array, Array]:
        """Returns how sure the decisions are, and which of them are right, of one shape; the examples have labels."""

    def calibrated(self, predictions: Array, examples: Sequence[TextExample]) -> Self:
        """Returns the head with the temperature at which the examples' labels are likeliest.

        Args:
            predictions: of this head.
            examples: with labels, which the model has not learned from.
        """
        expected = self.soft_targets(self.targets([example.label for example in examples]), len(self.labels))
        factor = calibration.temperature(predictions, expected, self.rescaled)
        return dataclasses.replace(self, temperature=self.temperature * factor)

    def calibration_figures(self, predictions: Array, examples: Sequence[TextExample]) -> dict[str, Any]:
        """Returns what `calibration.figures` says of predictions of this head; the examples have labels."""
        confidences, is_right = self.certainties(predictions, examples)
        as_trained, _ = self.certainties(self.rescaled(predictions, 1.0 / self.temperature), examples)
        return calibration.figures(self.temperature, confidences, is_right, as_trained, self.has_one_class)

    def of_other_temperature(self, predictions: Array, temperature: float) -> Array:
        """Returns what this head would predict where a head of another temperature predicted this."""
        return self.rescaled(predictions, self.temperature / temperature)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassificationHead(LabelHead):
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiLabelHead(LabelHead):
    """Any number of classes. A label is a tuple of numbers, a prediction the probability of each class by itself.

    Attributes:
        thresholds: the probability above which each class is predicted; none for 0.5.
        positive_weights: how much more it costs in training to miss each class than to find it where it is not; none
            for 1. Answers do not depend on them.
    """

    kind: ClassVar[str] = MULTI_LABEL
    best_metric: ClassVar[str] = "f1_micro"
    decisions: ClassVar[tuple[str, ...]] = ("predicted",)

    thresholds: tuple[float, ...] = ()
    positive_weights: tuple[float, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | ({"thresholds": list(self.thresholds)} if self.thresholds else {})

    rescaled = staticmethod(calibration.rescaled_labels)

    def certainties(self, predictions: Array, examples: Sequence[TextExample]) -> tuple[Array, Array]:
        return predictions, self.targets([example.label for example in examples])

    def with_thresholds(self, predictions: Array, examples: Sequence[TextExample], measure: str) -> Self:
        """Returns the head with the thresholds that are best for the examples.

        Args:
            predictions: of this head.
            examples: with labels, which the model has not learned from.
            measure: one of modeling.choices.MEASURES.

        Raises:
            UserError: a class has no example.
        """
        expected = self.targets([example.label for example in examples])
        return dataclasses.replace(self, thresholds=calibration.thresholds(predictions, expected, self.labels, measure))

    def are_predicted(self, predictions: Array) -> Array:
        """Returns which classes are predicted, bool [E, C]."""
        return np.asarray(predictions > (np.array(self.thresholds) if self.thresholds else 0.5))

    def labels_from(self, y: Any) -> list[tuple[int, ...]]:
        rows = python_data.as_list(python_data.of_classes(y, self.labels), "y")
        return [self._label_from(row, f"y[{number}]") for number, row in enumerate(rows)]

    def _label_from(self, row: Any, name: str) -> tuple[int, ...]:
        """The numbers of a text's classes, from names or numbers, or from an array of 0 and 1 for each class."""
        is_array = isinstance(row, np.ndarray) and row.dtype.kind in "biuf"
        is_list = isinstance(row, Iterable) and not isinstance(row, str | bytes)
        if not is_list or (is_array and (row.shape != (len(self.labels),) or not np.isin(row, (0, 1)).all())):
            raise UserError(
                f"{name} is {python_data.shown(row)}; expected a list of names or numbers, or an array of 0 and 1 "
                f"for each of {', '.join(self.labels)}"
            )
        if is_array:
            return tuple(np.flatnonzero(row).tolist())
        numbers = python_data.numbers_of(row, self.labels, name)
        if len(set(numbers)) < len(numbers):  # most likely 0 and 1 for each class
            raise UserError(
                f"{name} is {python_data.shown(row)}, which names a class twice; expected each once; give 0 and 1 for "
                "each class as a NumPy array"
            )
        return tuple(numbers)

    def graph_labels(self, spec: Any, is_batched: bool) -> Callable[[Any], Any] | None:
        import tensorflow as tf

        is_array = isinstance(spec, tf.TensorSpec) and spec.dtype != tf.string
        is_simple = is_array and spec.shape[int(is_batched) :] == (len(self.labels),)
        if not is_simple or self.doc_stride:
            return None
        expected = f"0 or 1 for each of {', '.join(self.labels)}"
        return lambda y: python_data.asserted(y, y, (y == 0) | (y == 1), "label", expected)

    def targets(self, labels: Sequence[Sequence[int]]) -> Array:
        """Returns rows of 0 and 1, float32 [E, C]."""
        rows = np.zeros((len(labels), len(self.labels)), np.float32)
        for row, chosen in zip(rows, labels, strict=True):
            row[list(chosen)] = 1.0
        return rows

    def blank_targets(self, tokens: int) -> dict[str, Array]:
        return {LABELS: np.zeros((1, len(self.labels)), np.float32)}

    def loss(self) -> "keras.losses.Loss":
        import keras

        if not self.positive_weights:
            return keras.losses.BinaryCrossentropy(from_logits=True)
        from official_bert.tasks.heads.losses import WeightedBinaryCrossentropy

        return WeightedBinaryCrossentropy(self.positive_weights)

    def keras_metrics(self) -> Any:
        import keras

        return [keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)]

    def weights_by_class(self, class_weight: Mapping[Any, float] | str) -> Array:
        raise UserError("with multi_label a text has no one class to weigh; leave out class_weight")

    def activated(self, logits: Array) -> Array:
        return np.asarray(1.0 / (1.0 + np.exp(-logits / self.temperature)))

    def predicted_labels(self, predictions: Array) -> list[tuple[int, ...]]:
        return [tuple(np.flatnonzero(row).tolist()) for row in self.are_predicted(np.asarray(predictions))]

    def name_of(self, label: Sequence[int]) -> str:
        return ", ".join(self.labels[number] for number in label) or "(none)"

    def named_answers(self, predictions: Array, examples: Sequence[TextExample]) -> dict[str, list[Any]]:
        return {
            "labels": [list(self.labels)] * len(predictions),
            "probabilities": [row.tolist() for row in predictions],
            "predicted": self.are_predicted(predictions).tolist(),
        }

    def margins(self, outputs: Outputs, features: Features, examples: Sequence[TextExample]) -> list[float]:
        thresholds = np.array(self.thresholds) if self.thresholds else 0.5
        return np.abs(self.decode(outputs, features, examples) - thresholds).min(axis=-1).tolist()

    def scores_by_class(self, predictions: Array, examples: Sequence[TextExample]) -> dict[str, dict[str, float]]:
        """Returns precision, recall, F1 and the number of examples of each class; a mean over nothing is 0."""
        predicted, expected = self.are_predicted(predictions), self.targets([each.label for each in examples]) > 0
        return {
            label: scores.of_class(int((ours & theirs).sum()), int(ours.sum()), int(theirs.sum()))
            for label, ours, theirs in zip(self.labels, predicted.T, expected.T, strict=True)
        }

    def certainty(self, prediction: Any) -> float:
        """Returns the probability of the least certain decision."""
        return float(min(np.maximum(prediction, 1.0 - prediction)))

    def scores(self, predictions: Array, examples: Sequence[TextExample]) -> dict[str, float]:
        predicted, expected = self.predicted_labels(predictions), [example.label for example in examples]
        rows, expected_rows = self.targets(predicted), self.targets(expected)
        return {
            "f1_micro": scores.f1(rows, expected_rows, average="micro"),
            "f1_macro": scores.f1(rows, expected_rows, average="macro"),
            "exact_match": float(np.mean([a == b for a, b in zip(predicted, expected, strict=True)])),
        }

    def soft_targets(self, targets: Array, classes: int) -> Array:
        return targets

    def soft_loss(self, targets: Any, logits: Any) -> Any:
        import keras

        return keras.losses.binary_crossentropy(targets, logits, from_logits=True)

    def soft_answers(self, logits: Any) -> Any:
        from keras import ops

        return ops.sigmoid(logits)
