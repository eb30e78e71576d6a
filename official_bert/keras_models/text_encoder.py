"""Texts to vectors.

B texts, L layers, H hidden size
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from official_bert.errors import UserError
from official_bert.export.text_models import VECTORS
from official_bert.keras_models.text_model import TextModel
from official_bert.modeling.choices import MEAN
from official_bert.modeling.config import BertConfig
from official_bert.modeling.pooling import build_vector_model
from official_bert.tasks.heads import python_data, texts
from official_bert.tasks.heads.features import Array, Features, Outputs
from official_bert.tasks.heads.head import Head
from official_bert.tasks.heads.texts import TextExample
from official_bert.tokenization.fast import FastTokenizer
from official_bert.tokenization.pairs import PAIR_SEPARATOR


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorHead(Head):
    """Pooling, which has nothing to learn."""

    kind: ClassVar[str] = VECTORS

    pooling: str = MEAN
    layers: tuple[int, ...] = (-1,)

    @property
    def settings(self) -> dict[str, Any]:
        return {"pooling": self.pooling, "layers": list(self.layers)}

    def build_model(self, encoder: keras.Model, seed: int | None = None) -> keras.Model:
        return encoder

    def examples(self, x: Any, y: Any) -> list[TextExample]:
        if y is not None:
            self.loss()
        parts = [text.rsplit(PAIR_SEPARATOR, 1) for text in python_data.as_texts(x)]
        return [TextExample(str(number), first, *(second or [""])) for number, (first, *second) in enumerate(parts)]

    def featurize(self, examples: Sequence[TextExample], tokenizer: FastTokenizer, max_seq_length: int) -> Features:
        if not any(example.text_b for example in examples):
            examples = [dataclasses.replace(example, text_b=None) for example in examples]
        return texts.featurize(examples, tokenizer, max_seq_length)

    def loss(self) -> Any:
        raise UserError("an encoder has nothing to learn by itself; put it below a head, or take TextClassifier")

    def decode(self, outputs: Outputs, features: Features, examples: Sequence[TextExample]) -> Array:
        return np.stack(outputs)


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
