"""The head of TextEncoder: a vector for each text, or for each pair with " ||| " between."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from official_bert.errors import UserError
from official_bert.modeling.choices import MEAN, VECTORS
from official_bert.tasks.heads import python_data, texts
from official_bert.tasks.heads.features import Array, Features, Outputs
from official_bert.tasks.heads.head import Head
from official_bert.tasks.heads.texts import TextExample
from official_bert.tokenization.fast import Tokenizer
from official_bert.tokenization.pairs import PAIR_SEPARATOR

if TYPE_CHECKING:
    import keras


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorHead(Head):
    """Pooling, which has nothing to learn."""

    kind: ClassVar[str] = VECTORS

    pooling: str = MEAN
    layers: tuple[int, ...] = (-1,)

    @property
    def settings(self) -> dict[str, Any]:
        return {"pooling": self.pooling, "layers": list(self.layers)}

    def build_model(self, encoder: "keras.Model", seed: int | None = None) -> "keras.Model":
        return encoder

    def texts_of(self, examples: Sequence[TextExample]) -> dict[str, list[Any]]:
        parts = [[each.text_a, each.text_b] if each.text_b else [each.text_a] for each in examples]
        return {"text": [PAIR_SEPARATOR.join(each) for each in parts]}

    def named_answers(self, predictions: Array, examples: Sequence[TextExample]) -> dict[str, list[Any]]:
        return {"vector": [row.tolist() for row in predictions]}

    def examples(self, x: Any, y: Any) -> list[TextExample]:
        if y is not None:
            self.loss()
        parts = [text.rsplit(PAIR_SEPARATOR, 1) for text in python_data.as_texts(x)]
        return [TextExample(str(number), first, *(second or [""])) for number, (first, *second) in enumerate(parts)]

    def featurize(self, examples: Sequence[TextExample], tokenizer: Tokenizer, max_seq_length: int) -> Features:
        if not any(example.text_b for example in examples):
            examples = [dataclasses.replace(example, text_b=None) for example in examples]
        return texts.featurize(examples, tokenizer, max_seq_length)

    def loss(self) -> Any:
        raise UserError("an encoder has nothing to learn by itself; put it below a head, or take TextClassifier")

    def decode(self, outputs: Outputs, features: Features, examples: Sequence[TextExample]) -> Array:
        return np.stack(outputs)
