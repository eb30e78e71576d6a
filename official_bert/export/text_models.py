"""A trained model as functions of TensorFlow alone, from strings to answers: what saved_model.py writes.

A class for each kind of head.

B texts, S sequence, N choices, M masks of a text, C classes, W words, R rows of the model's input
"""

import abc
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import keras
import tensorflow as tf

from official_bert.export import graph_answers, graph_inputs, graph_spans
from official_bert.export.graph_inputs import TokenSpans, Windows, token_spans
from official_bert.inference.exports import DEFAULT_SIGNATURE, IDS_SIGNATURE, IS_TRUNCATED, TOKENIZE_SIGNATURE, VECTOR
from official_bert.kinds import names
from official_bert.kinds.classification.spec import NO_ANSWER
from official_bert.modeling import layer_names
from official_bert.modeling.fast.flat_blocks import with_flat_blocks
from official_bert.modeling.pooling import build_vector_model
from official_bert.tokenization.exact import CLS, MASK, SEP, FullTokenizer
from official_bert.tokenization.in_graph import GraphTokenizer, Tokens, characters_between, true_positions
from official_bert.tokenization.pairs import PAIR_SEPARATOR

FILL_MASK, ENCODER = "fill_mask", "encoder"  # the kinds besides those of kinds.names
TOP_K = 5  # what fill_mask answers for each mask
_PAIR = rf"(?s)(.*){re.escape(PAIR_SEPARATOR)}(.*)"
# The most windows of long texts that the model reads at once, so that memory does not grow with the text.
_WINDOWS_AT_ONCE = 32


class TextModel(abc.ABC):
    """The functions of a model that takes text.

    Args:
        model: a functional model with a dict of inputs: with a head, an encoder, or one that gives masked-LM logits.
        tokenizer: its tokenizer.
        task_spec: what task.json holds (see finetuned.save): max_seq_length, and labels, num_choices, pair and the
            settings of question answering for the kinds that have them.

    Attributes:
        inputs: the specifications of the text inputs by name: string [B], endings [B, N].
    """

    def __init__(self, model: keras.Model, tokenizer: FullTokenizer, task_spec: Mapping[str, Any]) -> None:
        self._model, self._variables, self._exact = with_flat_blocks(model), model.variables, tokenizer
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
            IDS_SIGNATURE: _traced(self._answer_foreign_ids, features),
            TOKENIZE_SIGNATURE: _traced(self.tokenize, self.inputs),
        }

    def _ids_spec(self) -> tf.TensorSpec:
        return tf.TensorSpec([None, None], tf.int32)

    @abc.abstractmethod
    def tokenize(self, **texts: Any) -> dict[str, Any]:
        """Returns input_ids, input_mask and segment_ids, int32 [B, S]; [B, N, S] for multiple choice.

        Where long texts are read in windows there is a row for each, and text_index, int32 [R], says which text it is
        of.
        """

    @abc.abstractmethod
    def answer(self, **texts: Any) -> dict[str, Any]:
        """Returns the named results of the model's kind, and is_truncated: whether a text's end was left out, [B]."""

    @abc.abstractmethod
    def answer_ids(self, **features: Any) -> dict[str, Any]:
        """Returns the results of `answer` that need no text, and the model's own outputs."""

    def _answer_foreign_ids(self, **features: Any) -> dict[str, Any]:
        rows = {variable.path.split("/")[-2]: variable.shape[0] for variable in self._variables}
        # How many values an input may have, from 0 on.
        value_counts = {
            "input_ids": rows[layer_names.WORD_EMBEDDINGS],
            "input_mask": 2,
            "segment_ids": rows[layer_names.TOKEN_TYPE_EMBEDDINGS],
        }
        return self.answer_ids(**graph_inputs.checked(features, value_counts))

    def _pack(self, first: TokenSpans, second: TokenSpans | None, without_empty: bool = False) -> dict[str, Any]:
        return graph_inputs.pack(first, second, self._cls, self._sep, without_empty)

    def _in_chunks(self, features: dict[str, Any], shape: list[int | None]) -> Any:
        """The model's outputs for many rows, each row's of that shape, some rows at a time."""
        chunks = -tf.math.floordiv(-tf.shape(features["input_ids"])[0], _WINDOWS_AT_ONCE)

        def step(number: Any, chunks_done: Any) -> tuple[Any, Any]:
            rows = slice(number * _WINDOWS_AT_ONCE, (number + 1) * _WINDOWS_AT_ONCE)
            outputs = self._model({name: value[rows] for name, value in features.items()})
            if isinstance(outputs, dict):
                outputs = tf.stack([outputs["start_logits"], outputs["end_logits"]], -1)
            return number + 1, chunks_done.write(number, outputs)

        empty = tf.TensorArray(tf.float32, chunks, infer_shape=False, element_shape=[None, *shape])
        _, all_chunks = tf.while_loop(lambda number, _: number < chunks, step, (0, empty), parallel_iterations=1)
        return all_chunks.concat()


