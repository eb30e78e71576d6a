"""From a model's scores to what a person can read, as TensorFlow operations.

The laws are those of fill_mask.py, tasks/squad_answers.py and tasks/tagging.py.

B texts, S sequence, C classes, M masks of a text, K candidates, N windows, V vocabulary
"""

from typing import Any

import tensorflow as tf

from official_bert.graph_inputs import Windows, each_place, has_most_context
from official_bert.graph_tokenization import characters_between


def classes(logits: Any, labels: list[str]) -> dict[str, Any]:
    """Returns label [B], probability [B], and labels and probabilities of all classes [B, C] from logits [B, C]."""
    probabilities = tf.nn.softmax(logits)
    return {
        "label": tf.gather(tf.constant(labels), tf.argmax(probabilities, -1)),
        "probability": tf.reduce_max(probabilities, -1),
        "labels": _all(labels, logits),
        "probabilities": probabilities,
    }


def several_classes(logits: Any, labels: list[str]) -> dict[str, Any]:
    """Returns labels [B, C] and the probability of each by itself [B, C] from logits [B, C]."""
    return {"labels": _all(labels, logits), "probabilities": tf.sigmoid(logits)}


def _all(labels: list[str], logits: Any) -> Any:
    return tf.broadcast_to(tf.constant(labels)[None], tf.shape(logits))


def choices(logits: Any) -> dict[str, Any]:
    """Returns the number of the best choice [B] int32, and the probabilities of all, from logits [B, choices]."""
    return {"choice": tf.argmax(logits, -1, tf.int32), "probabilities": tf.nn.softmax(logits)}


def fillings(logits: Any, counts: Any, vocab: dict[str, int], top_k: int) -> dict[str, Any]:
    """Returns tokens [B, M, K], best first, and their probabilities, from logits [B, M, V].

    Args:
        logits: of the pieces at each mask.
        counts: int32 [B], masks of each text; behind them is padding, which gets "" and 0.
        vocab: pieces and ids; the table may have rows that no piece has.
        top_k: K.
    """
    ids = sorted(vocab.values())
    piece_of = {index: token for token, index in vocab.items()}
    if ids != list(range(logits.shape[-1])):
        logits = tf.gather(logits, ids, axis=-1)
    found = tf.math.top_k(tf.nn.softmax(logits), min(top_k, len(ids)))
    is_mask = (tf.range(tf.shape(logits)[1])[None] < counts[:, None])[..., None]  # [B, M, 1]
    tokens = tf.gather(tf.constant([piece_of[index] for index in ids]), found.indices)
    return {"tokens": tf.where(is_mask, tokens, ""), "probabilities": tf.where(is_mask, found.values, 0.0)}


def tags(
    logits: Any, windows: Windows, first_words: Any, last_words: Any, word_starts: Any, labels: list[str]
) -> tuple[Any, Any]:
    """Returns each word's likeliest tag, string [W], and its probability; W words of all texts.

    A word is tagged at its first piece, in the window where that has most context.

    Args:
        logits: [N, S, C].
        windows: all, of all texts.
        first_words: int32 [N], the first word of each window.
        last_words: int32 [N], the one behind the last.
        word_starts: int32 [W + 1], where each word's pieces begin among all, and the end.
        labels: the tags.
    """
    rows, number = each_place(last_words - first_words)
    words = tf.gather(first_words, rows) + number
    places = tf.gather(word_starts, words) - tf.gather(tf.gather(word_starts, first_words), rows)
    best = has_most_context(windows, rows, places, words, tf.size(word_starts) - 1)
    order = tf.argsort(words[best])
    positions = tf.stack([rows[best], 1 + places[best]], 1)  # behind [CLS]
    probabilities = tf.nn.softmax(tf.gather_nd(logits, tf.gather(positions, order)))  # [W, C]
    return tf.gather(tf.constant(labels), tf.argmax(probabilities, -1)), tf.reduce_max(probabilities, -1)


