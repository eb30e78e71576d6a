"""From a model's scores to the answers of SQuAD.

As in the original: of every window the best starts and ends, in pairs that can be an answer, best sum first, and of
those with the same text the best. It differs in three things:

- The text is what stands in the context from the first piece's first character to the last one's last. The original
  joins the pieces, looks them up in the words with lower case and accents gone, and where that fails (characters that
  change their number in lower case, say) gives the whole words, punctuation included; several white spaces become one.
- Positions where no answer can begin or end (question, padding, and starts that another window sees better) do not use
  up ranks among the best.
- Without any pair the answer is "". The original crashes there (v2.0), or answers with the word "empty".
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from official_bert.kinds.question_answering.questions import Question, Window

Scores = Sequence[npt.NDArray[np.float32]]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """An answer, context[start:end] (0 and 0 for none), with its scores and how likely it is among the candidates."""

    text: str
    start: int
    end: int
    start_logit: float
    end_logit: float
    probability: float = 0.0


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What is answered to a question."""

    candidates: list[Candidate]  # the best, best first; with v2.0 the empty answer is among them
    best: Candidate  # the best that is not empty, whatever the score of "no answer"; empty if there is none
    null_score_difference: float  # the score of "no answer" minus the one of `best`

    def answer(self, version_2: bool, null_score_diff_threshold: float = 0.0) -> Candidate:
        """Returns `best`; with v2.0 the empty answer if the difference is above the threshold."""
        if version_2 and self.null_score_difference > null_score_diff_threshold:
            return next(candidate for candidate in self.candidates if not candidate.text)
        return self.best


def predict(
    questions: Sequence[Question],
    windows: Sequence[Window],
    start_logits: Scores,
    end_logits: Scores,
    version_2: bool,
    n_best_size: int = 20,
    max_answer_length: int = 30,
) -> list[Prediction]:
    """Returns what is answered to each question.

    Args:
        questions: each has a window or more.
        windows: those of all questions, in any order.
        start_logits: for each window the scores of its positions, [S or more].
        end_logits: likewise.
        version_2: whether "no answer" is among the candidates.
        n_best_size: how many candidates to keep.
        max_answer_length: of an answer, in pieces.
    """
    of_question: list[list[int]] = [[] for _ in questions]
    for number, window in enumerate(windows):
        of_question[window.question].append(number)
    return [
        _predict(
            question.context,
            [windows[number] for number in numbers],
            [start_logits[number] for number in numbers],
            [end_logits[number] for number in numbers],
            version_2,
            n_best_size,
            max_answer_length,
        )
        for question, numbers in zip(questions, of_question, strict=True)
    ]


def _predict(
    context: str,
    windows: list[Window],
    starts: Scores,
    ends: Scores,
    version_2: bool,
    n_best_size: int,
    max_answer_length: int,
) -> Prediction:
    candidates: list[Candidate] = []
    for window, start, end in zip(windows, starts, ends, strict=True):
        candidates += _candidates(context, window, start, end, n_best_size, max_answer_length)
    candidates.sort(key=_score, reverse=True)
    distinct: dict[str, Candidate] = {}
    for candidate in candidates:
        if len(distinct) == n_best_size:
            break
        distinct.setdefault(candidate.text, candidate)
    best_ones = list(distinct.values())
    # The window that is least sure that there is no answer speaks for all.
    nothing = min(
        (Candidate("", 0, 0, float(start[0]), float(end[0])) for start, end in zip(starts, ends, strict=True)),
        key=_score,
    )
    best = best_ones[0] if best_ones else nothing
    if version_2 or not best_ones:
        best_ones = sorted([*best_ones, nothing], key=_score, reverse=True)
    scores = np.array([_score(candidate) for candidate in best_ones])
    probabilities = np.exp(scores - scores.max())
    probabilities /= probabilities.sum()
    likely = [
        dataclasses.replace(candidate, probability=float(probability))
        for candidate, probability in zip(best_ones, probabilities, strict=True)
    ]
    likely_best = next((candidate for candidate in likely if candidate.text), likely[0])
    return Prediction(likely, likely_best, _score(nothing) - _score(best))


def _score(candidate: Candidate) -> float:
    return candidate.start_logit + candidate.end_logit


def _candidates(
    context: str,
    window: Window,
    start_logits: npt.NDArray[np.float32],
    end_logits: npt.NDArray[np.float32],
    n_best_size: int,
    max_answer_length: int,
) -> list[Candidate]:
    """Returns the best answers within a window, best first: no more than n_best_size, each text once."""
    here = slice(window.offset, window.offset + len(window.has_most_context))
    allowed = np.flatnonzero(window.has_most_context)
    starts = allowed[_best(start_logits[here][allowed], n_best_size)]  # counted from the window's first of context
    ends = _best(end_logits[here], n_best_size)
    lengths = ends - starts[:, None] + 1  # [starts, ends]
    rows, columns = np.nonzero((lengths >= 1) & (lengths <= max_answer_length))
    starts, ends = starts[rows], ends[columns]
    start_scores = start_logits[here][starts].astype(np.float64)
    end_scores = end_logits[here][ends].astype(np.float64)
    by_text: dict[str, Candidate] = {}
    for index in np.argsort(-(start_scores + end_scores), kind="stable"):
        begin = int(window.starts[starts[index]])
        end = int(window.ends[ends[index]])
        text = context[begin:end]
        if text not in by_text:
            by_text[text] = Candidate(text, begin, end, float(start_scores[index]), float(end_scores[index]))
            if len(by_text) == n_best_size:
                break
    return list(by_text.values())


def _best(scores: npt.NDArray[np.floating], count: int) -> npt.NDArray[np.int64]:
    """The positions of the highest scores, best first, of equal ones the first."""
    return np.argsort(-scores, kind="stable")[:count]
