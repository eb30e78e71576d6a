"""Regression as TensorFlow functions, for SavedModels."""

from typing import Any, ClassVar

from official_bert.kinds.graph_model import LabelGraph


class Graph(LabelGraph):
    """The TensorFlow functions of a regression model, from strings to numbers."""

    row_shape: ClassVar[list[int | None]] = []

    def answer_logits(self, logits: Any) -> dict[str, Any]:
        return {"value": logits}
