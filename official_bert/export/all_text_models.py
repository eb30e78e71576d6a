"""From the kind of a head to the class of its functions of TensorFlow."""

from collections.abc import Mapping
from typing import Any

import keras

from official_bert.export.long_text_models import QuestionAnsweringModel, TaggingModel
from official_bert.export.text_models import (
    ENCODER,
    FILL_MASK,
    ClassificationModel,
    EncoderModel,
    FillMaskModel,
    MultiLabelModel,
    MultipleChoiceModel,
    RegressionModel,
    TextModel,
)
from official_bert.modeling import task_models
from official_bert.tokenization.exact import FullTokenizer

TEXT_MODELS: dict[str, type[TextModel]] = {
    task_models.CLASSIFICATION: ClassificationModel,
    task_models.MULTI_LABEL: MultiLabelModel,
    task_models.REGRESSION: RegressionModel,
    task_models.TAGGING: TaggingModel,
    task_models.QUESTION_ANSWERING: QuestionAnsweringModel,
    task_models.MULTIPLE_CHOICE: MultipleChoiceModel,
    FILL_MASK: FillMaskModel,
    ENCODER: EncoderModel,
}


def text_model(model: keras.Model, tokenizer: FullTokenizer, kind: str, task_spec: Mapping[str, Any]) -> TextModel:
    """Returns the functions of a model; for the arguments see TextModel.

    Args:
        model: of the kind.
        tokenizer: its tokenizer.
        kind: one of TEXT_MODELS.
        task_spec: what task.json holds.
    """
    return TEXT_MODELS[kind](model, tokenizer, task_spec)
