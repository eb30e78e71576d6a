"""The KindSpec of regression: a number for each text or text pair (paper, section 4.1)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from official_bert.kinds import input_adapters, scores
from official_bert.kinds.features import Array
from official_bert.kinds.names import REGRESSION
from official_bert.kinds.text_spec import TextExample, TextSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegressionSpec(TextSpec):
    """The KindSpec of regression, such as the similarity in STS-B. Labels and predictions are numbers."""

    kind: ClassVar[str] = REGRESSION
    decoding: ClassVar[str] = "The value is the logit, averaged over the windows."
    score_names: ClassVar[tuple[str, ...]] = ("pearson", "spearman", "mean_absolute_error")
    is_value: ClassVar[bool] = True
    target_dtype: ClassVar[Any] = np.float32
    answer_dtypes: ClassVar[Mapping[str, Any]] = {"value": np.float32}

    def parse_labels(self, y: Any) -> list[float]:
        values = input_adapters.to_list(y, "y")
        return [input_adapters.check_number(value, f"y[{index}]") for index, value in enumerate(values)]

    def apply_activation(self, logits: Array) -> Array:
        return logits

    def predicted_labels(self, predictions: Array) -> list[float]:
        return [float(value) for value in predictions]

    def format_label(self, label: float) -> str:
        return f"{label:.7g}"

    def named_answers(self, predictions: Array, examples: Sequence[TextExample]) -> dict[str, list[Any]]:
        return {"value": self.predicted_labels(predictions)}

    def scores(self, predictions: Array, examples: Sequence[TextExample]) -> dict[str, float]:
        predicted, expected = np.asarray(predictions), np.array([example.label for example in examples])
        return {
            "pearson": scores.pearson(predicted, expected),
            "spearman": scores.spearman(predicted, expected),
            "mean_absolute_error": float(np.abs(predicted - expected).mean()),
        }
