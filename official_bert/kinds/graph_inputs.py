"""Builds a model's inputs from tokens in a TensorFlow graph: truncation, windows and special tokens.

tokenization/pairs.py and tokenization/truncation.py do the same in Python. The tokens of all texts are concatenated to
one vector. A TokenSpans object refers to parts of this vector by start and length.

B texts, P tokens of all texts, W words of all texts, R rows (elements of the model's batch: texts or windows), S
sequence length
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from official_bert.tokenization import truncation
from official_bert.tokenization.in_graph import true_positions
from official_bert.tokenization.truncation import Windows


class TokenSpans(NamedTuple):
    """Spans of a vector with the tokens of all texts, one span for each row of the model's input."""

    ids: Any  # int32 [P], of all texts
    starts: Any  # int32 [R], into `ids`
    lengths: Any  # int32 [R]

    def gather_rows(self, rows: Any) -> "TokenSpans":
        """Returns the spans at the given indices.

        Args:
            rows: Indices of spans, an int32 vector of any length.
        """
        return self._replace(starts=tf.gather(self.starts, rows), lengths=tf.gather(self.lengths, rows))

    def gather_windows(self, windows: Windows) -> "TokenSpans":
        """Returns the span of each window, given one span for each text."""
        return self._replace(starts=tf.gather(self.starts, windows.texts) + windows.starts, lengths=windows.lengths)


class Rows(NamedTuple):
    """The model's inputs for a batch of B texts. Each row is a text, or a window of a long text.

    Attributes:
        features: input_ids, input_mask and segment_ids, int32 [R, S] ([B, N, S] for multiple choice).
        is_truncated: Whether the end of each text was left out, bool [B].
        windows: The window of each row, or None if each text is one row.
        details: Further values that the subclass of GraphModel needs to compute answers.
    """

    features: dict[str, Any]
    is_truncated: Any
    windows: Windows | None = None
    details: Any = None


def span_texts(ids: Any) -> TokenSpans:
    """Returns a span for each text.

    Args:
        ids: Token ids of the texts, a ragged int32 tensor [B, (tokens)].
    """
    splits = tf.cast(ids.row_splits, tf.int32)
    return TokenSpans(ids.values, splits[:-1], splits[1:] - splits[:-1])


def truncate(first: TokenSpans, second: TokenSpans | None, max_seq_length: int) -> tuple[TokenSpans, TokenSpans | None]:
    """Truncates texts or text pairs to max_seq_length, as in fine-tuning.

    Pairs lose tokens one by one at the end of the longer text, or of the second text if both are equally long.

    Args:
        first: The first texts.
        second: The second texts, or None if the rows are single texts.
        max_seq_length: The maximum length, including the special tokens. A second text without tokens has no [SEP],
            which leaves room for one more token.
    """
    lengths = tf.zeros_like(first.lengths) if second is None else second.lengths
    room = max_seq_length - tf.where(lengths > 0, 3, 2)
    kept, lengths = truncation.truncate_lengths(first.lengths, lengths, room, tf)
    return first._replace(lengths=kept), None if second is None else second._replace(lengths=lengths)


def have_lost_tokens(after: tuple[TokenSpans, TokenSpans | None], before: tuple[TokenSpans, TokenSpans | None]) -> Any:
    """Returns whether truncation has shortened the first or the second text, bool [R], for each row.

    Args:
        after: Spans of the first and the second texts after truncation.
        before: Spans of the same texts before truncation.
    """
    pairs = [(a.lengths, b.lengths) for a, b in zip(after, before, strict=True) if a is not None and b is not None]
    return tf.reduce_any(tf.stack([a < b for a, b in pairs]), 0)


def pack(first: TokenSpans, second: TokenSpans | None, cls: int, sep: int, drop_empty: bool = False) -> dict[str, Any]:
    """Adds special tokens and padding to texts or pairs: [CLS] first [SEP], or [CLS] first [SEP] second [SEP].

    Args:
        first: The first text of each row. All rows are padded to the longest one.
        second: The second text of each row, or None if the rows are single texts.
        cls: The id of [CLS].
        sep: The id of [SEP].
        drop_empty: Whether to omit the [SEP] of a second text without tokens, as the original's classifiers do.

    Returns:
        input_ids, input_mask and segment_ids, int32 [R, S].
    """
    sources = [[0, cls, sep], first.ids]  # the indices below point into their concatenation
    pad_index, cls_index, sep_index = 0, 1, 2
    last = middle = first.lengths[:, None] + 1  # the position of the first [SEP]
    if second is not None:
        sources.append(second.ids)
        second_indices = second.starts[:, None] + 3 + tf.size(first.ids)
        last = middle + second.lengths[:, None] + 1
        if drop_empty:
            last = tf.where(second.lengths[:, None] > 0, last, middle)
    position = tf.range(tf.reduce_max(tf.concat([last[:, 0], [1]], 0)) + 1)[None]  # [1, S]
    index = tf.where(position == middle, sep_index, pad_index)
    index = tf.where(position < middle, first.starts[:, None] + 3 + position - 1, index)
    if second is not None:
        index = tf.where((position > middle) & (position < last), second_indices + position - middle - 1, index)
        index = tf.where(position == last, sep_index, index)
    index = tf.where(position == 0, cls_index, index)  # [R, S]
    mask = position <= last
    return {
        "input_ids": tf.gather(tf.concat(sources, 0), index),
        "input_mask": tf.cast(mask, tf.int32),
        "segment_ids": tf.cast((position > middle) & mask, tf.int32),
    }


