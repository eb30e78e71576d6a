"""Words to tags."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from official_bert.keras_models.text_model import TextModel
from official_bert.modeling.config import BertConfig
from official_bert.tasks.heads import python_data
from official_bert.tasks.heads.tagging import TaggingHead


@keras.saving.register_keras_serializable(package="official_bert")
class TokenTagger(TextModel):
    """A tag for each word, as for entities or parts of speech (paper, section 5.3).

    x is sentences, each a list of words or a text with spaces between them; y is lists of tags, by name or by number.
    Long sentences are read in windows. predict returns for each sentence its words' tags and how certain each is, from
    0 to 1; tag returns the tags.

    Args:
        config: the encoder's sizes.
        vocab: the text of its vocab.txt.
        labels: the tags, in the order of the logits.
        doc_stride: tokens from one window of a long sentence to the next, about; None for half a window.
        settings: as of TextModel.

    Raises:
        UserError: the labels are no names, or another argument has a value that cannot be.
    """

    head: TaggingHead
    default_name = "token_tagger"
    kinds = (TaggingHead.kind,)

    def __init__(
        self,
        config: BertConfig | Mapping[str, Any],
        vocab: str,
        *,
        labels: Sequence[Any],
        doc_stride: int | None = None,
        **settings: Any,
    ) -> None:
        names = python_data.label_names(labels, least=1, settings=settings)
        super().__init__(TaggingHead(labels=names, doc_stride=doc_stride), config, vocab, **settings)

    def _own_config(self) -> dict[str, Any]:
        return {"labels": list(self.head.labels), "doc_stride": self.head.doc_stride}

    @classmethod
    def _settings_of(cls, spec: Mapping[str, Any]) -> dict[str, Any]:
        return {"labels": spec["labels"], "doc_stride": spec.get("doc_stride")}

    @classmethod
    def _settings_of_classifier(cls, labels: tuple[str, ...] | None, kind: str | None) -> dict[str, Any]:
        return {"labels": labels} if labels else {}

    def tag(self, x: Any, batch_size: int | None = None) -> list[list[str]]:
        """Returns the tags of each sentence's words."""
        return [tags for tags, _ in self.predict(x, batch_size)]