class ShortTextModel(TextModel):
    """Of texts, pairs or choices, whose end is cut off where they are too long; see LabelModel for windows."""

    knows_special_tokens = False  # whether [MASK] in a text is that token

    @property
    def inputs(self) -> dict[str, tf.TensorSpec]:
        text = tf.TensorSpec([None], tf.string)
        return {"text": text, "text_pair": text} if self._task_spec.get("pair") else {"text": text}

    def tokenize(self, **texts: Any) -> dict[str, Any]:
        return self.ids_and_cuts(**texts)[0]

    def answer(self, **texts: Any) -> dict[str, Any]:
        features, is_truncated = self.ids_and_cuts(**texts)
        return {**_without_logits(self.answer_ids(**features)), IS_TRUNCATED: is_truncated}

    def _spans(self, texts: Mapping[str, Any]) -> tuple[TokenSpans, TokenSpans | None]:
        """The pieces of texts, and of pairs those of the second texts."""
        first = token_spans(self._tokenizer.tokenize(texts["text"], special_tokens=self.knows_special_tokens).ids)
        return first, token_spans(self._tokenizer.tokenize(texts["text_pair"]).ids) if "text_pair" in texts else None

    def ids_and_cuts(self, **texts: Any) -> tuple[dict[str, Any], Any]:
        """The model's inputs, and which texts were too long for them, bool [B]."""
        whole = self._spans(texts)
        spans = graph_inputs.truncated(*whole, self._length, without_empty=True)
        return self._pack(*spans, without_empty=True), graph_inputs.are_shorter(spans, whole)


