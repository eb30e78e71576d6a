"""A trained model as functions of TensorFlow alone, from strings to answers: what saved_model.py writes.

A class for each kind of head; long_text_models.py has those that read long texts in windows.

B texts, S sequence, N choices, M masks of a text, C classes
"""

import abc
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from official_bert.export import graph_answers, graph_inputs
from official_bert.export.flat_blocks import with_flat_blocks
from official_bert.export.graph_inputs import TokenSpans, token_spans
from official_bert.export.graph_tokenization import GraphTokenizer
from official_bert.inference.exports import DEFAULT_SIGNATURE, IDS_SIGNATURE, TOKENIZE_SIGNATURE
from official_bert.tokenization.exact import CLS, MASK, SEP, FullTokenizer

FILL_MASK, ENCODER = "fill_mask", "encoder"  # the kinds besides those of task_models
TOP_K = 5  # what fill_mask answers for each mask

Signature = Callable[..., dict[str, Any]]


class TextModel(abc.ABC):
    """The functions of a model that takes text.

    Args:
        model: a functional model with a dict of inputs: of task_models, an encoder, or one that gives masked-LM logits.
        tokenizer: its tokenizer.
        task_spec: what task.json holds (see finetuned.save): max_seq_length, and labels, num_choices, pair and the
            settings of question answering for the kinds that have them.

    Attributes:
        inputs: the specifications of the text inputs by name: string [B], endings [B, N].
    """

    def __init__(self, model: keras.Model, tokenizer: FullTokenizer, task_spec: Mapping[str, Any]) -> None:
        self._model, self._exact = with_flat_blocks(model), tokenizer
        self._task_spec = dict(task_spec)
        self._tokenizer = GraphTokenizer(tokenizer)
        self._cls, self._sep = tokenizer.vocab[CLS], tokenizer.vocab[SEP]
        self._length = int(task_spec["max_seq_length"])

    @property
    @abc.abstractmethod
    def inputs(self) -> dict[str, tf.TensorSpec]: ...

    def signatures(self) -> dict[str, Any]:
        """Returns the traced functions by name: serving_default, serving_ids and tokenize."""
        features = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), self._ids_spec())
        return {
            DEFAULT_SIGNATURE: _traced(self.answer, self.inputs),
            IDS_SIGNATURE: _traced(self.answer_ids, features),
            TOKENIZE_SIGNATURE: _traced(self.tokenize, self.inputs),
        }

    def _ids_spec(self) -> tf.TensorSpec:
        return tf.TensorSpec([None, None], tf.int32)

    @abc.abstractmethod
    def tokenize(self, **texts: Any) -> dict[str, Any]:
        """Returns input_ids, input_mask and segment_ids, int32 [B, S]; [B, N, S] for multiple choice.

        For question answering and tagging there is a row for each window of a long text, and text_index, int32 [R],
        says which text it is of.
        """

    def answer(self, **texts: Any) -> dict[str, Any]:
        """Returns the named results of the model's kind."""
        answers = self.answer_ids(**self.tokenize(**texts))
        answers.pop("logits", None)
        return answers

    @abc.abstractmethod
    def answer_ids(self, **features: Any) -> dict[str, Any]:
        """Returns the results of `answer` that need no text, and the model's own outputs."""

    def _pack(self, first: TokenSpans, second: TokenSpans | None) -> dict[str, Any]:
        return graph_inputs.pack(first, second, self._cls, self._sep)


class ShortTextModel(TextModel):
    """Of texts or pairs, whose end is cut off where they are too long."""

    knows_special_tokens = False  # whether [MASK] in a text is that token

    @property
    def inputs(self) -> dict[str, tf.TensorSpec]:
        text = tf.TensorSpec([None], tf.string)
        return {"text": text, "text_pair": text} if self._task_spec.get("pair") else {"text": text}

    def tokenize(self, **texts: Any) -> dict[str, Any]:
        first = token_spans(self._tokenizer.tokenize(texts["text"], special_tokens=self.knows_special_tokens).ids)
        second = token_spans(self._tokenizer.tokenize(texts["text_pair"]).ids) if "text_pair" in self.inputs else None
        spans = graph_inputs.truncated(first, second, self._length, without_empty=True)
        return graph_inputs.pack(*spans, self._cls, self._sep, without_empty=True)


