"""Words to tags."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from official_bert.errors import UserError
from official_bert.keras_models import inputs
from official_bert.keras_models.base import BaseTextModel
from official_bert.keras_models.text_data import Examples
from official_bert.modeling.config import BertConfig
from official_bert.modeling.task_models import TAGGING, build_token_tagger
from official_bert.tasks import tagging, tagging_task
from official_bert.tasks.tagging import Sentence
from official_bert.tasks.task import NO_LABEL, Features, TaggingLoss, by_token


@keras.saving.register_keras_serializable(package="official_bert")
class TagAccuracy(keras.metrics.Metric):
    """The share of right tags among the tokens that have one: y_true [B, S], y_pred [B, S, C] logits.

    Weights are those of rows, [B] or [B, 1], or of tokens, [B, S].
    """

    def __init__(self, name: str = "accuracy", **settings: Any) -> None:
        super().__init__(name=name, **settings)
        self._right = self.add_weight(name="right", initializer="zeros")
        self._all = self.add_weight(name="all", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        y_true = keras.ops.cast(y_true, "int32")
        has_tag = keras.ops.not_equal(y_true, NO_LABEL)
        is_right = keras.ops.equal(keras.ops.cast(keras.ops.argmax(y_pred, axis=-1), "int32"), y_true)
        weight = keras.ops.cast(has_tag, "float32")
        if sample_weight is not None:
            weight = weight * by_token(sample_weight)
        self._right.assign_add(keras.ops.sum(weight * keras.ops.cast(is_right, "float32")))
        self._all.assign_add(keras.ops.sum(weight))

    def result(self) -> Any:
        return keras.ops.divide_no_nan(self._right, self._all)


class TokenModel(BaseTextModel):
    """A model whose loss is a mean over tokens: that of an epoch is the mean over all of its tokens.

    Keras would take the batches' means by their rows, which depends on what tokens share a batch.
    """

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Returns the loss as keras.Model.compute_loss does."""
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        if isinstance(self.loss, TaggingLoss) and not self.is_replicated:
            tokens = keras.ops.sum(keras.ops.cast(keras.ops.not_equal(y, NO_LABEL), "float32"))
            rows = keras.ops.cast(keras.ops.shape(y)[0], "float32")
            tracker = next(metric for metric in self.metrics if metric.name == "loss")
            tracker.update_state(loss, sample_weight=tokens - rows)  # Keras goes on to count it for the rows
        return loss


@keras.saving.register_keras_serializable(package="official_bert")
class TokenTagger(TokenModel):
    """A tag for each word, as for entities or parts of speech (paper, section 5.3).

    x is sentences, each a list of words or a text with spaces between them; y is lists of tags, by name or by number.
    Long sentences are read in windows. predict returns for each sentence its words' tags and how certain each is, from
    0 to 1; tag returns the tags.

    Args:
        config: the encoder's sizes.
        vocab: the text of its vocab.txt.
        labels: the tags, in the order of the logits.
        doc_stride: tokens from one window of a long sentence to the next, about; None for half a window.
        settings: as of BaseTextModel.
    """

    kind = TAGGING
    default_name = "token_tagger"

    def __init__(
        self,
        config: BertConfig | Mapping[str, Any],
        vocab: str,
        *,
        labels: Sequence[Any],
        doc_stride: int | None = None,
        **settings: Any,
    ) -> None:
        self.labels = tuple(map(str, labels))
        super().__init__(config, vocab, **settings)
        self.doc_stride = doc_stride

    def _build_core(self, encoder: keras.Model, seed: int) -> keras.Model:
        return build_token_tagger(encoder, len(self.labels), seed=seed)

    def _own_config(self) -> dict[str, Any]:
        return {"labels": list(self.labels), "doc_stride": self.doc_stride}

    def _task_spec(self) -> dict[str, Any]:
        windows = {"doc_stride": self.doc_stride} if self.doc_stride else {}
        return {**super()._task_spec(), "labels": list(self.labels), **windows}

    @classmethod
    def _settings_of(cls, spec: Mapping[str, Any]) -> dict[str, Any]:
        return {**super()._settings_of(spec), "labels": spec["labels"], "doc_stride": spec.get("doc_stride")}

    def _examples(self, x: Any, y: Any) -> list[Sentence]:
        rows = inputs.as_list(x)
        words = [
            tuple(inputs.as_texts([row])[0].split() if isinstance(row, str | bytes) else inputs.as_texts(row))
            for row in rows
        ]
        if y is None:
            return [Sentence(each, None, number) for number, each in enumerate(words, start=1)]
        tags = inputs.as_list(y)
        inputs.check_same_length(len(words), tags, "y")
        sentences = []
        for number, (each, row) in enumerate(zip(words, tags, strict=True)):
            names = inputs.as_text(row, "y").split() if isinstance(row, str | bytes) else inputs.as_list(row)
            if len(names) != len(each):
                raise UserError(f"x[{number}] has {len(each)} words and y[{number}] {len(names)} tags")
            numbers = inputs.numbers_of(names, self.labels, f"y[{number}]")
            sentences.append(Sentence(each, tuple(self.labels[tag] for tag in numbers), number + 1))
        return sentences

    def _weighed(self, x: Any, y: Any, sample_weight: Any, class_weight: Any) -> Examples:
        examples = super()._weighed(x, y, sample_weight, class_weight)
        if examples.weights is None:
            return examples
        # [E, 1]: a sentence's weight is that of its tokens, whatever loss they are given to.
        return Examples(examples.items, examples.weights[:, None])

    def _featurize(self, examples: Sequence[Sentence]) -> Features:
        windows = tagging.cut_into_windows(
            [each.words for each in examples], self._tokenizer.exact, self.max_seq_length, self.doc_stride
        )
        number_of = {label: number for number, label in enumerate(self.labels)}
        return tagging_task.features_of(windows, examples, number_of)

    def _decode(self, outputs: Any, features: Features, examples: Sequence[Sentence]) -> Any:
        counts = [len(each.words) for each in examples]
        windows = tagging_task.windows_of(features)
        tags, certainties = tagging.tags_from_logits(counts, windows, outputs, self.labels)
        return list(zip(tags, certainties, strict=True))

    def _task_metrics(self) -> Any:
        return [TagAccuracy()]

    def tag(self, x: Any, batch_size: int | None = None) -> list[list[str]]:
        """Returns the tags of each sentence's words."""
        return [tags for tags, _ in self.predict(x, batch_size)]
