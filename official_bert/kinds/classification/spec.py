"""Classification: one of several classes for each text or pair.

C classes
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from official_bert.errors import UserError
from official_bert.kinds import class_labels, input_adapters, probabilities, scores
from official_bert.kinds.class_labels import BALANCED, balanced_weights
from official_bert.kinds.features import LABELS, Array, Features, Outputs
from official_bert.kinds.names import CLASSIFICATION
from official_bert.kinds.spec import DecisionOptions
from official_bert.kinds.text_spec import LabelSpec, TextExample

NO_ANSWER = ""  # the label of predictions below min_confidence


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassificationSpec(LabelSpec):
    """The KindSpec of classification: one of several classes for each text or text pair.

    Labels are class indices. Predictions are the probabilities of all classes, [E, C]. The predicted class is the most
    probable one. If there are thresholds (only with two classes, adding up to 1), it is the class whose probability is
    above its threshold.

    Attributes:
        min_confidence: Minimum probability of a predicted class. Predictions below it become NO_ANSWER.
    """

    kind: ClassVar[str] = CLASSIFICATION
    decoding: ClassVar[str] = (
        "Average the logits over the windows, divide them by temperature and apply softmax. The label is the class"
        " with the largest probability minus its threshold. It is empty if its probability is below "
        "min_confidence."
    )
    discrete_outputs: ClassVar[tuple[str, ...]] = ("label",)
    decision_settings: ClassVar[tuple[str, ...]] = (*LabelSpec.decision_settings, "min_confidence")
    is_single_label: ClassVar[bool] = True
    answer_dtypes: ClassVar[Mapping[str, Any]] = {
        "label": object,
        "probability": np.float32,
        "labels": object,
        "probabilities": np.float32,
    }

    min_confidence: float = 0.0

    @property
    def score_names(self) -> tuple[str, ...]:
        two_class_scores = scores.TWO_CLASS_SCORES if len(self.labels) == 2 else ()
        return ("accuracy", "f1_macro", "matthews_correlation", *two_class_scores)

    rescale = staticmethod(probabilities.rescale_softmax)

    def certainties(self, predictions: Array, examples: Sequence[TextExample]) -> tuple[Array, Array]:
        predicted, expected = self.predicted_labels(predictions), [example.label for example in examples]
        return self._take_probabilities(predictions), np.array(predicted) == np.array(expected)

    def check_decision_options(self, options: DecisionOptions) -> None:
        if options.thresholds is not None and len(self.labels) != 2:
            raise UserError(
                f"thresholds are for two classes, or for several labels per text; the model has {len(self.labels)} "
                "classes and one label per text; set a minimum confidence instead"
            )

    def choose_thresholds(self, predictions: Array, examples: Sequence[TextExample], measure: str) -> Self:
        self.check_decision_options(DecisionOptions(thresholds=measure))
        expected = np.array([example.label for example in examples])
        rare = scores.find_rare_class(expected)
        (threshold,) = probabilities.choose_thresholds(
            predictions[:, [rare]], (expected == rare)[:, None], [self.labels[rare]], measure
        )
        return dataclasses.replace(self, thresholds=(1.0 - threshold, threshold)[:: 1 if rare else -1])

    def parse_labels(self, y: Any) -> list[int]:
        rows = self.parse_rows(y)
        if rows is not None:
            return rows.argmax(axis=1).tolist()
        return class_labels.class_numbers(input_adapters.to_list(y, "y"), self.labels)

    def is_label_row(self, value: Any) -> bool:
        return class_labels.is_probability_row(value, len(self.labels))

    def choose_settings(self, predictions: Array, examples: Sequence[TextExample], options: DecisionOptions) -> Self:
        spec = super().choose_settings(predictions, examples, options)
        min_confidence = spec.min_confidence if options.min_confidence is None else options.min_confidence
        return dataclasses.replace(spec, min_confidence=min_confidence)

    def apply_class_weights(self, class_weights: Sequence[str], features: Features) -> tuple[Self, Array | None]:
        if not class_weights or not features.targets:
            return super().apply_class_weights(class_weights, features)
        classes = features.targets[LABELS]
        if list(class_weights) == [BALANCED]:
            weights = balanced_weights(classes, len(self.labels))
        else:
            weights = self.parse_class_weights(class_weights)
        return self, np.asarray(weights[classes], np.float32)

    def apply_activation(self, logits: Array) -> Array:
        return probabilities.softmax(logits / self.temperature)

    def predicted_labels(self, predictions: Array) -> list[int]:
        return np.argmax(predictions - np.array(self.thresholds or 0.0), axis=-1).tolist()

    def _take_probabilities(self, predictions: Array) -> Array:
        """Returns the probability of the predicted class of each example, [E].

        Args:
            predictions: Probabilities of all classes, [E, C].
        """
        return np.asarray(predictions)[np.arange(len(predictions)), self.predicted_labels(predictions)]

    def certainty(self, prediction: Any) -> float:
        return float(self._take_probabilities(np.asarray(prediction)[None])[0])

    def format_label(self, label: int) -> str:
        return self.labels[label]

    def prediction_names(self, predictions: Array) -> list[str]:
        return [
            self.labels[label] if probability >= self.min_confidence else NO_ANSWER
            for label, probability in zip(
                self.predicted_labels(predictions), self._take_probabilities(predictions), strict=True
            )
        ]

    def named_answers(self, predictions: Array, examples: Sequence[TextExample]) -> dict[str, list[Any]]:
        return {
            "label": self.prediction_names(predictions),
            "probability": self._take_probabilities(predictions).tolist(),
            **super().named_answers(predictions, examples),
        }

    def margins(self, outputs: Outputs, features: Features, examples: Sequence[TextExample]) -> list[float]:
        rows = self.decode(outputs, features, examples)
        margins = np.array(probabilities.compute_margins(rows - np.array(self.thresholds or 0.0)))
        if self.min_confidence:
            margins = np.minimum(margins, np.abs(self._take_probabilities(rows) - self.min_confidence))
        return margins.tolist()

    def scores(self, predictions: Array, examples: Sequence[TextExample]) -> dict[str, float]:
        predicted, expected = self.predicted_labels(predictions), [example.label for example in examples]
        values = {
            "accuracy": scores.accuracy(predicted, expected),
            "f1_macro": scores.f1(predicted, expected, average="macro"),
            "matthews_correlation": scores.matthews(predicted, expected),
        }
        values |= self.two_class_scores(predictions, examples)
        if self.min_confidence:
            confidences, is_correct = self.certainties(predictions, examples)
            answered = confidences >= self.min_confidence
            values["coverage"] = float(np.mean(answered))
            if answered.any():  # Without answers, their accuracy is undefined.
                values["accuracy_of_answered"] = float(np.mean(is_correct[answered]))
        return values

    def two_class_scores(self, predictions: Array, examples: Sequence[TextExample]) -> dict[str, float]:
        """Returns the scores that are defined for two classes only (see `scores.two_class_scores`).

        Empty for more classes.

        Args:
            predictions: Probabilities, [E, C].
            examples: Labelled examples.
        """
        if len(self.labels) != 2:
            return {}
        expected = np.array([example.label for example in examples])
        return scores.two_class_scores(predictions, np.array(self.predicted_labels(predictions)), expected)

    def undefined_scores(self, examples: Sequence[TextExample]) -> Sequence[str]:
        has_both = len({example.label for example in examples}) > 1
        return scores.TWO_CLASS_SCORES if len(self.labels) == 2 and not has_both else ()

    def soft_targets(self, targets: Array) -> Array:
        return targets if targets.ndim == 2 else np.asarray(np.eye(len(self.labels))[targets])