class ClassificationModel(ShortTextModel):
    """One class of several."""

    def answer_ids(self, **features: Any) -> dict[str, Any]:
        logits = self._model(features)
        return {**graph_answers.classes(logits, self._task_spec["labels"]), "logits": logits}


class MultiLabelModel(ShortTextModel):
    """Any number of classes."""

    def answer_ids(self, **features: Any) -> dict[str, Any]:
        logits = self._model(features)
        return {**graph_answers.several_classes(logits, self._task_spec["labels"]), "logits": logits}


class RegressionModel(ShortTextModel):
    """A number."""

    def answer_ids(self, **features: Any) -> dict[str, Any]:
        return {"value": self._model(features)}


class EncoderModel(ShortTextModel):
    """Vectors of the tokens and of the text, without a head."""

    def answer(self, **texts: Any) -> dict[str, Any]:
        features = self.tokenize(**texts)
        return {**self.answer_ids(**features), "input_mask": features["input_mask"]}

    def answer_ids(self, **features: Any) -> dict[str, Any]:
        return dict(self._model(features))


class FillMaskModel(ShortTextModel):
    """The likeliest pieces for each [MASK]."""

    knows_special_tokens = True

    def answer_ids(self, **features: Any) -> dict[str, Any]:
        is_mask = (features["input_ids"] == self._exact.vocab[MASK]) & (features["input_mask"] > 0)
        indices = tf.where(is_mask)  # [masks, 2]
        counts = tf.reduce_sum(tf.cast(is_mask, tf.int32), -1)  # [B]
        ragged = tf.RaggedTensor.from_row_lengths(tf.cast(indices[:, 1], tf.int32), counts, validate=False)
        logits = self._model({**features, "masked_lm_positions": ragged.to_tensor()})  # [B, M, V]
        return graph_answers.mask_candidates(logits, counts, self._exact.vocab, TOP_K)


class MultipleChoiceModel(TextModel):
    """Which of several endings follows a prompt."""

    @property
    def _choices(self) -> int:
        return int(self._task_spec["num_choices"])

    @property
    def inputs(self) -> dict[str, tf.TensorSpec]:
        return {
            "prompt": tf.TensorSpec([None], tf.string), "endings": tf.TensorSpec([None, self._choices], tf.string)
        }  # fmt: skip

    def _ids_spec(self) -> tf.TensorSpec:
        return tf.TensorSpec([None, self._choices, None], tf.int32)

    def tokenize(self, **texts: Any) -> dict[str, Any]:
        prompts = token_spans(self._tokenizer.tokenize(texts["prompt"]).ids)
        endings = token_spans(self._tokenizer.tokenize(tf.reshape(texts["endings"], [-1])).ids)
        prompts = TokenSpans(prompts.ids, *(tf.repeat(each, self._choices) for each in prompts[1:]))
        features = self._pack(*graph_inputs.truncated(prompts, endings, self._length))
        shape = [-1, self._choices, tf.shape(features["input_ids"])[1]]
        return {name: tf.reshape(value, shape) for name, value in features.items()}

    def answer_ids(self, **features: Any) -> dict[str, Any]:
        logits = self._model(features)
        return {**graph_answers.choices(logits), "logits": logits}


def _traced(function: Signature, inputs: Mapping[str, Any]) -> Any:
    """The function, traced once for inputs of these names."""
    specs = {name: tf.TensorSpec(spec.shape, spec.dtype, name=name) for name, spec in inputs.items()}
    return tf.function(lambda **tensors: function(**tensors)).get_concrete_function(**specs)