def spans(
    start_logits: Any,
    end_logits: Any,
    windows: Windows,
    offsets: Any,
    contexts: Any,
    tokens: Any,
    description: dict[str, Any],
) -> dict[str, Any]:
    """Returns the answers to questions: answer, start, end, probability and null_score_difference, each [B].

    An answer is context[start:end], in characters; where there is none it is "", 0 and 0.

    Args:
        start_logits: [N, S].
        end_logits: [N, S].
        windows: over the contexts.
        offsets: int32 [N], where a window's piece of the context comes first in the sequence.
        contexts: string [B].
        tokens: theirs, as graph_tokenization.Tokens.
        description: the task's settings, as task.json has them.
    """
    n_best, version_2 = int(description["n_best_size"]), bool(description["version_2"])
    splits = tf.cast(tokens.ids.row_splits, tf.int32)
    count = tf.size(splits) - 1

    # Which positions of a window an answer can begin at: pieces of the context that no other window sees better.
    rows, places = each_place(windows.lengths)
    pieces = tf.gather(tf.gather(splits, windows.texts) + windows.starts, rows) + places  # among those of all contexts
    begins = has_most_context(windows, rows, places, pieces, splits[-1])
    at = tf.stack([rows, tf.gather(offsets, rows) + places], 1)
    shape = tf.shape(start_logits)
    can_end = tf.scatter_nd(at, tf.ones_like(rows), shape) > 0  # [N, S]
    can_begin = tf.scatter_nd(at, tf.cast(begins, tf.int32), shape) > 0

    # The best of each window, in pairs that can be an answer.
    width = tf.minimum(n_best, shape[1])
    first = tf.math.top_k(tf.where(can_begin, start_logits, start_logits.dtype.min), width)  # [N, n_best]
    last = tf.math.top_k(tf.where(can_end, end_logits, end_logits.dtype.min), width)
    lengths = last.indices[:, None, :] - first.indices[:, :, None] + 1  # [N, n_best, n_best]
    valid = (lengths >= 1) & (lengths <= int(description["max_answer_length"]))
    valid &= tf.gather(can_begin, first.indices, batch_dims=1)[:, :, None]
    valid &= tf.gather(can_end, last.indices, batch_dims=1)[:, None, :]
    pairs = tf.where(valid)  # [pairs, 3]
    scores = tf.cast(first.values, tf.float64)[:, :, None] + tf.cast(last.values, tf.float64)[:, None, :]
    scores = tf.gather_nd(scores, pairs)
    row = tf.cast(pairs[:, 0], tf.int32)
    texts = tf.gather(windows.texts, row)

    # Best first within each text.
    order = tf.argsort(scores, direction="DESCENDING", stable=True)
    order = tf.gather(order, tf.argsort(tf.gather(texts, order), stable=True))
    texts, scores, row = tf.gather(texts, order), tf.gather(scores, order), tf.gather(row, order)
    base = tf.gather(splits, texts) + tf.gather(windows.starts, row) - tf.gather(offsets, row)
    pairs = tf.cast(tf.gather(pairs, order), tf.int32)
    starts = tf.gather(tokens.starts.values, base + tf.gather_nd(first.indices, tf.stack([row, pairs[:, 1]], 1)))
    ends = tf.gather(tokens.ends.values, base + tf.gather_nd(last.indices, tf.stack([row, pairs[:, 2]], 1)))

    # Of those with the same text the best.
    answers = characters_between(contexts, texts, starts, ends)
    _, same = tf.unique(tf.strings.join([tf.strings.as_string(texts), answers], " "))
    numbers = tf.range(tf.size(same))
    earliest = tf.math.unsorted_segment_min(numbers, same, tf.size(same))
    kept = _places(tf.gather(earliest, same) == numbers)
    kept = tf.gather(kept, _places(_rank(tf.gather(texts, kept)) < n_best))
    texts, scores, starts, ends, answers = (tf.gather(each, kept) for each in (texts, scores, starts, ends, answers))

    # No answer: the window that is least sure of it speaks for all.
    nothing = tf.cast(start_logits[:, 0], tf.float64) + tf.cast(end_logits[:, 0], tf.float64)
    nothing = tf.math.segment_min(nothing, windows.texts)  # [B]
    first_of = tf.searchsorted(texts, tf.range(count + 1))  # [B + 1]
    has_answer = first_of[1:] > first_of[:-1]
    padded = tf.concat([scores, [0.0]], 0)
    best = tf.where(has_answer, tf.gather(padded, first_of[:-1]), nothing)
    top = tf.maximum(best, nothing) if version_2 else best
    powers = tf.math.unsorted_segment_sum(tf.exp(scores - tf.gather(top, texts)), texts, count)
    power_of_nothing = tf.exp(nothing - top)
    powers += power_of_nothing if version_2 else tf.where(has_answer, tf.zeros_like(top), power_of_nothing)
    difference = nothing - best
    answered = has_answer
    if version_2:
        answered &= difference <= float(description["null_score_diff_threshold"])
    chosen = tf.where(answered, best, nothing)

    def of_best(values: Any, otherwise: Any) -> Any:
        return tf.where(answered, tf.gather(tf.concat([values, [otherwise]], 0), first_of[:-1]), otherwise)

    return {
        "answer": of_best(answers, ""),
        "start": of_best(starts, 0),
        "end": of_best(ends, 0),
        "probability": tf.cast(tf.exp(chosen - top) / powers, tf.float32),
        "null_score_difference": tf.cast(difference, tf.float32),
    }


def _rank(groups: Any) -> Any:
    """The number of each element within its group, from 0; the groups' numbers are sorted."""
    return tf.range(tf.size(groups)) - tf.searchsorted(groups, groups)


def _places(mask: Any) -> Any:
    return tf.cast(tf.where(mask)[:, 0], tf.int32)
