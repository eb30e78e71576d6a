"""From the logits of starts and ends to the answers of questions, as TensorFlow operations.

The Python implementation of the same rules is kinds/question_answering/candidates.py.

B texts, N windows, S sequence, A candidate answers of all texts, best first within each text
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from official_bert.export.graph_inputs import Windows, has_most_context
from official_bert.tokenization.in_graph import Tokens, characters_between, row_positions, true_positions


class _Candidates(NamedTuple):
    """Answers that the logits allow, each a vector [A]; sorted by text, and by score within a text."""

    texts: Any  # int32, the number of the text
    scores: Any  # float64, the logits of start and end together
    starts: Any  # int32, in characters of the context
    ends: Any
    answers: Any  # string


def span_answers(
    logits: Any, windows: Windows, offsets: Any, contexts: Any, tokens: Tokens, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the answers to questions: answer, start, end, probability and null_score_difference, each [B].

    An answer is context[start:end], in characters. Where there is none it is "", 0 and 0.

    Args:
        logits: of starts and ends, [N, S, 2].
        windows: over the contexts.
        offsets: int32 [N], the position in the sequence of a window's first piece of context.
        contexts: string [B].
        tokens: their pieces.
        settings: n_best_size, max_answer_length, version_2 and null_score_diff_threshold, as in task.json.
    """
    n_best, version_2 = int(settings["n_best_size"]), bool(settings["version_2"])
    most_pieces = int(settings["max_answer_length"])
    candidates = _distinct(_candidates(logits, windows, offsets, contexts, tokens, n_best, most_pieces), n_best)
    # The score of "no answer" is that of the window where it is lowest.
    null = tf.cast(logits[:, 0, 0], tf.float64) + tf.cast(logits[:, 0, 1], tf.float64)
    null = tf.math.segment_min(null, windows.texts)  # [B]

    count = tf.size(null)
    first_of = tf.searchsorted(candidates.texts, tf.range(count + 1))  # each text's best candidate, and the end
    has_candidate = first_of[1:] > first_of[:-1]  # [B]

    def of_best(values: Any, otherwise: Any) -> Any:
        return tf.gather(tf.concat([values, [otherwise]], 0), first_of[:-1])

    best = tf.where(has_candidate, of_best(candidates.scores, 0.0), null)
    difference = null - best
    is_answered = has_candidate
    if version_2:
        is_answered &= difference <= float(settings["null_score_diff_threshold"])

    # A softmax over the text's candidates; "no answer" is one of them in version 2, or where there is no other.
    top = tf.maximum(best, null) if version_2 else best
    powers = tf.exp(candidates.scores - tf.gather(top, candidates.texts))
    null_power = tf.exp(null - top)
    total = tf.math.unsorted_segment_sum(powers, candidates.texts, count)
    total += null_power if version_2 else tf.where(has_candidate, tf.zeros_like(top), null_power)
    chosen = tf.where(is_answered, best, null)
    return {
        "answer": tf.where(is_answered, of_best(candidates.answers, ""), ""),
        "start": tf.where(is_answered, of_best(candidates.starts, 0), 0),
        "end": tf.where(is_answered, of_best(candidates.ends, 0), 0),
        "probability": tf.cast(tf.exp(chosen - top) / total, tf.float32),
        "null_score_difference": tf.cast(difference, tf.float32),
    }


def _candidates(
    logits: Any, windows: Windows, offsets: Any, contexts: Any, tokens: Tokens, n_best: int, most_pieces: int
) -> _Candidates:
    """Pairs of the n_best starts and the n_best ends of each window.

    A start must be a piece of context that no other window sees with more context, an end any piece of context, and the
    answer has at most most_pieces.
    """
    start_logits, end_logits = logits[..., 0], logits[..., 1]
    splits = tf.cast(tokens.ids.row_splits, tf.int32)
    rows, positions = row_positions(windows.lengths)
    first_pieces = tf.gather(splits, windows.texts) + windows.starts  # [N], among the pieces of all contexts
    pieces = tf.gather(first_pieces, rows) + positions
    is_start = has_most_context(windows, rows, positions, pieces, splits[-1])
    indices = tf.stack([rows, tf.gather(offsets, rows) + positions], 1)
    shape = tf.shape(start_logits)
    can_end = tf.scatter_nd(indices, tf.ones_like(rows), shape) > 0  # [N, S]
    can_start = tf.scatter_nd(indices, tf.cast(is_start, tf.int32), shape) > 0

    width = tf.minimum(n_best, shape[1])
    first = tf.math.top_k(tf.where(can_start, start_logits, start_logits.dtype.min), width)  # [N, n_best]
    last = tf.math.top_k(tf.where(can_end, end_logits, end_logits.dtype.min), width)
    lengths = last.indices[:, None, :] - first.indices[:, :, None] + 1  # [N, n_best, n_best]
    is_valid = (lengths >= 1) & (lengths <= most_pieces)
    is_valid &= tf.gather(can_start, first.indices, batch_dims=1)[:, :, None]
    is_valid &= tf.gather(can_end, last.indices, batch_dims=1)[:, None, :]
    pairs = tf.where(is_valid)  # [A, 3]: window, number of the start, number of the end
    scores = tf.cast(first.values, tf.float64)[:, :, None] + tf.cast(last.values, tf.float64)[:, None, :]
    scores = tf.gather_nd(scores, pairs)
    texts = tf.gather(windows.texts, pairs[:, 0])

    order = tf.argsort(scores, direction="DESCENDING", stable=True)
    order = tf.gather(order, tf.argsort(tf.gather(texts, order), stable=True))
    texts, scores = tf.gather(texts, order), tf.gather(scores, order)
    window, start, end = tf.unstack(tf.cast(tf.gather(pairs, order), tf.int32), axis=1)
    base = tf.gather(first_pieces - offsets, window)  # from a position in the sequence to a piece among all
    starts = tf.gather(tokens.starts.values, base + tf.gather_nd(first.indices, tf.stack([window, start], 1)))
    ends = tf.gather(tokens.ends.values, base + tf.gather_nd(last.indices, tf.stack([window, end], 1)))
    return _Candidates(texts, scores, starts, ends, characters_between(contexts, texts, starts, ends))


def _distinct(candidates: _Candidates, n_best: int) -> _Candidates:
    """The best candidate of each answer's text, at most n_best for a question."""
    _, group = tf.unique(tf.strings.join([tf.strings.as_string(candidates.texts), candidates.answers], " "))
    numbers = tf.range(tf.size(group))
    earliest = tf.math.unsorted_segment_min(numbers, group, tf.size(group))
    kept = true_positions(tf.gather(earliest, group) == numbers)
    texts_of_kept = tf.gather(candidates.texts, kept)  # sorted
    ranks = tf.range(tf.size(kept)) - tf.searchsorted(texts_of_kept, texts_of_kept)  # within the text, from 0
    kept = tf.gather(kept, true_positions(ranks < n_best))
    return _Candidates(*(tf.gather(each, kept) for each in candidates))
