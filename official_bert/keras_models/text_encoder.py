"""Texts to vectors.

B texts, L layers, H hidden size
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from official_bert.keras_models.text_model import TextModel
from official_bert.modeling.choices import MEAN
from official_bert.modeling.config import BertConfig
from official_bert.modeling.pooling import build_vector_model
from official_bert.tasks.heads.vectors import VectorHead


@keras.saving.register_keras_serializable(package="official_bert")
class TextEncoder(TextModel):
    """The encoder alone: a vector for each text.

    x is texts, or pairs with " ||| " between. predict returns float32 [B, H], or [B, L * H] of several layers, whose
    vectors stand side by side. To train it, put it below a head of your own: it is a functional model from ids to
    sequence_output and pooled_output, and `preprocessor` makes the ids.

    Args:
        config: the encoder's sizes.
        vocab: the text of its vocab.txt.
        pooling: "mean" or "max" over all tokens, "cls" for the vector of [CLS], or "pooled" for that behind the pooler.
        layers: the blocks: 1 is the first, -1 the last; "pooled" takes the last.
        settings: as of TextModel.
    """

    default_name = "text_encoder"

    def __init__(
        self,
        config: BertConfig | Mapping[str, Any],
        vocab: str,
        *,
        pooling: str = MEAN,
        layers: Sequence[int] = (-1,),
        **settings: Any,
    ) -> None:
        super().__init__(VectorHead(pooling=pooling, layers=tuple(layers)), config, vocab, **settings)
        self._vector_model = build_vector_model(self, pooling, layers)

    def _own_config(self) -> dict[str, Any]:
        return self.head.settings

    def _head_note(self, has_head: bool) -> str:
        return "it has no head"

    def _answering_model(self) -> keras.Model:
        return self._vector_model
