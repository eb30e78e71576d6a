"""Texts or pairs of texts to classes, or to a number.

B texts, C classes
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from official_bert.keras_models.text_model import TextModel
from official_bert.modeling.config import BertConfig
from official_bert.tasks.heads import python_data
from official_bert.tasks.heads.texts import ClassificationHead, MultiLabelHead, RegressionHead, TextHead


@keras.saving.register_keras_serializable(package="official_bert")
class TextClassifier(TextModel):
    """Classes of texts or of pairs of texts (paper, section 4.1).

    x is texts, or for pairs a tuple of two columns or rows of two texts; y is class names or numbers, and with
    multi_label lists of those. predict returns probabilities, float64 [B, C]; classify returns names.

    Args:
        config: the encoder's sizes.
        vocab: the text of its vocab.txt.
        labels: the classes' names, in the order of the logits.
        multi_label: whether a text may have several classes, or none.
        pair: whether an example is two texts.
        doc_stride: None cuts texts that are too long; a number reads them in windows, each that many tokens after the
            one before, and averages their logits.
        settings: as of TextModel.

    Raises:
        UserError: the labels are no names, or another argument has a value that cannot be.
    """

    head: TextHead
    default_name = "text_classifier"
    kinds = (ClassificationHead.kind, MultiLabelHead.kind)

    def __init__(
        self,
        config: BertConfig | Mapping[str, Any],
        vocab: str,
        *,
        labels: Sequence[Any],
        multi_label: bool = False,
        pair: bool = False,
        doc_stride: int | None = None,
        **settings: Any,
    ) -> None:
        names = python_data.label_names(labels, least=1 if multi_label else 2, settings=settings)
        head_class = MultiLabelHead if multi_label else ClassificationHead
        super().__init__(head_class(labels=names, pair=pair, doc_stride=doc_stride), config, vocab, **settings)

    def _own_config(self) -> dict[str, Any]:
        head = self.head
        return {
            "pair": head.pair,
            "doc_stride": head.doc_stride,
            "labels": list(head.labels or ()),
            "multi_label": not head.has_one_class,
        }

    @classmethod
    def _settings_of(cls, spec: Mapping[str, Any]) -> dict[str, Any]:
        several = spec["kind"] == MultiLabelHead.kind
        return {
            "labels": spec["labels"], "multi_label": several, "pair": spec["pair"], "doc_stride": spec.get("doc_stride")
        }  # fmt: skip

    @classmethod
    def _settings_of_classifier(cls, labels: tuple[str, ...] | None, kind: str | None) -> dict[str, Any]:
        return {"multi_label": kind == MultiLabelHead.kind} | ({"labels": labels} if labels else {})

    def classify(self, x: Any, batch_size: int | None = None) -> list[Any]:
        """Returns the name of each text's likeliest class; with multi_label the names of all that are likely."""
        names = self.head.labels or ()
        labels = self.head.predicted_labels(self.predict(x, batch_size))
        return [names[label] if isinstance(label, int) else [names[each] for each in label] for label in labels]


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

    head: RegressionHead
    default_name = "text_regressor"
    kinds = (RegressionHead.kind,)

    def __init__(
        self,
        config: BertConfig | Mapping[str, Any],
        vocab: str,
        *,
        pair: bool = False,
        doc_stride: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(RegressionHead(pair=pair, doc_stride=doc_stride), config, vocab, **settings)

    def _own_config(self) -> dict[str, Any]:
        return {"pair": self.head.pair, "doc_stride": self.head.doc_stride}

    @classmethod
    def _settings_of(cls, spec: Mapping[str, Any]) -> dict[str, Any]:
        return {"pair": spec["pair"], "doc_stride": spec.get("doc_stride")}
