"""Keras models that take text: fit, evaluate and predict accept strings, and save and export include the tokenizer.

Importing this package registers every class that a .keras file may contain, so that `keras.saving.load_model` finds it.
No other package imports this one: users find its classes in official_bert.
"""

from official_bert.keras_models import (
    masked_lm,
    multiple_choice,
    question_answerer,
    text_classifier,
    text_encoder,
    text_regressor,
    token_tagger,
)
from official_bert.kinds.model import import_models

import_models()

__all__ = [
    "masked_lm",
    "multiple_choice",
    "question_answerer",
    "text_classifier",
    "text_encoder",
    "text_regressor",
    "token_tagger",
]
