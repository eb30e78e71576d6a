"""A Keras model that predicts a number for a text or text pair.

B texts
"""

from collections.abc import Mapping
from typing import Any

import keras

from official_bert.keras_models.fitting_model import FittingModel
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.modeling.config import BertConfig


@keras.saving.register_keras_serializable(package="official_bert")
class TextRegressor(FittingModel):
    """Predicts a number for each text or text pair, such as the similarity in STS-B.

    x contains texts. For pairs, x is a tuple of two lists of texts, or a list of (text, text) rows. y contains numbers.
    predict returns numbers, float64 [B].

    Args:
        config: Sizes of the encoder: a BertConfig or a dict of its fields.
        vocab: Contents of the model's vocab.txt.
        pair: Whether an example consists of two texts.
        doc_stride: Number of tokens between the starts of two windows of a long text, whose outputs are averaged.
            Defaults to None, which truncates long texts.
        settings: Other arguments of TextModel.
    """

    spec: RegressionSpec
    default_name = "text_regressor"
    kinds = (RegressionSpec.kind,)

    def __init__(
        self,
        config: BertConfig | Mapping[str, Any],
        vocab: str,
        *,
        pair: bool = False,
        doc_stride: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(RegressionSpec(pair=pair, doc_stride=doc_stride), config, vocab, **settings)
