"""A trained model as functions of TensorFlow alone, from strings to answers: what export.py saves.

B texts, S sequence, N choices, M masks of a text, W words, R rows that the model reads at once, C classes
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from official_bert import graph_answers, graph_inputs
from official_bert.graph_inputs import Runs, Windows, runs_of
from official_bert.graph_tokenization import GraphTokenizer, Tokens, characters_between
from official_bert.task_models import (
    CLASSIFICATION,
    MULTI_LABEL,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
    TAGGING,
)
from official_bert.tokenization import CLS, MASK, SEP, FullTokenizer

FILL_MASK, ENCODER = "fill_mask", "encoder"  # the kinds besides those of task_models
TOP_K = 5  # what fill_mask answers for each mask

# So many windows of long texts are read at once; memory then does not grow with the text.
_WINDOWS_AT_ONCE = 32

Signature = Callable[..., dict[str, Any]]


class TextModel:
    """The functions of a model that takes text.

    Args:
        model: a functional model with a dict of inputs: of task_models, an encoder, or one that gives masked-LM logits.
        tokenizer: its tokenizer.
        kind: one of task_models.KINDS, FILL_MASK or ENCODER.
        description: max_seq_length and what else task.json says (see finetuned.save); labels, num_choices and pair for
            the kinds that have them.

    Attributes:
        inputs: names and specifications of the inputs of text: string [B], endings [B, N].
    """

    def __init__(self, model: keras.Model, tokenizer: FullTokenizer, kind: str, description: Mapping[str, Any]) -> None:
        self._model, self._exact, self.kind = model, tokenizer, kind
        self._description = dict(description)
        self._tokenizer = GraphTokenizer(tokenizer)
        self._cls, self._sep = tokenizer.vocab[CLS], tokenizer.vocab[SEP]
        self._length = int(description["max_seq_length"])
        text = tf.TensorSpec([None], tf.string)
        if kind == QUESTION_ANSWERING:
            self.inputs = {"question": text, "context": text}
        elif kind == MULTIPLE_CHOICE:
            self.inputs = {"prompt": text, "endings": tf.TensorSpec([None, description["num_choices"]], tf.string)}
        else:
            self.inputs = {"text": text, "text_pair": text} if description.get("pair") else {"text": text}

    def signatures(self) -> dict[str, Any]:
        """Returns the traced functions by name: serving_default, serving_ids and tokenize."""
        ids = tf.TensorSpec([None, None], tf.int32)
        if self.kind == MULTIPLE_CHOICE:
            ids = tf.TensorSpec([None, self._description["num_choices"], None], tf.int32)
        given = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), ids)
        return {
            "serving_default": _traced(self.answer, self.inputs),
            "serving_ids": _traced(self.answer_ids, given),
            "tokenize": _traced(self.tokenize, self.inputs),
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
            return graph_answers.spans(
                logits[..., 0], logits[..., 1], windows, offsets, texts["context"], tokens, self._description
            )
        if self.kind == TAGGING:
            return self._tag(**texts)
        features = self._features(**texts)
        answers = self.answer_ids(**features)
        answers.pop("logits", None)
        return {**answers, "input_mask": features["input_mask"]} if self.kind == ENCODER else answers

    def answer_ids(self, **features: Any) -> dict[str, Any]:
        """Returns what `answer` does, as far as that is possible without the text, and the model's own outputs."""
        if self.kind == FILL_MASK:
            return self._fill(features)
        outputs = self._model(features, training=False)
        if self.kind in (QUESTION_ANSWERING, ENCODER):
            return dict(outputs)
        if self.kind == REGRESSION:
            return {"value": outputs}
        if self.kind == TAGGING:
            return {"logits": outputs}
        labels = self._description["labels"]
        answers = {
            CLASSIFICATION: lambda: graph_answers.classes(outputs, labels),
            MULTI_LABEL: lambda: graph_answers.several_classes(outputs, labels),
            MULTIPLE_CHOICE: lambda: graph_answers.choices(outputs),
        }[self.kind]()
        return {**answers, "logits": outputs}

    def _features(self, **texts: Any) -> dict[str, Any]:
        """The inputs of kinds that cut off what is too long."""
        if self.kind == MULTIPLE_CHOICE:
            prompts = runs_of(self._tokenizer.tokenize(texts["prompt"]).ids)
            endings = runs_of(self._tokenizer.tokenize(tf.reshape(texts["endings"], [-1])).ids)
            count = int(self._description["num_choices"])
            prompts = Runs(prompts.ids, tf.repeat(prompts.starts, count), tf.repeat(prompts.lengths, count))
            features = self._pack(*graph_inputs.truncated(prompts, endings, self._length))
            shape = [-1, count, tf.shape(features["input_ids"])[1]]
            return {name: tf.reshape(value, shape) for name, value in features.items()}
        special = self.kind == FILL_MASK
        first = runs_of(self._tokenizer.tokenize(texts["text"], special_tokens=special).ids)
        second = runs_of(self._tokenizer.tokenize(texts["text_pair"]).ids) if "text_pair" in self.inputs else None
        return self._pack(*graph_inputs.truncated(first, second, self._length))

    def _pack(self, first: Runs, second: Runs | None) -> dict[str, Any]:
        return graph_inputs.pack(first, second, self._cls, self._sep)

    def _fill(self, features: dict[str, Any]) -> dict[str, Any]:
        is_mask = (features["input_ids"] == self._exact.vocab[MASK]) & (features["input_mask"] > 0)
        places = tf.where(is_mask)  # [masks, 2]
        counts = tf.reduce_sum(tf.cast(is_mask, tf.int32), -1)  # [B]
        ragged = tf.RaggedTensor.from_row_lengths(tf.cast(places[:, 1], tf.int32), counts, validate=False)
        logits = self._model({**features, "masked_lm_positions": ragged.to_tensor()}, training=False)  # [B, M, V]
        return graph_answers.fillings(logits, counts, self._exact.vocab, TOP_K)

    def _question_windows(self, question: Any, context: Any) -> tuple[dict[str, Any], Windows, Any, Tokens]:
        """The inputs, the windows, where a window's context begins in its sequence, and the contexts' pieces."""
        questions = runs_of(self._tokenizer.tokenize(question).ids)
        longest = min(int(self._description["max_query_length"]), self._length - 4)  # a piece of context fits beside it
        questions = questions._replace(lengths=tf.minimum(questions.lengths, longest))
        tokens = self._tokenizer.tokenize(context)
        contexts = runs_of(tokens.ids)
        room = self._length - 3 - questions.lengths
        windows = graph_inputs.windows(contexts.lengths, room, int(self._description["doc_stride"]))
        first = Runs(*(questions.ids, *(tf.gather(each, windows.texts) for each in questions[1:])))
        second = Runs(contexts.ids, tf.gather(contexts.starts, windows.texts) + windows.starts, windows.lengths)
        return self._pack(first, second), windows, first.lengths + 2, tokens

    def _word_windows(self, text: Any) -> tuple[dict[str, Any], Windows, Any, Any, Any, Tokens]:
        """The inputs, the windows with their first and last words, where words begin among pieces, and the pieces.

        Of a word of more pieces than the model reads the first ones are kept.
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
        features = self._pack(Runs(ids, starts, windows.lengths), None)
        return features, windows, first, last, word_starts, tokens

    def _tag(self, text: Any) -> dict[str, Any]:
        features, windows, first, last, word_starts, tokens = self._word_windows(text)
        labels = self._description["labels"]
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

        def step(number: Any, done: Any) -> tuple[Any, Any]:
            here = slice(number * _WINDOWS_AT_ONCE, (number + 1) * _WINDOWS_AT_ONCE)
            outputs = self._model({name: value[here] for name, value in features.items()}, training=False)
            if isinstance(outputs, dict):
                outputs = tf.stack([outputs["start_logits"], outputs["end_logits"]], -1)
            return number + 1, done.write(number, outputs)

        empty = tf.TensorArray(tf.float32, chunks, infer_shape=False, element_shape=[None, None, width])
        _, done = tf.while_loop(lambda number, _: number < chunks, step, (0, empty), parallel_iterations=1)
        return done.concat()


def _traced(function: Signature, inputs: Mapping[str, Any]) -> Any:
    """The function, traced once for inputs of these names."""
    specs = {name: tf.TensorSpec(spec.shape, spec.dtype, name=name) for name, spec in inputs.items()}
    return tf.function(lambda **given: function(**given)).get_concrete_function(**specs)
