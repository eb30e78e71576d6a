"""Computes the answers to questions from the start and end logits of a model.

As in the original, the best starts and the best ends of each window are combined to all possible spans. The spans are
sorted by the sum of their logits, and of spans with equal text only the best is kept. There are three differences:

- The text of an answer is copied from the context. The original joins the word pieces and searches them in the words,
  ignoring case and accents. If that fails, it returns the whole words with punctuation, joined by single spaces.
- Only positions where an answer can start or end are among the best ones. That excludes the question, padding, and
  starts that have more context in another window.
- If no span is possible, the answer is "". The original crashes (v2.0) or returns the word "empty".
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from official_bert.kinds.features import Array
from official_bert.kinds.probabilities import softmax
from official_bert.kinds.question_answering.questions import Question, Window

# Possible answers within a window: arrays of the starts and ends, in characters of the context, and of their logits.
Spans = tuple[Array, ...]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A possible answer, context[start:end], with its logits and its softmax probability among all candidates."""

    text: str
    start: int
    end: int
    start_logit: float
    end_logit: float
    probability: float = 0.0


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The candidate answers to a question, and the score of "no answer"."""

    candidates: list[Candidate]  # sorted, best first; with v2.0 including the empty answer
    best: Candidate  # the best answer with a text, or an empty one if no answer has a text
    null_score_difference: float  # the score of "no answer" minus the score of `best`

    def answer(self, version_2: bool, null_score_diff_threshold: float = 0.0) -> Candidate:
        """Returns the final answer: `best`, or the empty candidate if "no answer" (SQuAD v2.0) scores high enough.

        Args:
            version_2: Whether "no answer" is allowed.
            null_score_diff_threshold: If null_score_difference is above this threshold, the answer is empty.
        """
        if version_2 and self.null_score_difference > null_score_diff_threshold:
            return next(candidate for candidate in self.candidates if not candidate.text)
        return self.best


def predict(
    questions: Sequence[Question],
    windows: Sequence[Window],
    start_logits: Sequence[Array],
    end_logits: Sequence[Array],
    version_2: bool,
    n_best_size: int = 20,
    max_answer_length: int = 30,
) -> list[Prediction]:
    """Returns the candidate answers to each question.

    Args:
        questions: Questions with at least one window each.
        windows: The windows of all questions, in any order.
        start_logits: For each window, the logits of its positions as the start of the answer, [S or more].
        end_logits: For each window, the logits of its positions as the end of the answer, [S or more].
        version_2: Whether "no answer" is always a candidate, as in SQuAD v2.0.
        n_best_size: Number of candidates to keep per question.
        max_answer_length: Maximum number of tokens of an answer.
    """
    spans: list[list[Spans]] = [[] for _ in questions]
    empty: list[list[Candidate]] = [[] for _ in questions]
    for window, start, end in zip(windows, start_logits, end_logits, strict=True):
        spans[window.question].append(_find_spans(window, start, end, n_best_size, max_answer_length))
        empty[window.question].append(Candidate("", 0, 0, float(start[0]), float(end[0])))
    # The window with the lowest score of "no answer" determines that score.
    return [
        _make_prediction(question.context, some, min(empty_ones, key=_get_score), version_2, n_best_size)
        for question, some, empty_ones in zip(questions, spans, empty, strict=True)
    ]


def _make_prediction(
    context: str, spans: Sequence[Spans], nothing: Candidate, version_2: bool, n_best_size: int
) -> Prediction:
    begins, ends, start_logits, end_logits = (np.concatenate(parts) for parts in zip(*spans, strict=True))
    distinct: dict[str, Candidate] = {}
    for index in np.argsort(-(start_logits + end_logits), kind="stable"):
        begin, end = int(begins[index]), int(ends[index])
        text = context[begin:end]
        if text not in distinct:
            distinct[text] = Candidate(text, begin, end, float(start_logits[index]), float(end_logits[index]))
            if len(distinct) == n_best_size:
                break
    best_ones = list(distinct.values())
    if version_2 or not best_ones:
        best_ones = sorted([*best_ones, nothing], key=_get_score, reverse=True)
    probabilities = softmax(np.array([_get_score(candidate) for candidate in best_ones]))
    likely = [
        dataclasses.replace(candidate, probability=float(probability))
        for candidate, probability in zip(best_ones, probabilities, strict=True)
    ]
    best = next((candidate for candidate in likely if candidate.text), likely[0])
    return Prediction(likely, best, _get_score(nothing) - _get_score(best))


def _get_score(candidate: Candidate) -> float:
    return candidate.start_logit + candidate.end_logit


def _find_spans(
    window: Window, start_logits: Array, end_logits: Array, n_best_size: int, max_answer_length: int
) -> Spans:
    """Combines the best starts and the best ends of a window to all possible answers."""
    context = slice(window.offset, window.offset + len(window.has_most_context))
    start_logits, end_logits = (logits[context].astype(np.float64) for logits in (start_logits, end_logits))
    allowed = np.flatnonzero(window.has_most_context)
    starts = allowed[_find_best(start_logits[allowed], n_best_size)]  # from the first context token
    ends = _find_best(end_logits, n_best_size)
    lengths = ends - starts[:, None] + 1  # [starts, ends]
    rows, columns = np.nonzero((lengths >= 1) & (lengths <= max_answer_length))
    starts, ends = starts[rows], ends[columns]
    return window.starts[starts], window.ends[ends], start_logits[starts], end_logits[ends]


def _find_best(scores: Array, count: int) -> Array:
    """Returns the positions of the `count` highest scores, best first. The first of equal scores comes first."""
    return np.argsort(-scores, kind="stable")[:count]
