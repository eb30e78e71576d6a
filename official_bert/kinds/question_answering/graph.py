"""Question answering as TensorFlow functions, for SavedModels. It follows the rules of candidates.py.

B texts, R windows of the contexts, S sequence length, A candidate answers of all texts, best first within each text
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from official_bert.kinds.graph_inputs import Rows, span_texts
from official_bert.kinds.graph_model import GraphModel
from official_bert.kinds.question_answering.spec import QuestionAnsweringSpec
from official_bert.tokenization.in_graph import Tokens, characters_between, true_positions
from official_bert.tokenization.truncation import Windows, assign_tokens, build_windows, row_positions


class _Contexts(NamedTuple):
    offsets: Any  # int32 [R], the position in the sequence of a window's first token of context
    tokens: Tokens


class _Candidates(NamedTuple):
    """The A candidate answers to all questions, sorted by question, and best first for each question."""

    texts: Any  # int32, the index of the text
    scores: Any  # float64, the sum of the logits of start and end
    starts: Any  # int32, in characters of the context
    ends: Any
    answers: Any  # string


class Graph(GraphModel):
    """The TensorFlow functions of a question-answering model, from questions and contexts to answers."""

    spec: QuestionAnsweringSpec

    def read_texts(self, texts: Mapping[str, Any]) -> Rows:
        questions = span_texts(self.tokenizer.tokenize(texts["question"]).ids)
        # At least one token of context fits after the question.
        max_length = min(self.spec.max_query_length, self.max_seq_length - 4)
        is_truncated = questions.lengths > max_length
        questions = questions._replace(lengths=tf.minimum(questions.lengths, max_length))
        tokens = self.tokenizer.tokenize(texts["context"])
        contexts = span_texts(tokens.ids)
        room = self.max_seq_length - 3 - questions.lengths
        windows = build_windows(contexts.lengths, room, self.spec.doc_stride, tf)
        first = questions.gather_rows(windows.texts)
        features = self.pack(first, contexts.gather_windows(windows))
        return Rows(features, is_truncated, windows, _Contexts(first.lengths + 2, tokens))

    def compute_logits(self, features: Mapping[str, Any]) -> Any:
        """Returns the logits of the positions as start and as end of the answer, [R, S, 2]."""
        outputs = super().compute_logits(features)
        return tf.stack([outputs["start_logits"], outputs["end_logits"]], -1)

    def answer_rows(self, rows: Rows, texts: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the answers: answer, start, end, probability and null_score_difference, each [B].

        The answer is context[start:end], in characters. If a question has no answer, it is "", and start and end are 0.
        """
        assert rows.windows is not None
        version_2 = self.spec.version_2
        logits = self.compute_window_logits(rows.features, [None, 2])
        candidates = self._find_candidates(logits, rows.windows, rows.details, texts["context"])
        # The score of "no answer" is the lowest one of all windows.
        null = tf.cast(logits[:, 0, 0], tf.float64) + tf.cast(logits[:, 0, 1], tf.float64)
        null = tf.math.segment_min(null, rows.windows.texts)  # [B]

        count = tf.size(null)
        firsts = tf.searchsorted(candidates.texts, tf.range(count + 1))  # each text's best candidate, and the end
        has_candidate = firsts[1:] > firsts[:-1]  # [B]

        def gather_best(values: Any, default: Any) -> Any:
            return tf.gather(tf.concat([values, [default]], 0), firsts[:-1])

        best = tf.where(has_candidate, gather_best(candidates.scores, 0.0), null)
        difference = null - best
        is_answered = has_candidate
        if version_2:
            is_answered &= difference <= self.spec.null_score_diff_threshold

        # A softmax over the text's candidates. "No answer" is one of them in version 2, or if it is the only one.
        top = tf.maximum(best, null) if version_2 else best
        powers = tf.exp(candidates.scores - tf.gather(top, candidates.texts))
        null_power = tf.exp(null - top)
        total = tf.math.unsorted_segment_sum(powers, candidates.texts, count)
        total += null_power if version_2 else tf.where(has_candidate, tf.zeros_like(top), null_power)
        chosen = tf.where(is_answered, best, null)
        return {
            "answer": tf.where(is_answered, gather_best(candidates.answers, ""), ""),
            "start": tf.where(is_answered, gather_best(candidates.starts, 0), 0),
            "end": tf.where(is_answered, gather_best(candidates.ends, 0), 0),
            "probability": tf.cast(tf.exp(chosen - top) / total, tf.float32),
            "null_score_difference": tf.cast(difference, tf.float32),
        }

    def _find_candidates(self, logits: Any, windows: Windows, contexts: _Contexts, texts: Any) -> _Candidates:
        """Combines the best starts and ends of each window to spans, and returns the best spans of each text.

        A span starts at a token of the context for which no other window has more context, and ends at any token of the
        context. It has at most max_answer_length tokens. The n_best_size best starts and ends are combined.

        Args:
            logits: Logits of starts and ends, [R, S, 2].
            windows: The windows of the contexts.
            contexts: The tokens of the contexts.
            texts: The contexts, string [B].
        """
        n_best = self.spec.n_best_size
        start_logits, end_logits = logits[..., 0], logits[..., 1]
        splits = tf.cast(contexts.tokens.ids.row_splits, tf.int32)
        rows, positions = row_positions(windows.lengths, tf)
        first_tokens = tf.gather(splits, windows.texts) + windows.starts  # [R], in the tokens of all contexts
        tokens = tf.gather(first_tokens, rows) + positions
        owners = assign_tokens(first_tokens, windows.lengths, splits[-1], tf)
        is_start = tf.gather(owners, tokens) == rows
        indices = tf.stack([rows, tf.gather(contexts.offsets, rows) + positions], 1)
        shape = tf.shape(start_logits)
        can_end = tf.scatter_nd(indices, tf.ones_like(rows), shape) > 0  # [R, S]
        can_start = tf.scatter_nd(indices, tf.cast(is_start, tf.int32), shape) > 0

        width = tf.minimum(n_best, shape[1])
        first = tf.math.top_k(tf.where(can_start, start_logits, start_logits.dtype.min), width)  # [R, n_best]
        last = tf.math.top_k(tf.where(can_end, end_logits, end_logits.dtype.min), width)
        lengths = last.indices[:, None, :] - first.indices[:, :, None] + 1  # [R, n_best, n_best]
        is_valid = (lengths >= 1) & (lengths <= self.spec.max_answer_length)
        is_valid &= tf.gather(can_start, first.indices, batch_dims=1)[:, :, None]
        is_valid &= tf.gather(can_end, last.indices, batch_dims=1)[:, None, :]
        pairs = tf.where(is_valid)  # [A, 3]: window, number of the start, number of the end
        scores = tf.cast(first.values, tf.float64)[:, :, None] + tf.cast(last.values, tf.float64)[:, None, :]
        scores = tf.gather_nd(scores, pairs)
        text_indices = tf.gather(windows.texts, pairs[:, 0])

        order = tf.argsort(scores, direction="DESCENDING", stable=True)
        order = tf.gather(order, tf.argsort(tf.gather(text_indices, order), stable=True))
        text_indices, scores = tf.gather(text_indices, order), tf.gather(scores, order)
        window, start, end = tf.unstack(tf.cast(tf.gather(pairs, order), tf.int32), axis=1)
        base = tf.gather(first_tokens - contexts.offsets, window)  # from a position in the sequence to a token
        starts, ends = contexts.tokens.starts.values, contexts.tokens.ends.values
        starts = tf.gather(starts, base + tf.gather_nd(first.indices, tf.stack([window, start], 1)))
        ends = tf.gather(ends, base + tf.gather_nd(last.indices, tf.stack([window, end], 1)))
        answers = characters_between(texts, text_indices, starts, ends)
        return _keep_distinct(_Candidates(text_indices, scores, starts, ends, answers), n_best)


def _keep_distinct(candidates: _Candidates, n_best: int) -> _Candidates:
    """Keeps the best of the candidates with equal text for the same question, and at most n_best per question."""
    _, group = tf.unique(tf.strings.join([tf.strings.as_string(candidates.texts), candidates.answers], " "))
    numbers = tf.range(tf.size(group))
    earliest = tf.math.unsorted_segment_min(numbers, group, tf.size(group))
    kept = true_positions(tf.gather(earliest, group) == numbers)
    kept_texts = tf.gather(candidates.texts, kept)  # sorted
    ranks = tf.range(tf.size(kept)) - tf.searchsorted(kept_texts, kept_texts)  # within the text, from 0
    kept = tf.gather(kept, true_positions(ranks < n_best))
    return _Candidates(*(tf.gather(each, kept) for each in candidates))
