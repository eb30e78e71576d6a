"""Words to tags."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from official_bert.keras_models.text_model import TextModel
from official_bert.kinds import class_labels, input_adapters
from official_bert.kinds.tagging.spec import Sentence, Span, TaggingSpec, joined, sentence_of
from official_bert.modeling.config import BertConfig


@keras.saving.register_keras_serializable(package="official_bert")
class TokenTagger(TextModel):
    """A tag for each word, as for entities or parts of speech (paper, section 5.3).

    x is sentences, each a list of words or a text with spaces between them; y is lists of tags, by name or by number.
    Long sentences are read in windows. predict returns for each sentence its words' tags and how certain each is, from
    0 to 1; tag returns the entities with the characters that they are.

    Args:
        config: the encoder's sizes.
        vocab: the text of its vocab.txt.
        labels: the tags, in the order of the logits.
        doc_stride: tokens from one window of a long sentence to the next, about; None for half a window.
        settings: as of TextModel.

    Raises:
        UserError: the labels are no names, or another argument has a value that cannot be.
    """

    head: TaggingSpec
    default_name = "token_tagger"
    kinds = (TaggingSpec.kind,)

    def __init__(
        self,
        config: BertConfig | Mapping[str, Any],
        vocab: str,
        *,
        labels: Sequence[Any],
        doc_stride: int | None = None,
        **settings: Any,
    ) -> None:
        names = class_labels.check_label_names(labels, least=1, settings=settings)
        super().__init__(TaggingSpec(labels=names, doc_stride=doc_stride), config, vocab, **settings)

    def _own_config(self) -> dict[str, Any]:
        return {"labels": list(self.head.labels), "doc_stride": self.head.doc_stride}

    @classmethod
    def _settings_of(cls, spec: Mapping[str, Any]) -> dict[str, Any]:
        return {"labels": spec["labels"], "doc_stride": spec.get("doc_stride")}

    @classmethod
    def _settings_of_classifier(cls, labels: tuple[str, ...] | None, kind: str | None) -> dict[str, Any]:
        return {"labels": labels} if labels else {}

    def tag(self, x: Any, batch_size: int | None = None) -> list[list[Span]]:
        """Returns the entities of each text, in order: text, label, start, end and probability of each.

        Where the tags are not those of entities (BIO, BIOES and the like), each word is returned with its tag.

        Args:
            x: texts, or a data set of such. Words are found as exports find them: punctuation is a word of its own.
                Lists of words stay as they are; their characters are those of the text with spaces between them.
            batch_size: texts at a time; 32 by default.

        Raises:
            UserError: texts have another form, or there are none.
        """
        rows = input_adapters.as_list(self._create_inputs().texts_in(x))
        sentences = [self._sentence(row, number) for number, row in enumerate(rows, start=1)]
        return self.head.spans(self._predictions(sentences, batch_size), sentences)

    def _sentence(self, row: Any, number: int) -> Sentence:
        name = f"x[{number - 1}]"
        if isinstance(row, str | bytes):
            return sentence_of(input_adapters.as_text(row, name), self._tokenizer, number)
        return joined(Sentence(tuple(input_adapters.as_texts(row, name)), None, number))
