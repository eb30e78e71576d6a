"""A Keras model that selects one of several endings of a text.

B examples, N endings
"""

from collections.abc import Mapping
from typing import Any

import keras

from official_bert.keras_models.fitting_model import FittingModel
from official_bert.kinds.multiple_choice.spec import MultipleChoiceSpec, choose_endings
from official_bert.modeling.config import BertConfig


@keras.saving.register_keras_serializable(package="official_bert")
class MultipleChoice(FittingModel):
    """Selects one of four endings of a text (SWAG; paper, section 4.4).

    x is a tuple of prompts and of lists of four endings, or a list of (prompt, endings) pairs. y contains the index
    of the correct ending. predict returns probabilities, float64 [B, N], and `choose` returns indices.

    Args:
        config: Sizes of the encoder: a BertConfig or a dict of its fields.
        vocab: Contents of the model's vocab.txt.
        settings: Other arguments of TextModel.
    """

    default_name = "multiple_choice"
    kinds = (MultipleChoiceSpec.kind,)

    def __init__(self, config: BertConfig | Mapping[str, Any], vocab: str, **settings: Any) -> None:
        super().__init__(MultipleChoiceSpec(), config, vocab, **settings)

    def choose(self, x: Any, batch_size: int | None = None) -> list[int]:
        """Returns the index of the most probable ending of each prompt."""
        return choose_endings(self.predict(x, batch_size))
