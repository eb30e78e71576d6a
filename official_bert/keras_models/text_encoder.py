"""Texts to vectors.

B texts, L layers, H hidden size
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from official_bert.checkpoints.loading import Loaded
from official_bert.errors import UserError
from official_bert.export.text_models import ENCODER
from official_bert.inference.features import FeatureExtractor
from official_bert.keras_models.text_model import TextModel
from official_bert.modeling.config import BertConfig
from official_bert.tasks.heads import python_data
from official_bert.tasks.heads.features import Features, cut_note
from official_bert.tasks.heads.head import Head
from official_bert.tokenization.fast import FastTokenizer

POOLED = "pooled"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderHead(Head):
    """None: there is nothing to learn."""

    kind: ClassVar[str] = ENCODER

    def build_model(self, encoder: keras.Model, seed: int | None = None) -> keras.Model:
        return encoder

    def examples(self, x: Any, y: Any) -> list[Any]:
        raise UserError("an encoder has nothing to learn by itself; put it below a head, or take TextClassifier")

    def featurize(self, examples: Sequence[Any], tokenizer: FastTokenizer, max_seq_length: int) -> Features:
        raise NotImplementedError

    def loss(self) -> Any:
        return self.examples(None, None)


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
        pooling: str = "mean",
        layers: Sequence[int] = (-1,),
        **settings: Any,
    ) -> None:
        if pooling not in (POOLED, "mean", "max", "cls"):
            raise UserError(f"pooling is {pooling!r}; expected mean, max, cls or pooled")
        super().__init__(EncoderHead(), config, vocab, **settings)
        self.pooling, self.vector_layers = pooling, tuple(layers)

    def _own_config(self) -> dict[str, Any]:
        return {"pooling": self.pooling, "layers": list(self.vector_layers)}

    def _head_note(self, has_head: bool) -> str:
        return "it has no head"

    def _answer(self, x: Any, batch_size: int) -> Any:
        texts = python_data.as_texts(x)
        if not texts:
            raise UserError("there are no examples")
        cut = int(np.sum(np.diff(self._tokenizer.encode(texts)[1]) > self.max_seq_length - 2))
        if note := cut_note(cut, len(texts), "texts", self.max_seq_length, "max_seq_length"):
            print(f"note: {note}")
        if self.pooling == POOLED:
            data = tf.data.Dataset.from_tensor_slices(texts).batch(batch_size).map(self.preprocessor)
            return np.concatenate([self(ids, training=False)["pooled_output"] for ids in data])
        extractor = FeatureExtractor(
            Loaded(self, self.bert_config, self._tokenizer.exact),
            layers=self.vector_layers, pooling=self.pooling, max_seq_length=self.max_seq_length, batch_size=batch_size,
        )  # fmt: skip
        return np.asarray([np.concatenate(list(each.values), axis=-1) for each in extractor.extract(texts)], np.float32)
