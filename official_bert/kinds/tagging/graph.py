"""Tagging as TensorFlow functions, for SavedModels. It follows the rules of spec.py.

B texts, R windows of the texts, S sequence length, C tags, P tokens of all texts, W words of all texts
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from official_bert.kinds.graph_inputs import Rows, TokenSpans, build_word_windows
from official_bert.kinds.graph_model import GraphModel
from official_bert.kinds.tagging.spec import TaggingSpec
from official_bert.tokenization.in_graph import Tokens, characters_between, true_positions
from official_bert.tokenization.truncation import Windows, assign_tokens, row_positions


class _Words(NamedTuple):
    """The positions of words in texts and in windows, as indices of tokens without [CLS] and [SEP]."""

    first_in_window: Any  # int32 [R], the index of a window's first word
    end_in_window: Any  # int32 [R], the index of the word after its last one
    starts: Any  # int32 [W + 1], the position of each word's first token in all texts, then the number of tokens
    first_tokens: Any  # int32 [W], the same, counting also the tokens of long words that are left out
    splits: Any  # int32 [B + 1], the index of each text's first word, then the number of words
    tokens: Tokens


class Graph(GraphModel):
    """The TensorFlow functions of a tagging model, from strings to words and their tags."""

    spec: TaggingSpec

    def read_texts(self, texts: Mapping[str, Any]) -> Rows:
        room = self.max_seq_length - 2
        tokens = self.tokenizer.tokenize(texts["text"])
        begins_word = tokens.word_starts.values  # [P]
        first_tokens = true_positions(begins_word)  # [W]
        word_of_token = tf.cumsum(tf.cast(begins_word, tf.int32)) - 1
        # A word of more tokens than the model reads keeps the first ones.
        is_kept = tf.range(tf.size(begins_word)) - tf.gather(first_tokens, word_of_token) < room
        ids = tokens.ids.values[is_kept]
        lengths = tf.math.bincount(word_of_token[is_kept], minlength=tf.size(first_tokens))
        word_starts = tf.concat([[0], tf.cumsum(lengths)], 0)  # [W + 1]
        splits = tf.searchsorted(first_tokens, tf.cast(tokens.ids.row_splits, tf.int32))  # [B + 1]
        stride = self.spec.doc_stride or max(room // 2, 1)
        windows, first, end = build_word_windows(word_starts, splits, room, stride)
        starts = tf.gather(word_starts, tf.minimum(first, tf.size(word_starts) - 1))
        features = self.pack(TokenSpans(ids, starts, windows.lengths), None)
        is_truncated = ~tf.reduce_all(tokens.ids.with_values(is_kept), 1)
        return Rows(features, is_truncated, windows, _Words(first, end, word_starts, first_tokens, splits, tokens))

    def answer_rows(self, rows: Rows, texts: Mapping[str, Any]) -> dict[str, Any]:
        words: _Words = rows.details
        assert rows.windows is not None
        labels = self.spec.labels
        logits = self.compute_window_logits(rows.features, [None, len(labels)])
        probabilities = _word_probabilities(logits, rows.windows, words)
        num_tokens = tf.size(words.tokens.ids.values)
        last_tokens = tf.concat([words.first_tokens[1:], [num_tokens]], 0)[: tf.size(words.first_tokens)] - 1
        starts = tf.gather(words.tokens.starts.values, words.first_tokens)
        ends = tf.gather(words.tokens.ends.values, last_tokens)
        text_of_word = tf.searchsorted(words.splits[1:], tf.range(tf.size(starts)), side="right")

        def pad(values: Any, padding: Any) -> Any:
            return tf.RaggedTensor.from_row_splits(values, words.splits, validate=False).to_tensor(padding)

        return {
            "words": pad(characters_between(texts["text"], text_of_word, starts, ends), ""),
            "tags": pad(tf.gather(tf.constant(labels), tf.argmax(probabilities, -1)), ""),
            "starts": pad(starts, -1),
            "ends": pad(ends, -1),
            "probabilities": pad(tf.reduce_max(probabilities, -1), 0.0),
        }


def _word_probabilities(logits: Any, windows: Windows, words: _Words) -> Any:
    """Returns the probability of each tag for each word, [W, C].

    The logits are read at the word's first token, in the window with the most context around this token.
    """
    rows, number = row_positions(words.end_in_window - words.first_in_window, tf)
    indices = tf.gather(words.first_in_window, rows) + number
    window_starts = tf.gather(words.starts, words.first_in_window)
    positions = tf.gather(words.starts, indices) - tf.gather(window_starts, rows)
    owners = assign_tokens(window_starts, windows.lengths, words.starts[-1], tf)
    is_best = tf.gather(owners, tf.gather(words.starts, indices)) == rows
    order = tf.argsort(indices[is_best])
    places = tf.stack([rows[is_best], 1 + positions[is_best]], 1)  # [CLS] is before the first token
    return tf.nn.softmax(tf.gather_nd(logits, tf.gather(places, order)))
