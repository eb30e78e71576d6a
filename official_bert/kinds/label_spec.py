"""The base class of classification and multi_label.

E examples, R rows, C classes
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from official_bert.errors import UserError
from official_bert.kinds import calibration
from official_bert.kinds.class_labels import BALANCED
from official_bert.kinds.features import Array
from official_bert.kinds.input_adapters import LARGEST
from official_bert.kinds.spec import Decisions
from official_bert.kinds.text_spec import TextExample, TextSpec

# Settings that are chosen after training. Features do not depend on them.
DECISIONS = ("temperature", "thresholds", "min_confidence")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelSpec(TextSpec):
    """A kind of text with classes. Predictions are probabilities.

    Attributes:
        labels: Names of the classes.
        temperature: Divisor of the logits before they become probabilities (see `calibrated`).
    """

    labels: tuple[str, ...] = ()
    temperature: float = 1.0

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | ({"temperature": self.temperature} if self.temperature != 1.0 else {})

    @staticmethod
    @abc.abstractmethod
    def rescaled(probabilities: Array, temperature: float) -> Array:
        """Returns the probabilities of the same logits, divided by a temperature."""

    @abc.abstractmethod
    def certainties(self, predictions: Array, examples: Sequence[TextExample]) -> tuple[Array, Array]:
        """Returns the confidence of each decision and whether it is right, in arrays of the same shape."""

    def calibrated(self, predictions: Array, examples: Sequence[TextExample]) -> Self:
        """Returns the spec with the temperature at which the examples' labels are likeliest.

        Args:
            predictions: of this spec.
            examples: with labels, which the model has not learned from.
        """
        expected = self.soft_targets(self.targets([example.label for example in examples]), len(self.labels))
        factor = calibration.temperature(predictions, expected, self.rescaled)
        return dataclasses.replace(self, temperature=self.temperature * factor)

    def calibration_figures(self, predictions: Array, examples: Sequence[TextExample]) -> dict[str, Any]:
        """Returns what `calibration.figures` says of predictions of this spec; the examples have labels."""
        confidences, is_right = self.certainties(predictions, examples)
        as_trained, _ = self.certainties(self.rescaled(predictions, 1.0 / self.temperature), examples)
        return calibration.figures(self.temperature, confidences, is_right, as_trained, self.has_one_class)

    def uncalibrated(self) -> Self:
        return dataclasses.replace(self, temperature=1.0)

    def calibrate(self, predictions: Array) -> Array:
        return self.rescaled(predictions, self.temperature)

    def decide(self, predictions: Array, examples: Sequence[TextExample], wanted: Decisions) -> Self:
        return self.uncalibrated().calibrated(predictions, examples) if wanted.calibrate else self

    def parse_class_weights(self, class_weights: Sequence[str]) -> Array:
        """Returns a number for each label, [C].

        Raises:
            UserError: If the weights are not as many numbers of 0 or more.
        """
        try:
            weights = np.array([float(weight) for weight in class_weights])
        except ValueError:
            weights = np.empty(0)
        if len(weights) != len(self.labels) or not ((weights >= 0) & (weights <= LARGEST)).all():
            raise UserError(
                f"--class_weights is {','.join(class_weights)}; expected {BALANCED}, or {len(self.labels)} numbers, "
                f"one for each of {', '.join(self.labels)}"
            )
        return weights
