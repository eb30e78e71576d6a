"""From pieces to a model's inputs, as TensorFlow operations: what text_pairs.py and the tasks' windows do in Python.

The pieces of all texts lie one after the other; a run of them is given by its start and its length.

B texts, P pieces of all texts, W words of all texts, R rows (what the model reads at once), S sequence
"""

from typing import Any, NamedTuple

import tensorflow as tf


class Runs(NamedTuple):
    """Runs of pieces, one for each row.

    Args:
        ids: int32 [P], of all texts.
        starts: int32 [R], into `ids`.
        lengths: int32 [R].
    """

    ids: Any
    starts: Any
    lengths: Any


def runs_of(ids: Any) -> Runs:
    """Returns whole texts as runs, from a ragged tensor [B, (pieces)]."""
    splits = tf.cast(ids.row_splits, tf.int32)
    return Runs(ids.values, splits[:-1], splits[1:] - splits[:-1])


def truncated(first: Runs, second: Runs | None, max_seq_length: int) -> tuple[Runs, Runs | None]:
    """Returns what fits into a sequence, by fine-tuning's law: the longer one (of equal ones, the second) is cut."""
    if second is None:
        return first._replace(lengths=tf.minimum(first.lengths, max_seq_length - 2)), None
    room = max_seq_length - 3
    # The second may keep up to half; what it does not need is the first's, and the other way about.
    kept = tf.minimum(first.lengths, tf.maximum(room - second.lengths, (room + 1) // 2))
    return first._replace(lengths=kept), second._replace(lengths=tf.minimum(second.lengths, room - kept))


def pack(first: Runs, second: Runs | None, cls: int, sep: int) -> dict[str, Any]:
    """Returns [CLS] first [SEP] or [CLS] first [SEP] second [SEP], padded to the longest row.

    Args:
        first: one run a row.
        second: likewise, or None.
        cls: the id of [CLS].
        sep: the id of [SEP].

    Returns:
        input_ids, input_mask and segment_ids, int32 [R, S].
    """
    ids = [[0, cls, sep], first.ids]  # what places below point into
    places = first.starts[:, None] + 3
    middle = first.lengths[:, None] + 1  # where the first [SEP] stands
    last = middle
    if second is not None:
        ids.append(second.ids)
        places_of_second = second.starts[:, None] + 3 + tf.size(first.ids)
        last = middle + second.lengths[:, None] + 1
    position = tf.range(tf.reduce_max(tf.concat([last[:, 0], [1]], 0)) + 1)[None]  # [1, S]
    place = tf.where(position < middle, places + position - 1, tf.where(position == middle, 2, 0))
    if second is not None:
        place = tf.where((position > middle) & (position < last), places_of_second + position - middle - 1, place)
        place = tf.where(position == last, 2, place)
    place = tf.where(position == 0, 1, place)  # [R, S]
    mask = position <= last
    return {
        "input_ids": tf.gather(tf.concat(ids, 0), place),
        "input_mask": tf.cast(mask, tf.int32),
        "segment_ids": tf.cast((position > middle) & mask, tf.int32),
    }


class Windows(NamedTuple):
    """Overlapping windows over texts, those of one text after those of the other.

    Args:
        texts: int32 [R], the text's number.
        numbers: int32 [R], the window's number among its text's.
        starts: int32 [R], the first piece, counted from the text's first.
        lengths: int32 [R].
    """

    texts: Any
    numbers: Any
    starts: Any
    lengths: Any


def windows(lengths: Any, room: Any, stride: int) -> Windows:
    """Returns windows that cover all pieces; a text without any has an empty one.

    Args:
        lengths: int32 [B], of the texts.
        room: int32 [B], the pieces of a window.
        stride: from one window's first piece to the next one's; no more than the room is used.
    """
    stride = tf.minimum(room, stride)
    counts = 1 + tf.maximum(0, -tf.math.floordiv(room - lengths, stride))
    ends = tf.cumsum(counts)
    rows = tf.range(tf.reduce_sum(counts))
    texts = tf.searchsorted(ends, rows, side="right")
    numbers = rows - tf.gather(ends - counts, texts)
    starts = numbers * tf.gather(stride, texts)
    return Windows(texts, numbers, starts, tf.minimum(tf.gather(room, texts), tf.gather(lengths, texts) - starts))


def word_windows(word_starts: Any, first_words: Any, room: int, stride: int) -> tuple[Windows, Any, Any]:
    """Returns windows of whole words, which cover all words and cut none; a text without words has an empty one.

    Args:
        word_starts: int32 [W + 1], where each word's pieces begin among all, and the end; no word is longer than room.
        first_words: int32 [B + 1], each text's first word, and the end.
        room: the pieces of a window.
        stride: from one window's first piece to the next one's, as near as whole words allow.

    Returns:
        The windows, and the first word and the one behind the last of each, int32 [R].
    """
    ends = first_words[1:]
    text_starts = tf.gather(word_starts, first_words[:-1])

    def last_of(first: Any) -> Any:
        fitting = tf.searchsorted(word_starts, tf.gather(word_starts, first) + room, side="right") - 1
        return tf.minimum(fitting, ends)

    def step(number: Any, first: Any, goes_on: Any, found: Any) -> tuple[Any, ...]:
        last = last_of(first)
        texts = tf.cast(tf.where(goes_on)[:, 0], tf.int32)
        new = tf.stack([texts, tf.fill(tf.shape(texts), number), tf.gather(first, texts), tf.gather(last, texts)], 1)
        following = tf.searchsorted(word_starts, tf.gather(word_starts, first) + stride)
        goes_on &= last < ends
        first = tf.where(goes_on, tf.minimum(tf.maximum(following, first + 1), last), first)
        return number + 1, first, goes_on, tf.concat([found, new], 0)

    *_, found = tf.while_loop(
        lambda number, first, goes_on, found: tf.reduce_any(goes_on),
        step,
        (0, first_words[:-1], tf.ones_like(ends, tf.bool), tf.zeros([0, 4], tf.int32)),
        shape_invariants=(tf.TensorShape([]), ends.shape, ends.shape, tf.TensorShape([None, 4])),
    )
    found = tf.gather(found, tf.argsort(found[:, 0], stable=True))
    texts, numbers, first, last = tf.unstack(found, axis=1)
    starts = tf.gather(word_starts, first)
    lengths = tf.gather(word_starts, last) - starts
    return Windows(texts, numbers, starts - tf.gather(text_starts, texts), lengths), first, last


def has_most_context(windows: Windows, rows: Any, places: Any, tokens: Any, num_tokens: Any) -> Any:
    """Returns whether a window sees most around a token, among all windows that hold it; in the first of equal ones.

    That is the one in which the smaller of the counts of tokens to its left and right is greatest, and then the longer
    one, as in tasks/windows.py.

    Args:
        windows: all.
        rows: int32 [N], the window of each occurrence of a token.
        places: int32 [N], where in the window it stands, from 0.
        tokens: int32 [N], which token it is, among those of all texts.
        num_tokens: of all texts.
    """
    length = tf.gather(windows.lengths, rows)
    context = tf.minimum(places, length - 1 - places)
    count = tf.size(windows.lengths)
    # One number, in whole hundredths of a token, so that no two windows of a text are equal.
    score = tf.cast(100 * context + length, tf.int64) * tf.cast(count, tf.int64)
    score += tf.cast(count - tf.gather(windows.numbers, rows), tf.int64)
    best = tf.math.unsorted_segment_max(score, tokens, num_tokens)
    return score == tf.gather(best, tokens)


def each_place(lengths: Any) -> tuple[Any, Any]:
    """Returns for runs of these lengths, int32 [R], the row and the place within it of every element."""
    ends = tf.cumsum(lengths)
    every = tf.range(tf.reduce_sum(lengths))
    rows = tf.searchsorted(ends, every, side="right")
    return rows, every - tf.gather(ends - lengths, rows)
