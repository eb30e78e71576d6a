"""Scores answers by the published rules of SQuAD: exact match and F1, in percent.

Before comparison, texts are converted to lower case, and ASCII punctuation and the articles a, an and the are removed.
F1 counts the words that two texts share. If a question has several correct answers, the best score counts.

In v2.0, a question without an answer is correct if the normalized prediction is empty. Correct answers that are empty
after normalization are ignored.

A question without a prediction is wrong, as in the published script of v1.1. The script of v2.0 leaves it out of the
mean.
"""

import collections
import re
import string
from collections.abc import Callable, Mapping, Sequence

from official_bert.errors import UserError
from official_bert.kinds.question_answering.questions import Question

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize(text: str) -> str:
    """Normalizes a text for comparison: lower case, no ASCII punctuation, no articles (a, an, the), single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> float:
    """Returns 1.0 if both texts are equal after normalization, else 0.0."""
    return float(normalize(prediction) == normalize(answer))


def f1(prediction: str, answer: str) -> float:
    """Returns the F1 of the words that two texts share, as in SQuAD v1.1, from 0 to 1.

    It is 0.0 if a text is empty after normalization.
    """
    predicted, right = normalize(prediction).split(), normalize(answer).split()
    common = sum((collections.Counter(predicted) & collections.Counter(right)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(right)
    return 2 * precision * recall / (precision + recall)


def f1_version_2(prediction: str, answer: str) -> float:
    """Returns the F1 of the words that two texts share, as in SQuAD v2.0, from 0 to 1.

    It is 1.0 if both texts are empty after normalization, and 0.0 if only one is.
    """
    if not normalize(prediction) or not normalize(answer):
        return exact_match(prediction, answer)
    return f1(prediction, answer)


_MEASURES = {"exact": exact_match, "f1": f1_version_2}  # of SQuAD v2.0


def score_version_1(questions: Sequence[Question], answers: Mapping[str, str]) -> dict[str, float]:
    """Returns the scores of SQuAD v1.1, exact_match and f1, from 0 to 100.

    Args:
        questions: Questions with their correct answers.
        answers: Predicted answers by question id.

    Raises:
        UserError: If a question has no correct answers.
    """
    totals = {"exact_match": 0.0, "f1": 0.0}
    for question in questions:
        right = _list_right_answers(question)
        if question.id in answers:
            predicted = answers[question.id]
            totals["exact_match"] += max(exact_match(predicted, each) for each in right)
            totals["f1"] += max(f1(predicted, each) for each in right)
    return {name: 100 * total / max(len(questions), 1) for name, total in totals.items()}


def score_version_2(
    questions: Sequence[Question],
    answers: Mapping[str, str],
    null_score_differences: Mapping[str, float] | None = None,
    best_answers: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """Returns the scores of SQuAD v2.0: exact, f1 and total (the number of questions).

    HasAns_exact and similar scores count only questions with an answer, and NoAns_exact and similar scores count only
    questions without an answer.

    Args:
        questions: Questions with their correct answers. An empty tuple means that the question has no answer.
        answers: Predicted answers by question id. "" means "no answer".
        null_score_differences: Score of "no answer" minus the score of the best answer, by question id. If given, the
            result also contains the best possible scores for any threshold of this difference, best_exact and best_f1,
            and the thresholds, best_exact_thresh and best_f1_thresh.
        best_answers: The best answers other than "no answer", by question id, for the search of thresholds. Defaults to
            `answers`, as in the published script.

    Raises:
        UserError: If it is unknown whether a question has answers.
    """
    scores = {name: _score_by_question(questions, answers, measure) for name, measure in _MEASURES.items()}
    ids = {question.id for question in questions}
    answerable = {question.id for question in questions if question.answers}
    result: dict[str, float] = {}
    for prefix, some in (("", ids), ("HasAns_", answerable), ("NoAns_", ids - answerable)):
        if some or not prefix:
            for name, values in scores.items():
                result[f"{prefix}{name}"] = 100 * sum(values[each] for each in some) / max(len(some), 1)
            result[f"{prefix}total"] = len(some)
    if null_score_differences is not None:
        candidates = answers if best_answers is None else best_answers
        for name, measure in _MEASURES.items():
            result[f"best_{name}"], result[f"best_{name}_thresh"] = find_best_threshold(
                _score_by_question(questions, candidates, measure), answerable, candidates, null_score_differences
            )
    return result


def find_best_threshold(
    scores: Mapping[str, float],
    answerable: set[str],
    answers: Mapping[str, str],
    null_score_differences: Mapping[str, float],
) -> tuple[float, float]:
    """Searches the threshold of the null-score difference with the highest score.

    A question is answered if its difference is at most the threshold. As in the published script, the lowest of several
    best thresholds is returned, and 0.0 if it is best to answer nothing.

    Args:
        scores: Score of the predicted answer to each question, 0 to 1, by question id.
        answerable: Ids of the questions that have an answer.
        answers: Predicted answers by question id.
        null_score_differences: Score of "no answer" minus the score of the best answer, by question id. Questions
            without a difference are not answered.

    Returns:
        The highest score, 0 to 100, and its threshold.
    """
    current = best = float(len(scores) - len(answerable))  # nothing is answered
    threshold = 0.0
    for name in sorted(null_score_differences, key=null_score_differences.__getitem__):
        if name not in scores:
            continue
        if name in answerable:
            current += scores[name]
        elif answers.get(name):
            current -= 1
        if current > best:
            best, threshold = current, null_score_differences[name]
    return 100 * best / max(len(scores), 1), threshold


def _score_by_question(
    questions: Sequence[Question], answers: Mapping[str, str], measure: Callable[[str, str], float]
) -> dict[str, float]:
    result = {}
    for question in questions:
        right = [""]
        if question.answers != ():
            right = [text for text in _list_right_answers(question) if normalize(text)] or [""]
        predicted = answers.get(question.id)
        result[question.id] = 0.0 if predicted is None else max(measure(predicted, each) for each in right)
    return result


def _list_right_answers(question: Question) -> list[str]:
    if not question.answers:
        raise UserError(
            f"question {question.id} has no correct answers to compare with; evaluate on a file with answers"
        )
    return [answer.text for answer in question.answers]
