"""Multi-label classification: any number of classes for each text or pair.

E examples, C classes
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from official_bert.errors import UserError
from official_bert.kinds import class_labels, input_adapters, probabilities, scores
from official_bert.kinds.class_labels import BALANCED
from official_bert.kinds.features import LABELS, Array, Features, Outputs
from official_bert.kinds.names import MULTI_LABEL
from official_bert.kinds.spec import UNSTORED, DecisionOptions
from official_bert.kinds.text_spec import LabelSpec, TextExample


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiLabelSpec(LabelSpec):
    """The KindSpec of multi-label classification: any number of classes for each text or text pair.

    Labels are tuples of class indices. Predictions are the probabilities of all classes, [E, C]. A class is predicted
    if its probability is above its threshold, which is 0.5 unless thresholds were chosen.

    Attributes:
        positive_weights: For each class, the weight in the loss of the texts that have it, [C]. Empty for weights of 1.
            Only used in training.
    """

    kind: ClassVar[str] = MULTI_LABEL
    decoding: ClassVar[str] = (
        "Average the logits over the windows, divide them by temperature and apply the sigmoid. The labels are the"
        " classes whose probabilities are above their thresholds, or above 0.5."
    )
    score_names: ClassVar[tuple[str, ...]] = ("f1_micro", "f1_macro", "exact_match")
    discrete_outputs: ClassVar[tuple[str, ...]] = ("predicted",)
    target_dtype: ClassVar[Any] = np.float32
    answer_dtypes: ClassVar[Mapping[str, Any]] = {
        "labels": object,
        "probabilities": np.float32,
        "predicted": np.bool_,
    }

    positive_weights: tuple[float, ...] = dataclasses.field(default=(), metadata=UNSTORED)

    rescale = staticmethod(probabilities.rescale_sigmoid)

    def certainties(self, predictions: Array, examples: Sequence[TextExample]) -> tuple[Array, Array]:
        return predictions, self.targets([example.label for example in examples])

    def choose_thresholds(self, predictions: Array, examples: Sequence[TextExample], measure: str) -> Self:
        expected = self.targets([example.label for example in examples])
        thresholds = probabilities.choose_thresholds(predictions, expected, self.labels, measure)
        return dataclasses.replace(self, thresholds=thresholds)

    def check_decision_options(self, options: DecisionOptions) -> None:
        if options.min_confidence is not None:
            raise UserError(
                "--min_confidence requires a task with one label per text; with several labels, use --thresholds"
            )

    def apply_class_weights(self, class_weights: Sequence[str], features: Features) -> tuple[Self, Array | None]:
        """Applies --class_weights: returns a copy of the spec with positive_weights, and None.

        None means that the texts themselves have no weights. "balanced" gives texts with a label and texts without it
        the same total weight. See the base class for the arguments.
        """
        weights: tuple[float, ...] = ()
        if list(class_weights) == [BALANCED]:
            rows = features.targets[LABELS]
            counts = rows.sum(axis=0)
            if absent := [label for label, count in zip(self.labels, counts, strict=True) if not count]:
                raise UserError(
                    f"no training text has the label {', '.join(absent)}, so it has no balanced weight; add such "
                    "texts, or pass numbers"
                )
            weights = tuple(((len(rows) - counts) / counts).tolist())
        elif class_weights:
            weights = tuple(self.parse_class_weights(class_weights).tolist())
        return dataclasses.replace(self, positive_weights=weights), None

    def are_predicted(self, predictions: Array) -> Array:
        """Returns which classes are predicted, bool [E, C], from their probabilities, [E, C]."""
        return np.asarray(np.asarray(predictions) > np.array(self.thresholds or 0.5))

    def parse_labels(self, y: Any) -> list[tuple[int, ...]]:
        rows = input_adapters.to_list(class_labels.order_class_columns(y, self.labels), "y")
        if rows and all(map(self._is_ambiguous, rows)):
            raise UserError(
                f"y[0] is {input_adapters.format_value(rows[0])}; a list of {len(self.labels)} numbers 0 and 1 may "
                f"contain indices of classes, or 0 or 1 for each of {', '.join(self.labels)}. Pass lists of class "
                "names, or np.array(y) if the numbers are 0 or 1 for each class"
            )
        return [self._parse_label_set(row, f"y[{number}]") for number, row in enumerate(rows)]

    def _parse_label_set(self, row: Any, name: str) -> tuple[int, ...]:
        """Returns the class indices of one example.

        Args:
            row: A list of class names or indices, or a NumPy array [C] of numbers from 0 to 1, where those above 0.5
                are labels.
            name: What the row is called in error messages, such as "y[3]".
        """
        is_array = self.is_label_row(row)
        is_list = isinstance(row, Iterable) and not isinstance(row, str | bytes)
        if not is_list or (is_array and (row.shape != (len(self.labels),) or not ((row >= 0) & (row <= 1)).all())):
            raise UserError(
                f"{name} is {input_adapters.format_value(row)}; expected a list of names or numbers, or an array of "
                f"numbers from 0 to 1 for each of {', '.join(self.labels)}"
            )
        if is_array:
            return tuple(np.flatnonzero(row > 0.5).tolist())
        numbers = class_labels.class_numbers(row, self.labels, name)
        if len(set(numbers)) < len(numbers):  # probably a list of 0 and 1 for each class
            raise UserError(
                f"{name} is {input_adapters.format_value(row)}, which contains a class twice; expected distinct "
                "classes, or a NumPy array with 0 or 1 for each class"
            )
        return tuple(sorted(numbers))

    def _is_ambiguous(self, row: Any) -> bool:
        """Returns whether a label is a list of 0 and 1 that has as many elements as there are classes."""
        numbers = (bool, int, float, np.number, np.bool_)
        is_list = isinstance(row, list | tuple) and len(row) == len(self.labels)
        return is_list and all(isinstance(each, numbers) and each in (0, 1) for each in row)

    def is_label_row(self, value: Any) -> bool:
        return isinstance(value, np.ndarray) and value.dtype.kind in "biuf"

    def targets(self, labels: Sequence[Sequence[int]]) -> Array:
        """Converts labels (tuples of class indices) to rows of 0 and 1, float32 [E, C]."""
        rows = np.zeros((len(labels), len(self.labels)), self.target_dtype)
        for row, chosen in zip(rows, labels, strict=True):
            row[list(chosen)] = 1.0
        return rows

    def blank_targets(self, tokens: int) -> dict[str, Array]:
        return {LABELS: self.targets([()])}

    def apply_activation(self, logits: Array) -> Array:
        return np.asarray(1.0 / (1.0 + np.exp(-logits / self.temperature)))

    def predicted_labels(self, predictions: Array) -> list[tuple[int, ...]]:
        return [tuple(np.flatnonzero(row).tolist()) for row in self.are_predicted(predictions)]

    def format_label(self, label: Sequence[int]) -> str:
        return ", ".join(self.labels[number] for number in label) or "(none)"

    def named_answers(self, predictions: Array, examples: Sequence[TextExample]) -> dict[str, list[Any]]:
        return super().named_answers(predictions, examples) | {"predicted": self.are_predicted(predictions).tolist()}

    def margins(self, outputs: Outputs, features: Features, examples: Sequence[TextExample]) -> list[float]:
        distances = np.abs(self.decode(outputs, features, examples) - np.array(self.thresholds or 0.5))
        return distances.min(axis=-1).tolist()

    def label_scores(self, predictions: Array, examples: Sequence[TextExample]) -> dict[str, dict[str, float]]:
        predicted, expected = self.are_predicted(predictions), self.targets([each.label for each in examples]) > 0
        counts = zip((predicted & expected).sum(0), predicted.sum(0), expected.sum(0), strict=True)
        return {label: scores.class_scores(*map(int, each)) for label, each in zip(self.labels, counts, strict=True)}

    def certainty(self, prediction: Any) -> float:
        """Returns the confidence, from 0.5 to 1, of the least certain of the yes/no decisions on C classes.

        Args:
            prediction: The probabilities of the classes for one text, [C].
        """
        return float(min(np.maximum(prediction, 1.0 - prediction)))

    def scores(self, predictions: Array, examples: Sequence[TextExample]) -> dict[str, float]:
        predicted, expected = self.are_predicted(predictions), self.targets([example.label for example in examples]) > 0
        return {
            "f1_micro": scores.f1(predicted, expected, average="micro"),
            "f1_macro": scores.f1(predicted, expected, average="macro"),
            "exact_match": float((predicted == expected).all(axis=1).mean()),
        }
