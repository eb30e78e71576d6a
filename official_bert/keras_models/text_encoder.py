"""A Keras model that computes sentence vectors.

B texts, L pooled layers, H hidden size
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from official_bert.keras_models.fitting_model import FittingModel
from official_bert.kinds.model import create_kind_model
from official_bert.kinds.names import RANKING
from official_bert.kinds.vectors.model import VectorLoss
from official_bert.kinds.vectors.spec import VectorSpec
from official_bert.modeling.choices import MEAN
from official_bert.modeling.config import BertConfig


@keras.saving.register_keras_serializable(package="official_bert")
class TextEncoder(FittingModel):
    """An encoder that returns one vector per text.

    x contains texts, or pairs written as "first ||| second". predict returns float32 [B, H]. If `layers` has L
    elements, it returns their concatenated vectors, [B, L * H].

    fit and evaluate take pairs of related texts, or triplets of an anchor, a related and an unrelated text, as a tuple
    of lists of texts or as a list of rows. For the objective "cosine", y contains the similarity score of each pair.
    evaluate adds Spearman's and Pearson's correlation if there are scores. Otherwise it adds scores of retrieving the
    second text of each pair by the first: accuracy and recall at 1, 5 and 10, and the mean reciprocal rank.

    It is also a functional model from token ids to sequence_output and pooled_output, for a head of your own. The
    `preprocessor` computes the ids.

    Args:
        config: Sizes of the encoder: a BertConfig or a dict of its fields.
        vocab: Contents of the model's vocab.txt.
        pooling: "mean" or "max" over all tokens, "cls" for the vector of [CLS], or "pooled" for the pooler's output.
        layers: Encoder blocks to use: 1 is the first, -1 the last. "pooled" uses the last block.
        normalize: Whether to scale vectors to length 1, so that dot products are cosine similarities.
        objective: Loss of fit. "ranking" is a softmax over the cosine similarities of all second texts in a batch.
            "cosine" fits the similarity scores of pairs. "triplet" separates related from unrelated texts.
        dimensions: Numbers of leading dimensions that are trained to be useful vectors on their own (Matryoshka).
        score_range: Scores that correspond to cosine similarities of 0 and 1.
        scale: Factor of the cosine similarities for "ranking".
        margin: Minimum difference of Euclidean distances for "triplet".
        settings: Other arguments of TextModel.

    Raises:
        UserError: If an argument is out of range.
    """

    spec: VectorSpec
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
        spec = VectorSpec(
            pooling=pooling, layers=tuple(layers), normalize=normalize, objective=objective,
            dimensions=tuple(dimensions), score_range=tuple(score_range), scale=scale, margin=margin,
        )  # fmt: skip
        super().__init__(spec, config, vocab, **settings)
        self._vector_model = create_kind_model(spec).answering_model(self)

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
