"""Models that read long texts in windows, as functions of TensorFlow alone: answers to questions, and tags of words.

B texts, S sequence, W words, R rows of the model's input
"""

from typing import Any

import tensorflow as tf

from official_bert.export import graph_answers, graph_inputs, graph_spans
from official_bert.export.graph_inputs import TokenSpans, Windows, token_spans
from official_bert.export.graph_tokenization import Tokens, characters_between
from official_bert.export.text_models import TextModel

# The most windows of long texts that the model reads at once, so that memory does not grow with the text.
_WINDOWS_AT_ONCE = 32


class LongTextModel(TextModel):
    """What models with a row for each window of a text share."""

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


class QuestionAnsweringModel(LongTextModel):
    """The span of a context that answers a question."""

    @property
    def inputs(self) -> dict[str, tf.TensorSpec]:
        return dict.fromkeys(("question", "context"), tf.TensorSpec([None], tf.string))

    def tokenize(self, **texts: Any) -> dict[str, Any]:
        features, windows, _, _ = self._question_windows(**texts)
        return {**features, "text_index": windows.texts}

    def answer(self, **texts: Any) -> dict[str, Any]:
        features, windows, offsets, tokens = self._question_windows(**texts)
        logits = self._in_chunks(features, 2)
        return graph_spans.span_answers(
            logits[..., 0], logits[..., 1], windows=windows, offsets=offsets, contexts=texts["context"], tokens=tokens,
            settings=self._task_spec,
        )  # fmt: skip

    def answer_ids(self, **features: Any) -> dict[str, Any]:
        return dict(self._model(features))

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


class TaggingModel(LongTextModel):
    """A tag for each word."""

    @property
    def inputs(self) -> dict[str, tf.TensorSpec]:
        return {"text": tf.TensorSpec([None], tf.string)}

    def tokenize(self, **texts: Any) -> dict[str, Any]:
        features, windows, *_ = self._word_windows(**texts)
        return {**features, "text_index": windows.texts}

    def answer(self, **texts: Any) -> dict[str, Any]:
        return self._tag(**texts)

    def answer_ids(self, **features: Any) -> dict[str, Any]:
        return {"logits": self._model(features)}

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
