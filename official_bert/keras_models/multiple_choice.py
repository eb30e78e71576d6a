"""Which of several endings follows a text.

B examples, N endings
"""

from collections.abc import Mapping
from typing import Any

import keras

from official_bert.keras_models.text_model import TextModel
from official_bert.kinds.multiple_choice.spec import MultipleChoiceSpec, chosen
from official_bert.modeling.config import BertConfig


@keras.saving.register_keras_serializable(package="official_bert")
class MultipleChoice(TextModel):
    """Which of four endings follows (SWAG; paper, section 4.4).

    x is prompts with their endings: a tuple of a column of texts and a column of lists of four texts, or rows of both;
    y is the number of the right ending. predict returns probabilities, float64 [B, N]; choose returns numbers.

    Args:
        config: the encoder's sizes.
        vocab: the text of its vocab.txt.
        settings: as of TextModel.
    """

    default_name = "multiple_choice"
    kinds = (MultipleChoiceSpec.kind,)

    def __init__(self, config: BertConfig | Mapping[str, Any], vocab: str, **settings: Any) -> None:
        super().__init__(MultipleChoiceSpec(), config, vocab, **settings)

    def choose(self, x: Any, batch_size: int | None = None) -> list[int]:
        """Returns the number of the likeliest ending of each prompt."""
        return chosen(self.predict(x, batch_size))