class LabelModel(ShortTextModel):
    """What models that answer a text as a whole share.

    With doc_stride a long text is read in windows, whose logits are averaged, as by TextSpec. `answer_ids` answers each
    row by itself.
    """

    output_shape: ClassVar[list[int | None]] = [None]  # a row's logits

    def answer_ids(self, **features: Any) -> dict[str, Any]:
        return self._of_logits(self._model(features))

    def _calibrated(self, logits: Any) -> Any:
        return logits / float(self._task_spec.get("temperature", 1.0))

    @abc.abstractmethod
    def _of_logits(self, logits: Any) -> dict[str, Any]:
        """Returns what `answer_ids` does."""

    def tokenize(self, **texts: Any) -> dict[str, Any]:
        if not self._task_spec.get("doc_stride"):
            return super().tokenize(**texts)
        features, windows, _ = self._windows(texts)
        return {**features, "text_index": windows.texts}

    def answer(self, **texts: Any) -> dict[str, Any]:
        if not self._task_spec.get("doc_stride"):
            return super().answer(**texts)
        features, windows, is_truncated = self._windows(texts)
        logits = tf.cast(self._in_chunks(features, self.output_shape), tf.float64)
        means = tf.cast(tf.math.segment_mean(logits, windows.texts), tf.float32)
        return {**_without_logits(self._of_logits(means)), IS_TRUNCATED: is_truncated}

    def _windows(self, texts: Mapping[str, Any]) -> tuple[dict[str, Any], Windows, Any]:
        """The model's inputs for each window, the windows, and which first texts of pairs were cut, bool [B]."""
        stride, (first, second) = int(self._task_spec["doc_stride"]), self._spans(texts)
        if second is None:
            windows = graph_inputs.windows(first.lengths, tf.fill(tf.shape(first.lengths), self._length - 2), stride)
            return self._pack(first.of_windows(windows), None), windows, tf.zeros_like(first.lengths, tf.bool)
        room = self._length - tf.where(second.lengths > 0, 3, 2)
        kept = first._replace(lengths=tf.minimum(first.lengths, room // 2))
        windows = graph_inputs.windows(second.lengths, room - kept.lengths, stride)
        features = self._pack(kept.of_rows(windows.texts), second.of_windows(windows), without_empty=True)
        return features, windows, kept.lengths < first.lengths


class ClassificationModel(LabelModel):
    """One class of several."""

    def _of_logits(self, logits: Any) -> dict[str, Any]:
        labels = tf.constant(self._task_spec["labels"])  # [C]
        probabilities = tf.nn.softmax(self._calibrated(logits))
        probability, label = tf.reduce_max(probabilities, -1), tf.gather(labels, tf.argmax(probabilities, -1))
        if least := self._task_spec.get("min_confidence"):
            label = tf.where(probability >= least, label, NO_ANSWER)
        return {
            "label": label,
            "probability": probability,
            "labels": tf.broadcast_to(labels[None], tf.shape(logits)),
            "probabilities": probabilities,
            "logits": logits,
        }


class MultiLabelModel(LabelModel):
    """Any number of classes."""

    def _of_logits(self, logits: Any) -> dict[str, Any]:
        labels = tf.broadcast_to(tf.constant(self._task_spec["labels"])[None], tf.shape(logits))
        probabilities = tf.sigmoid(self._calibrated(logits))
        predicted = probabilities > tf.constant(self._task_spec.get("thresholds") or 0.5, tf.float32)
        return {"labels": labels, "probabilities": probabilities, "predicted": predicted, "logits": logits}


class RegressionModel(LabelModel):
    """A number."""

    output_shape: ClassVar[list[int | None]] = []

    def _of_logits(self, logits: Any) -> dict[str, Any]:
        return {"value": logits}


class EncoderModel(ShortTextModel):
    """Vectors of the tokens and of the text, without a head."""

    def answer(self, **texts: Any) -> dict[str, Any]:
        features, is_truncated = self.ids_and_cuts(**texts)
        mask = features["input_mask"]
        return {**self.answer_ids(**features), "input_mask": mask, IS_TRUNCATED: is_truncated}

    def answer_ids(self, **features: Any) -> dict[str, Any]:
        return dict(self._model(features))


class VectorModel(ShortTextModel):
    """A vector for each text, or for each pair with " ||| " between, as TextEncoder gives it."""

    def __init__(self, model: keras.Model, tokenizer: FullTokenizer, task_spec: Mapping[str, Any]) -> None:
        normalize = bool(task_spec.get("normalize"))
        pooled = build_vector_model(model, task_spec["pooling"], task_spec["layers"], normalize)
        super().__init__(pooled, tokenizer, task_spec)

    def answer_ids(self, **features: Any) -> dict[str, Any]:
        return {VECTOR: self._model(features)}

    def _spans(self, texts: Mapping[str, Any]) -> tuple[TokenSpans, TokenSpans | None]:
        first, second = (tf.strings.regex_replace(texts["text"], _PAIR, part) for part in (r"\1", r"\2"))
        second = tf.where(tf.strings.regex_full_match(texts["text"], _PAIR), second, "")
        return super()._spans({"text": first, "text_pair": second})


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


class MultipleChoiceModel(ShortTextModel):
    """Which of several endings follows a prompt."""

    @property
    def _choices(self) -> int:
        return int(self._task_spec["num_choices"])

    @property
    def inputs(self) -> dict[str, tf.TensorSpec]:
        endings = tf.TensorSpec([None, self._choices], tf.string)
        return {"prompt": tf.TensorSpec([None], tf.string), "endings": endings}

    def _ids_spec(self) -> tf.TensorSpec:
        return tf.TensorSpec([None, self._choices, None], tf.int32)

    def ids_and_cuts(self, **texts: Any) -> tuple[dict[str, Any], Any]:
        """The model's inputs, and of which examples an ending or its prompt was too long for them, bool [B]."""
        prompts = token_spans(self._tokenizer.tokenize(texts["prompt"]).ids)
        endings = token_spans(self._tokenizer.tokenize(tf.reshape(texts["endings"], [-1])).ids)
        prompts = TokenSpans(prompts.ids, *(tf.repeat(each, self._choices) for each in prompts[1:]))
        spans = graph_inputs.truncated(prompts, endings, self._length)
        features = self._pack(*spans)
        shape = [-1, self._choices, tf.shape(features["input_ids"])[1]]
        are_shorter = tf.reshape(graph_inputs.are_shorter(spans, (prompts, endings)), [-1, self._choices])
        return {name: tf.reshape(value, shape) for name, value in features.items()}, tf.reduce_any(are_shorter, -1)

    def answer_ids(self, **features: Any) -> dict[str, Any]:
        logits = self._model(features)  # [B, N]
        return {"choice": tf.argmax(logits, -1, tf.int32), "probabilities": tf.nn.softmax(logits), "logits": logits}


class LongTextModel(TextModel):
    """What models with a row for each window of a text share."""

    @abc.abstractmethod
    def _windows(self, **texts: Any) -> tuple[dict[str, Any], Windows, *tuple[Any, ...]]:
        """Returns inputs, windows, and what `answer` needs beside them."""

    def tokenize(self, **texts: Any) -> dict[str, Any]:
        features, windows, *_ = self._windows(**texts)
        return {**features, "text_index": windows.texts}


class QuestionAnsweringModel(LongTextModel):
    """The span of a context that answers a question."""

    @property
    def inputs(self) -> dict[str, tf.TensorSpec]:
        return dict.fromkeys(("question", "context"), tf.TensorSpec([None], tf.string))

    def answer(self, **texts: Any) -> dict[str, Any]:
        features, windows, offsets, tokens, is_truncated = self._windows(**texts)
        logits = self._in_chunks(features, [None, 2])
        answers = graph_spans.span_answers(logits, windows, offsets, texts["context"], tokens, self._task_spec)
        return {**answers, IS_TRUNCATED: is_truncated}

    def answer_ids(self, **features: Any) -> dict[str, Any]:
        return dict(self._model(features))

    def _windows(self, **texts: Any) -> tuple[dict[str, Any], Windows, Any, Tokens, Any]:
        """Returns inputs, windows, and what an answer needs.

        That is the position in its sequence of each window's context, the contexts' pieces, and which questions were
        too long, bool [B].
        """
        questions = token_spans(self._tokenizer.tokenize(texts["question"]).ids)
        longest = min(int(self._task_spec["max_query_length"]), self._length - 4)  # a piece of context fits beside it
        is_truncated = questions.lengths > longest
        questions = questions._replace(lengths=tf.minimum(questions.lengths, longest))
        tokens = self._tokenizer.tokenize(texts["context"])
        contexts = token_spans(tokens.ids)
        room = self._length - 3 - questions.lengths
        windows = graph_inputs.windows(contexts.lengths, room, int(self._task_spec["doc_stride"]))
        first = questions.of_rows(windows.texts)
        return self._pack(first, contexts.of_windows(windows)), windows, first.lengths + 2, tokens, is_truncated


class TaggingModel(LongTextModel):
    """A tag for each word."""

    @property
    def inputs(self) -> dict[str, tf.TensorSpec]:
        return {"text": tf.TensorSpec([None], tf.string)}

    def answer(self, **texts: Any) -> dict[str, Any]:
        features, windows, words, (first_pieces, splits, tokens, is_truncated) = self._windows(**texts)
        labels = self._task_spec["labels"]
        tags, probabilities = graph_answers.tags(
            self._in_chunks(features, [None, len(labels)]), labels, windows, *words
        )
        last_pieces = tf.concat([first_pieces[1:], [tf.size(tokens.ids.values)]], 0)[: tf.size(first_pieces)] - 1
        starts = tf.gather(tokens.starts.values, first_pieces)
        ends = tf.gather(tokens.ends.values, last_pieces)
        text_of_word = tf.searchsorted(splits[1:], tf.range(tf.size(starts)), side="right")

        def padded(values: Any, value: Any) -> Any:
            return tf.RaggedTensor.from_row_splits(values, splits, validate=False).to_tensor(value)

        return {
            "words": padded(characters_between(texts["text"], text_of_word, starts, ends), ""),
            "tags": padded(tags, ""),
            "starts": padded(starts, -1),
            "ends": padded(ends, -1),
            "probabilities": padded(probabilities, 0.0),
            IS_TRUNCATED: is_truncated,
        }

    def answer_ids(self, **features: Any) -> dict[str, Any]:
        return {"logits": self._model(features)}

    def _windows(self, **texts: Any) -> tuple[dict[str, Any], Windows, tuple[Any, ...], tuple[Any, Any, Tokens, Any]]:
        """Returns inputs; windows; what `graph_answers.tags` wants of words; and what an answer needs.

        That is first pieces, texts' words and pieces, and which texts have a word of more pieces than the model reads,
        bool [B]: such a word keeps the first ones.
        """
        room = self._length - 2
        tokens = self._tokenizer.tokenize(texts["text"])
        begins = tokens.word_starts.values  # [P]
        first_pieces = true_positions(begins)  # [W]
        word_of_piece = tf.cumsum(tf.cast(begins, tf.int32)) - 1
        kept = tf.range(tf.size(begins)) - tf.gather(first_pieces, word_of_piece) < room
        ids = tokens.ids.values[kept]
        lengths = tf.math.bincount(word_of_piece[kept], minlength=tf.size(first_pieces))
        word_starts = tf.concat([[0], tf.cumsum(lengths)], 0)  # [W + 1]
        first_words = tf.searchsorted(first_pieces, tf.cast(tokens.ids.row_splits, tf.int32))  # [B + 1]
        stride = int(self._task_spec.get("doc_stride") or max(room // 2, 1))
        windows, first, last = graph_inputs.word_windows(word_starts, first_words, room, stride)
        starts = tf.gather(word_starts, tf.minimum(first, tf.size(word_starts) - 1))
        features = self._pack(TokenSpans(ids, starts, windows.lengths), None)
        is_truncated = ~tf.reduce_all(tokens.ids.with_values(kept), 1)
        return features, windows, (first, last, word_starts), (first_pieces, first_words, tokens, is_truncated)


TEXT_MODELS: dict[str, type[TextModel]] = {
    names.CLASSIFICATION: ClassificationModel,
    names.MULTI_LABEL: MultiLabelModel,
    names.REGRESSION: RegressionModel,
    names.TAGGING: TaggingModel,
    names.QUESTION_ANSWERING: QuestionAnsweringModel,
    names.MULTIPLE_CHOICE: MultipleChoiceModel,
    FILL_MASK: FillMaskModel,
    ENCODER: EncoderModel,
    names.VECTORS: VectorModel,
}


def text_model(model: keras.Model, tokenizer: FullTokenizer, kind: str, task_spec: Mapping[str, Any]) -> TextModel:
    """Returns the functions of a model of a kind, one of TEXT_MODELS; for the other arguments see TextModel."""
    return TEXT_MODELS[kind](model, tokenizer, task_spec)


def _without_logits(answers: dict[str, Any]) -> dict[str, Any]:
    """The answers as those who ask with texts get them."""
    return {name: value for name, value in answers.items() if name != "logits"}


def _traced(function: Callable[..., dict[str, Any]], inputs: Mapping[str, Any]) -> Any:
    """The function, traced once for inputs of these names."""
    specs = {name: tf.TensorSpec(spec.shape, spec.dtype, name=name) for name, spec in inputs.items()}
    return tf.function(lambda **tensors: function(**tensors)).get_concrete_function(**specs)