def check_features(features: Mapping[str, Any], value_counts: Mapping[str, int], max_length: int) -> dict[str, Any]:
    """Adds checks of the shapes and values of the model's inputs to the graph, and returns the inputs.

    The checks raise InvalidArgumentError. Without them, an id outside of the embedding table would give a vector of
    zeros in some implementations of the lookup, and a mask with another length than the ids could give an answer.

    Args:
        features: The model's inputs by name. All must have the same shape.
        value_counts: The number of possible values of each input: 0 to the count minus 1.
        max_length: The number of positions of the model.
    """
    expected = tf.shape(features["input_ids"])
    length, message = expected[-1], f"the rows of input_ids must have 1 to {max_length} ids; their length is"
    checks = [tf.debugging.Assert((length >= 1) & (length <= max_length), [message, length])]
    for name, count in value_counts.items():
        shape, least, most = tf.shape(features[name]), tf.reduce_min(features[name]), tf.reduce_max(features[name])
        message = f"{name} and input_ids have different shapes:"
        checks.append(tf.debugging.Assert(tf.reduce_all(shape == expected), [message, shape, expected]))
        message = f"{name} has values outside of 0 to {count - 1}; its least and greatest are"
        checks.append(tf.debugging.Assert((least >= 0) & (most < count), [message, least, most]))
    with tf.control_dependencies(checks):
        return {name: tf.identity(value) for name, value in features.items()}


def build_word_windows(word_starts: Any, first_words: Any, room: int, stride: int) -> tuple[Windows, Any, Any]:
    """Splits texts into overlapping windows that contain only whole words. A text without words has one empty window.

    Args:
        word_starts: Position of each word's first token in the tokens of all texts, followed by the total number of
            tokens, int32 [W + 1]. No word has more than `room` tokens.
        first_words: Index of each text's first word, followed by the total number of words, int32 [B + 1].
        room: Maximum number of tokens in a window.
        stride: Approximate number of tokens from the start of a window to the start of the next one.

    Returns:
        The windows, the index of the first word of each window, int32 [R], and the index after its last word,
        int32 [R].
    """
    ends = first_words[1:]

    def find_end(first: Any) -> Any:
        fitting = tf.searchsorted(word_starts, tf.gather(word_starts, first) + room, side="right") - 1
        return tf.minimum(fitting, ends)

    def step(number: Any, first: Any, is_open: Any, rows: Any) -> tuple[Any, ...]:
        last = find_end(first)
        texts = true_positions(is_open)  # texts with words after the windows so far
        new = tf.stack([texts, tf.fill(tf.shape(texts), number), tf.gather(first, texts), tf.gather(last, texts)], 1)
        following = tf.searchsorted(word_starts, tf.gather(word_starts, first) + stride)
        is_open &= last < ends
        first = tf.where(is_open, tf.minimum(tf.maximum(following, first + 1), last), first)
        return number + 1, first, is_open, tf.concat([rows, new], 0)

    *_, rows = tf.while_loop(
        lambda number, first, is_open, rows: tf.reduce_any(is_open),
        step,
        (0, first_words[:-1], tf.ones_like(ends, tf.bool), tf.zeros([0, 4], tf.int32)),
        shape_invariants=(tf.TensorShape([]), ends.shape, ends.shape, tf.TensorShape([None, 4])),
    )
    rows = tf.gather(rows, tf.argsort(rows[:, 0], stable=True))
    texts, _, first, last = tf.unstack(rows, axis=1)
    starts = tf.gather(word_starts, first)
    in_text = starts - tf.gather(word_starts, tf.gather(first_words, texts))
    return Windows(texts, in_text, tf.gather(word_starts, last) - starts), first, last
