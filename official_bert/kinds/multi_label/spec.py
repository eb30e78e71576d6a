"""Any number of classes for each text or pair.

E examples, R rows, C classes
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from official_bert.errors import UserError
from official_bert.kinds import calibration, class_labels, input_adapters, scores
from official_bert.kinds.class_labels import BALANCED
from official_bert.kinds.features import LABELS, Array, Features, Outputs
from official_bert.kinds.label_spec import LabelSpec
from official_bert.kinds.names import MULTI_LABEL
from official_bert.kinds.spec import Decisions
from official_bert.kinds.text_spec import TextExample


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiLabelSpec(LabelSpec):
    """Any number of classes. A label is a tuple of numbers, a prediction the probability of each class by itself.

    Attributes:
        thresholds: the probability above which each class is predicted; none for 0.5.
        positive_weights: how much more it costs in training to miss each class than to find it where it is not; none
            for 1. Answers do not depend on them.
    """

    kind: ClassVar[str] = MULTI_LABEL
    required_settings: ClassVar[tuple[str, ...]] = ("labels",)
    best_metric: ClassVar[str] = "f1_micro"
    decisions: ClassVar[tuple[str, ...]] = ("predicted",)
    answer_dtypes: ClassVar[Mapping[str, Any]] = {
        "labels": object,
        "probabilities": np.float32,
        "predicted": np.bool_,
    }

    thresholds: tuple[float, ...] = ()
    positive_weights: tuple[float, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | ({"thresholds": list(self.thresholds)} if self.thresholds else {})

    rescaled = staticmethod(calibration.rescaled_labels)

    def certainties(self, predictions: Array, examples: Sequence[TextExample]) -> tuple[Array, Array]:
        return predictions, self.targets([example.label for example in examples])

    def with_thresholds(self, predictions: Array, examples: Sequence[TextExample], measure: str) -> Self:
        """Returns the spec with the thresholds that are best for the examples.

        Args:
            predictions: of this spec.
            examples: with labels, which the model has not learned from.
            measure: one of kinds.names.MEASURES.

        Raises:
            UserError: a class has no example.
        """
        expected = self.targets([example.label for example in examples])
        return dataclasses.replace(self, thresholds=calibration.thresholds(predictions, expected, self.labels, measure))

    def decide(self, predictions: Array, examples: Sequence[TextExample], wanted: Decisions) -> Self:
        if wanted.min_confidence is not None:
            raise UserError("--min_confidence is for one class of several; with several labels take --thresholds")
        spec = super().decide(predictions, examples, wanted)
        if wanted.thresholds is None:
            return spec
        return spec.with_thresholds(spec.calibrate(predictions), examples, wanted.thresholds)

    def weigh_classes(self, class_weights: Sequence[str], features: Features) -> tuple[Self, Array | None]:
        """Returns the spec with positive_weights. If balanced, texts with a label weigh as much as those without."""
        weights: tuple[float, ...] = ()
        if list(class_weights) == [BALANCED]:
            rows = features.targets[LABELS]
            counts = rows.sum(axis=0)
            if absent := [label for label, count in zip(self.labels, counts, strict=True) if not count]:
                raise UserError(
                    f"no text to train on has the label {', '.join(absent)}, so that balanced weights have no limit"
                )
            weights = tuple(((len(rows) - counts) / counts).tolist())
        elif class_weights:
            weights = tuple(self.parse_class_weights(class_weights).tolist())
        return dataclasses.replace(self, positive_weights=weights), None

    def are_predicted(self, predictions: Array) -> Array:
        """Returns which classes are predicted, bool [E, C]."""
        return np.asarray(predictions > (np.array(self.thresholds) if self.thresholds else 0.5))

    def labels_from(self, y: Any) -> list[tuple[int, ...]]:
        rows = input_adapters.as_list(class_labels.order_class_columns(y, self.labels), "y")
        return [self._label_from(row, f"y[{number}]") for number, row in enumerate(rows)]

    def _label_from(self, row: Any, name: str) -> tuple[int, ...]:
        """The numbers of a text's classes, from names or numbers, or from an array of 0 and 1 for each class."""
        is_array = isinstance(row, np.ndarray) and row.dtype.kind in "biuf"
        is_list = isinstance(row, Iterable) and not isinstance(row, str | bytes)
        if not is_list or (is_array and (row.shape != (len(self.labels),) or not np.isin(row, (0, 1)).all())):
            raise UserError(
                f"{name} is {input_adapters.shown(row)}; expected a list of names or numbers, or an array of 0 and 1 "
                f"for each of {', '.join(self.labels)}"
            )
        if is_array:
            return tuple(np.flatnonzero(row).tolist())
        numbers = class_labels.class_numbers(row, self.labels, name)
        if len(set(numbers)) < len(numbers):  # most likely 0 and 1 for each class
            raise UserError(
                f"{name} is {input_adapters.shown(row)}, which names a class twice; expected each once; give 0 and 1 "
                "for each class as a NumPy array"
            )
        return tuple(numbers)

    def targets(self, labels: Sequence[Sequence[int]]) -> Array:
        """Returns rows of 0 and 1, float32 [E, C]."""
        rows = np.zeros((len(labels), len(self.labels)), np.float32)
        for row, chosen in zip(rows, labels, strict=True):
            row[list(chosen)] = 1.0
        return rows

    def blank_targets(self, tokens: int) -> dict[str, Array]:
        return {LABELS: np.zeros((1, len(self.labels)), np.float32)}

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

    def label_scores(self, predictions: Array, examples: Sequence[TextExample]) -> dict[str, dict[str, float]]:
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
