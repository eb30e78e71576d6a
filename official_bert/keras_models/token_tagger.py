"""A Keras model that predicts a tag for each word."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from official_bert.keras_models.data_sets import read_texts
from official_bert.keras_models.fitting_model import FittingModel
from official_bert.kinds import class_labels, input_adapters
from official_bert.kinds.tagging.spec import Sentence, Span, TaggingSpec, join_words, split_text
from official_bert.modeling.config import BertConfig


@keras.saving.register_keras_serializable(package="official_bert")
class TokenTagger(FittingModel):
    """Predicts a tag for each word, such as named entities or parts of speech (paper, section 5.3).

    x contains sentences, each a list of words or a text with spaces between words. y contains a list of tags for each
    sentence, as names or indices. Long sentences are split into windows. predict returns the tags of each sentence and
    their probabilities. `tag` returns entities with their character positions.

    Args:
        config: Sizes of the encoder: a BertConfig or a dict of its fields.
        vocab: Contents of the model's vocab.txt.
        labels: Names of the tags, in the order of the logits. Defaults to None: `fit` takes the sorted tags of y.
        doc_stride: Approximate number of tokens between the starts of two windows of a long sentence. Defaults to half
            a window.
        settings: Other arguments of TextModel.

    Raises:
        UserError: If the labels are not names, or another argument is out of range.
    """

    spec: TaggingSpec
    default_name = "token_tagger"
    kinds = (TaggingSpec.kind,)

    def __init__(
        self,
        config: BertConfig | Mapping[str, Any],
        vocab: str,
        *,
        labels: Sequence[Any] | None = None,
        doc_stride: int | None = None,
        **settings: Any,
    ) -> None:
        names = class_labels.check_label_names(labels, least=1, settings=settings)
        super().__init__(TaggingSpec(labels=names, doc_stride=doc_stride), config, vocab, **settings)

    def tag(self, x: Any, batch_size: int | None = None) -> list[list[Span]]:
        """Returns the entities of each text in order, with text, label, start, end and probability.

        If the tags do not follow an entity scheme such as BIO or BIOES, returns each word with its tag.

        Args:
            x: Texts, or a tf.data.Dataset of texts, which are split into words at spaces and punctuation. Lists of
                words are not split further; their character positions refer to the words joined by spaces.
            batch_size: Number of texts per batch. Defaults to 32.

        Raises:
            UserError: If texts have the wrong form, or x is empty.
        """
        rows = input_adapters.to_list(read_texts(x, self.spec))
        sentences = [self._parse_sentence(row, number) for number, row in enumerate(rows, start=1)]
        return self.spec.spans(self._predictions(sentences, batch_size), sentences)

    def _parse_sentence(self, row: Any, number: int) -> Sentence:
        name = f"x[{number - 1}]"
        if isinstance(row, str | bytes):
            return split_text(input_adapters.to_text(row, name), self._tokenizer, number)
        return join_words(Sentence(tuple(input_adapters.to_texts(row, name)), None, number))
