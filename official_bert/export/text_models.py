"""A trained model as functions of TensorFlow alone, from strings to answers: what saved_model.py writes.

B texts, S sequence, N choices, M masks of a text, W words, R rows of the model's input, C classes
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from official_bert.export import graph_answers, graph_inputs, graph_spans
from official_bert.export.flat_blocks import with_flat_blocks
from official_bert.export.graph_inputs import TokenSpans, Windows, token_spans
from official_bert.export.graph_tokenization import GraphTokenizer, Tokens, characters_between
from official_bert.inference.exports import DEFAULT_SIGNATURE, IDS_SIGNATURE, TOKENIZE_SIGNATURE
from official_bert.modeling.task_models import (
    CLASSIFICATION,
    MULTI_LABEL,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
    TAGGING,
)
from official_bert.tokenization.exact import CLS, MASK, SEP, FullTokenizer

FILL_MASK, ENCODER = "fill_mask", "encoder"  # the kinds besides those of task_models
TOP_K = 5  # what fill_mask answers for each mask

# The most windows of long texts that the model reads at once, so that memory does not grow with the text.
_WINDOWS_AT_ONCE = 32

Signature = Callable[..., dict[str, Any]]


class TextModel:
    """The functions of a model that takes text.

    Args:
        model: a functional model with a dict of inputs: of task_models, an encoder, or one that gives masked-LM logits.
        tokenizer: its tokenizer.
        kind: one of task_models.KINDS, FILL_MASK or ENCODER.
        task_spec: what task.json holds (see finetuned.save): max_seq_length, and labels, num_choices, pair and the
            settings of question answering for the kinds that have them.

    Attributes:
        inputs: the specifications of the text inputs by name: string [B], endings [B, N].
    """

    def __init__(self, model: keras.Model, tokenizer: FullTokenizer, kind: str, task_spec: Mapping[str, Any]) -> None:
        self._model, self._exact, self.kind = with_flat_blocks(model), tokenizer, kind
        self._task_spec = dict(task_spec)
        self._tokenizer = GraphTokenizer(tokenizer)
        self._cls, self._sep = tokenizer.vocab[CLS], tokenizer.vocab[SEP]
        self._length = int(task_spec["max_seq_length"])
        text = tf.TensorSpec([None], tf.string)
        if kind == QUESTION_ANSWERING:
            self.inputs = {"question": text, "context": text}
        elif kind == MULTIPLE_CHOICE:
            self.inputs = {"prompt": text, "endings": tf.TensorSpec([None, task_spec["num_choices"]], tf.string)}
        else:
            self.inputs = {"text": text, "text_pair": text} if task_spec.get("pair") else {"text": text}

    def signatures(self) -> dict[str, Any]:
        """Returns the traced functions by name: serving_default, serving_ids and tokenize."""
        ids = tf.TensorSpec([None, None], tf.int32)
        if self.kind == MULTIPLE_CHOICE:
            ids = tf.TensorSpec([None, self._task_spec["num_choices"], None], tf.int32)
        features = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), ids)
        return {
            DEFAULT_SIGNATURE: _traced(self.answer, self.inputs),
            IDS_SIGNATURE: _traced(self.answer_ids, features),
            TOKENIZE_SIGNATURE: _traced(self.tokenize, self.inputs),
        }

    def tokenize(self, **texts: Any) -> dict[str, Any]:
        """Returns input_ids, input_mask and segment_ids, int32 [B, S]; [B, N, S] for multiple choice.

        For question answering and tagging there is a row for each window of a long text, and text_index, int32 [R],
        says which text it is of.
        """
        if self.kind == QUESTION_ANSWERING:
            features, windows, _, _ = self._question_windows(**texts)
            return {**features, "text_index": windows.texts}
        if self.kind == TAGGING:
            features, windows, *_ = self._word_windows(**texts)
            return {**features, "text_index": windows.texts}
        return self._features(**texts)

    def answer(self, **texts: Any) -> dict[str, Any]:
        """Returns the named results of the model's kind."""
        if self.kind == QUESTION_ANSWERING:
            features, windows, offsets, tokens = self._question_windows(**texts)
            logits = self._in_chunks(features, 2)
            return graph_spans.span_answers(
                logits[..., 0],
                logits[..., 1],
                windows=windows,
                offsets=offsets,
                contexts=texts["context"],
                tokens=tokens,
                settings=self._task_spec,
            )
        if self.kind == TAGGING:
            return self._tag(**texts)
        features = self._features(**texts)
        answers = self.answer_ids(**features)
        answers.pop("logits", None)
        return {**answers, "input_mask": features["input_mask"]} if self.kind == ENCODER else answers

    def answer_ids(self, **features: Any) -> dict[str, Any]:
        """Returns the results of `answer` that need no text, and the model's own outputs."""
        if self.kind == FILL_MASK:
            return self._fill(features)
        outputs = self._model(features)
        if self.kind in (QUESTION_ANSWERING, ENCODER):
            return dict(outputs)
        if self.kind == REGRESSION:
            return {"value": outputs}
        if self.kind == TAGGING:
            return {"logits": outputs}
        labels = self._task_spec["labels"]
        answers = {
            CLASSIFICATION: lambda: graph_answers.classes(outputs, labels),
            MULTI_LABEL: lambda: graph_answers.several_classes(outputs, labels),
            MULTIPLE_CHOICE: lambda: graph_answers.choices(outputs),
        }[self.kind]()
        return {**answers, "logits": outputs}

    def _features(self, **texts: Any) -> dict[str, Any]:
        """The inputs of the kinds that cut long texts off."""
        if self.kind == MULTIPLE_CHOICE:
            prompts = token_spans(self._tokenizer.tokenize(texts["prompt"]).ids)
            endings = token_spans(self._tokenizer.tokenize(tf.reshape(texts["endings"], [-1])).ids)
            count = int(self._task_spec["num_choices"])
            prompts = TokenSpans(prompts.ids, tf.repeat(prompts.starts, count), tf.repeat(prompts.lengths, count))
            features = self._pack(*graph_inputs.truncated(prompts, endings, self._length))
            shape = [-1, count, tf.shape(features["input_ids"])[1]]
            return {name: tf.reshape(value, shape) for name, value in features.items()}
        special = self.kind == FILL_MASK
        first = token_spans(self._tokenizer.tokenize(texts["text"], special_tokens=special).ids)
        second = token_spans(self._tokenizer.tokenize(texts["text_pair"]).ids) if "text_pair" in self.inputs else None
        spans = graph_inputs.truncated(first, second, self._length, without_empty=True)
        return graph_inputs.pack(*spans, self._cls, self._sep, without_empty=True)

    def _pack(self, first: TokenSpans, second: TokenSpans | None) -> dict[str, Any]:
        return graph_inputs.pack(first, second, self._cls, self._sep)

    def _fill(self, features: dict[str, Any]) -> dict[str, Any]:
        is_mask = (features["input_ids"] == self._exact.vocab[MASK]) & (features["input_mask"] > 0)
        indices = tf.where(is_mask)  # [masks, 2]
        counts = tf.reduce_sum(tf.cast(is_mask, tf.int32), -1)  # [B]
        ragged = tf.RaggedTensor.from_row_lengths(tf.cast(indices[:, 1], tf.int32), counts, validate=False)
        logits = self._model({**features, "masked_lm_positions": ragged.to_tensor()})  # [B, M, V]
        return graph_answers.mask_candidates(logits, counts, self._exact.vocab, TOP_K)

    def _question_windows(self, question: Any, context: Any) -> tuple[dict[str, Any], Windows, Any, Tokens]:
        """Returns inputs, windows, the position in its sequence of each window's context, and the contexts' pieces."""
        questions = token_spans(self._tokenizer.tokenize(question).ids)
        longest = min(int(self._task_spec["max_query_length"]), self._length - 4)  # a piece of context fits beside it
        questions = questions._replace(lengths=tf.minimum(questions.lengths, longest))
        tokens = self._tokenizer.tokenize(context)
        contexts = token_spans(tokens.ids)
        room = self._length - 3 - questions.lengths
        windows = graph_inputs.windows(contexts.lengths, room, int(self._task_spec["doc_stride"]))
        first = TokenSpans(*(questions.ids, *(tf.gather(each, windows.texts) for each in questions[1:])))
        second = TokenSpans(contexts.ids, tf.gather(contexts.starts, windows.texts) + windows.starts, windows.lengths)
        return self._pack(first, second), windows, first.lengths + 2, tokens

    def _word_windows(self, text: Any) -> tuple[dict[str, Any], Windows, Any, Any, Any, Tokens]:
        """Returns inputs; windows with their first words and the words after their last; the words' starts; the pieces.

        A word of more pieces than the model reads keeps the first ones.
        """
        room = self._length - 2
        tokens = self._tokenizer.tokenize(text)
        begins = tokens.word_starts.values  # [P]
        first_pieces = tf.cast(tf.where(begins)[:, 0], tf.int32)  # [W]
        word_of_piece = tf.cumsum(tf.cast(begins, tf.int32)) - 1
        kept = tf.range(tf.size(begins)) - tf.gather(first_pieces, word_of_piece) < room
        ids = tokens.ids.values[kept]
        lengths = tf.math.bincount(word_of_piece[kept], minlength=tf.size(first_pieces))
        word_starts = tf.concat([[0], tf.cumsum(lengths)], 0)  # [W + 1]
        first_words = tf.searchsorted(first_pieces, tf.cast(tokens.ids.row_splits, tf.int32))  # [B + 1]
        windows, first, last = graph_inputs.word_windows(word_starts, first_words, room, max(room // 2, 1))
        starts = tf.gather(word_starts, tf.minimum(first, tf.size(word_starts) - 1))
        features = self._pack(TokenSpans(ids, starts, windows.lengths), None)
        return features, windows, first, last, word_starts, tokens

    def _tag(self, text: Any) -> dict[str, Any]:
        features, windows, first, last, word_starts, tokens = self._word_windows(text)
        labels = self._task_spec["labels"]
        logits = self._in_chunks(features, len(labels))
        tags, probabilities = graph_answers.tags(logits, windows, first, last, word_starts, labels)
        begins = tokens.word_starts.values
        first_pieces = tf.cast(tf.where(begins)[:, 0], tf.int32)
        last_pieces = tf.concat([first_pieces[1:], [tf.size(begins)]], 0)[: tf.size(first_pieces)] - 1
        starts = tf.gather(tokens.starts.values, first_pieces)
        ends = tf.gather(tokens.ends.values, last_pieces)
        splits = tf.searchsorted(first_pieces, tf.cast(tokens.ids.row_splits, tf.int32))
        text_of_word = tf.searchsorted(splits[1:], tf.range(tf.size(starts)), side="right")

        def padded(values: Any, value: Any) -> Any:
            return tf.RaggedTensor.from_row_splits(values, splits, validate=False).to_tensor(value)

        return {
            "words": padded(characters_between(text, text_of_word, starts, ends), ""),
            "tags": padded(tags, ""),
            "starts": padded(starts, -1),
            "ends": padded(ends, -1),
            "probabilities": padded(probabilities, 0.0),
        }

    def _in_chunks(self, features: dict[str, Any], width: int) -> Any:
        """The model's outputs for many rows, [R, S, width], some at a time."""
        chunks = -tf.math.floordiv(-tf.shape(features["input_ids"])[0], _WINDOWS_AT_ONCE)

        def step(number: Any, chunks_done: Any) -> tuple[Any, Any]:
            rows = slice(number * _WINDOWS_AT_ONCE, (number + 1) * _WINDOWS_AT_ONCE)
            outputs = self._model({name: value[rows] for name, value in features.items()})
            if isinstance(outputs, dict):
                outputs = tf.stack([outputs["start_logits"], outputs["end_logits"]], -1)
            return number + 1, chunks_done.write(number, outputs)

        empty = tf.TensorArray(tf.float32, chunks, infer_shape=False, element_shape=[None, None, width])
        _, all_chunks = tf.while_loop(lambda number, _: number < chunks, step, (0, empty), parallel_iterations=1)
        return all_chunks.concat()


def _traced(function: Signature, inputs: Mapping[str, Any]) -> Any:
    """The function, traced once for inputs of these names."""
    specs = {name: tf.TensorSpec(spec.shape, spec.dtype, name=name) for name, spec in inputs.items()}
    return tf.function(lambda **tensors: function(**tensors)).get_concrete_function(**specs)
