"""Keras models that take text: strings in, answers out, with Keras' fit, evaluate, predict, save and export.

Importing this package registers every class that a .keras file may contain, so that `keras.saving.load_model` finds it.
No other package imports this one: users find its classes in official_bert.
"""

from official_bert.keras_models import (
    classification,
    masked_lm,
    multiple_choice,
    question_answering,
    tagging,
    text_encoder,
)
from official_bert.kinds.model import import_models

import_models()

__all__ = ["classification", "masked_lm", "multiple_choice", "question_answering", "tagging", "text_encoder"]
