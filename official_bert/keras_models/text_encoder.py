"""Texts to vectors.

B texts, L layers, H hidden size
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from official_bert.keras_models.text_model import TextModel
from official_bert.kinds.model import model_for
from official_bert.kinds.names import RANKING
from official_bert.kinds.vectors.model import VectorLoss
from official_bert.kinds.vectors.spec import VectorSpec
from official_bert.modeling.choices import MEAN
from official_bert.modeling.config import BertConfig


@keras.saving.register_keras_serializable(package="official_bert")
class TextEncoder(TextModel):
    """The encoder alone: a vector for each text.

    x is texts, or pairs with " ||| " between. predict returns float32 [B, H], or [B, L * H] of several layers, whose
    vectors stand side by side.

    fit and evaluate take pairs of texts that belong together, or triplets whose third text does not belong to the
    first: a tuple of columns or rows of texts. With the objective "cosine" y has a score for each pair. evaluate adds
    Spearman's and Pearson's correlation where there are scores; else accuracy and recall at 1, 5 and 10, and the mean
    reciprocal rank, of finding each first text's second one among all.

    It is also a functional model from ids to sequence_output and pooled_output, which can be put below a head of your
    own; `preprocessor` makes the ids.

    Args:
        config: the encoder's sizes.
        vocab: the text of its vocab.txt.
        pooling: "mean" or "max" over all tokens, "cls" for the vector of [CLS], or "pooled" for that behind the pooler.
        layers: the blocks: 1 is the first, -1 the last; "pooled" takes the last.
        normalize: whether vectors are divided by their lengths, so that dot products are cosines.
        objective: what fit learns: "ranking", to find a text's second one among those of the whole batch, by a softmax
            of cosines; "cosine", the scores of pairs; or "triplet", that third texts are farther away than second ones.
        dimensions: how many of the first dimensions are to be vectors too, each.
        score_range: the scores that stand for cosines of 0 and 1.
        scale: of "ranking", what cosines are multiplied by.
        margin: of "triplet", in Euclidean distance.
        settings: as of TextModel.

    Raises:
        UserError: an argument has a value that cannot be.
    """

    head: VectorSpec
    default_name = "text_encoder"
    kinds = (VectorSpec.kind,)

    def __init__(
        self,
        config: BertConfig | Mapping[str, Any],
        vocab: str,
        *,
        pooling: str = MEAN,
        layers: Sequence[int] = (-1,),
        normalize: bool = False,
        objective: str = RANKING,
        dimensions: Sequence[int] = (),
        score_range: Sequence[float] = (0.0, 1.0),
        scale: float = 20.0,
        margin: float = 5.0,
        **settings: Any,
    ) -> None:
        head = VectorSpec(
            pooling=pooling, layers=tuple(layers), normalize=normalize, objective=objective,
            dimensions=tuple(dimensions), score_range=tuple(score_range), scale=scale, margin=margin,
        )  # fmt: skip
        super().__init__(head, config, vocab, **settings)
        self._vector_model = model_for(head).answering_model(self)

    def _own_config(self) -> dict[str, Any]:
        return self.head.settings

    @classmethod
    def _settings_of(cls, spec: Mapping[str, Any]) -> dict[str, Any]:
        names = VectorSpec().settings
        return {name: value for name, value in spec.items() if name in names}

    def _head_note(self, has_head: bool) -> str:
        return "it has no head"

    def _answering_model(self) -> keras.Model:
        return self._vector_model

    def _learner(self) -> keras.Model:
        return self._vector_model if isinstance(self.loss, VectorLoss) else self

    def _symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        # Keras' own hook calls this model with a batch, whose rows have several texts.
        if not isinstance(self.loss, VectorLoss):
            super()._symbolic_build(iterator, data_batch)
        elif self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(self._learner().trainable_variables)
