"""Texts or pairs of texts to a number.

B texts
"""

from collections.abc import Mapping
from typing import Any

import keras

from official_bert.keras_models.text_model import TextModel
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.modeling.config import BertConfig


@keras.saving.register_keras_serializable(package="official_bert")
class TextRegressor(TextModel):
    """A number for each text or pair of texts, as STS-B wants it.

    x is as of TextClassifier, y is numbers; predict returns numbers, float64 [B].

    Args:
        config: the encoder's sizes.
        vocab: the text of its vocab.txt.
        pair: as of TextClassifier, as is `doc_stride`.
        settings: as of TextModel.
    """

    head: RegressionSpec
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

    def _own_config(self) -> dict[str, Any]:
        return {"pair": self.head.pair, "doc_stride": self.head.doc_stride}

    @classmethod
    def _settings_of(cls, spec: Mapping[str, Any]) -> dict[str, Any]:
        return {"pair": spec["pair"], "doc_stride": spec.get("doc_stride")}
