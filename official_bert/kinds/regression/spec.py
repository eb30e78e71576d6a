"""A number for each text or pair (paper, section 4.1)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from official_bert.errors import UserError
from official_bert.kinds import input_adapters, scores
from official_bert.kinds.features import LABELS, Array
from official_bert.kinds.names import REGRESSION
from official_bert.kinds.text_spec import TextExample, TextSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegressionSpec(TextSpec):
    """A number, such as STS-B's: label and prediction."""

    kind: ClassVar[str] = REGRESSION
    best_metric: ClassVar[str] = "pearson"
    is_value: ClassVar[bool] = True
    answer_dtypes: ClassVar[Mapping[str, Any]] = {"value": np.float32}

    def labels_from(self, y: Any) -> list[float]:
        given = input_adapters.as_list(y, "y")
        values = [input_adapters.as_number(value) for value in given]
        wrong = next((number for number, value in enumerate(values) if not abs(value) <= input_adapters.LARGEST), None)
        if wrong is not None:
            shown, most = input_adapters.shown(given[wrong]), input_adapters.LARGEST
            raise UserError(f"y[{wrong}] is {shown}; expected a finite number, at most {most:g}")
        return values

    def targets(self, labels: Sequence[float]) -> Array:
        return np.array(labels, np.float32)

    def blank_targets(self, tokens: int) -> dict[str, Array]:
        return {LABELS: np.zeros(1, np.float32)}

    def activated(self, logits: Array) -> Array:
        return logits

    def predicted_labels(self, predictions: Array) -> list[float]:
        return [float(value) for value in predictions]

    def name_of(self, label: float) -> str:
        return f"{label:.7g}"

    def named_answers(self, predictions: Array, examples: Sequence[TextExample]) -> dict[str, list[Any]]:
        return {"value": self.predicted_labels(predictions)}

    def certainty(self, prediction: Any) -> None:
        return None

    def scores(self, predictions: Array, examples: Sequence[TextExample]) -> dict[str, float]:
        predicted, expected = np.asarray(predictions), np.array([example.label for example in examples])
        return {
            "pearson": scores.pearson(predicted, expected),
            "spearman": scores.spearman(predicted, expected),
            "mean_absolute_error": float(np.abs(predicted - expected).mean()),
        }

    def soft_targets(self, targets: Array, classes: int) -> Array:
        return targets[:, None]
