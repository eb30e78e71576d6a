"""How SQuAD's answers are scored, by the published rules: exact match and F1, both from 0 to 100.

Texts are compared in lower case, without ASCII punctuation, without the articles a, an and the, and with single spaces.
F1 is the one of the words that two texts share. The best over the right answers counts. In v2.0 a question without an
answer counts as right if the prediction is empty (after that), and right answers of which nothing remains do not count.

It differs from the published script of v2.0 in one thing: a question without a prediction is wrong; the script leaves
it out of the mean (the one of v1.1 does not).
"""

import collections
import re
import string
from collections.abc import Callable, Mapping, Sequence

from official_bert.errors import UserError
from official_bert.kinds.question_answering.questions import Question

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalized(text: str) -> str:
    """Returns the text as it is compared."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> float:
    """Returns 1.0 if both are the same once normalized, else 0.0."""
    return float(normalized(prediction) == normalized(answer))


def f1(prediction: str, answer: str) -> float:
    """Returns the harmonic mean of the shares of words that each has in common with the other, v1.1's way.

    If nothing remains of either text, nothing is in common, and it is 0.0 even if nothing remains of both.
    """
    predicted, right = normalized(prediction).split(), normalized(answer).split()
    common = sum((collections.Counter(predicted) & collections.Counter(right)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(right)
    return 2 * precision * recall / (precision + recall)


def f1_version_2(prediction: str, answer: str) -> float:
    """Returns `f1`, but 1.0 if nothing remains of both texts."""
    if not normalized(prediction) or not normalized(answer):
        return exact_match(prediction, answer)
    return f1(prediction, answer)


def score_version_1(questions: Sequence[Question], answers: Mapping[str, str]) -> dict[str, float]:
    """Returns exact_match and f1.

    Args:
        questions: with their right answers.
        answers: the predictions, by the questions' ids; a question without one is wrong.

    Raises:
        UserError: a question's right answers are not known.
    """
    totals = {"exact_match": 0.0, "f1": 0.0}
    for question in questions:
        right = _right_answers(question)
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
    """Returns exact, f1 and total: of all questions, of those with an answer (HasAns_) and of those without (NoAns_).

    Args:
        questions: with their right answers; an empty tuple for those without one.
        answers: the predictions, by the questions' ids; "" for no answer.
        null_score_differences: for each id how much more likely no answer is than the best one. With it the result has
            best_exact and best_f1, the scores at the best thresholds on it, and best_exact_thresh and best_f1_thresh.
        best_answers: the best answers that are not empty, for the search of thresholds. The published script knows
            `answers` alone, in which some have been emptied by a threshold already; that is done without this.

    Raises:
        UserError: a question's right answers are not known.
    """
    exact, overlap = _by_question(questions, answers, exact_match), _by_question(questions, answers, f1_version_2)
    answerable = {question.id for question in questions if question.answers}
    result = _means("", exact, overlap, set(exact))
    if answerable:
        result |= _means("HasAns_", exact, overlap, answerable)
    if unanswerable := set(exact) - answerable:
        result |= _means("NoAns_", exact, overlap, unanswerable)
    if null_score_differences is not None:
        candidates = answers if best_answers is None else best_answers
        for name, measure in (("exact", exact_match), ("f1", f1_version_2)):
            result[f"best_{name}"], result[f"best_{name}_thresh"] = best_threshold(
                _by_question(questions, candidates, measure), answerable, candidates, null_score_differences
            )
    return result


def best_threshold(
    scores: Mapping[str, float],
    answerable: set[str],
    answers: Mapping[str, str],
    null_score_differences: Mapping[str, float],
) -> tuple[float, float]:
    """Returns the highest score, 0 to 100, that a threshold on the null-score difference gives, and that threshold.

    A question is answered if its difference is not above the threshold. Of equal scores the lowest threshold is
    returned, and 0.0 if to answer nothing is best, as by the published script.

    Args:
        scores: of each question's answer.
        answerable: the ids of the questions that have an answer.
        answers: the predictions.
        null_score_differences: for each id; a question without one is never answered.
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


def _by_question(
    questions: Sequence[Question], answers: Mapping[str, str], measure: Callable[[str, str], float]
) -> dict[str, float]:
    result = {}
    for question in questions:
        right = [""]
        if question.answers != ():
            right = [text for text in _right_answers(question) if normalized(text)] or [""]
        predicted = answers.get(question.id)
        result[question.id] = 0.0 if predicted is None else max(measure(predicted, each) for each in right)
    return result


def _right_answers(question: Question) -> list[str]:
    if not question.answers:
        raise UserError(f"question {question.id} has no answers to score by; evaluate on a file that has them")
    return [answer.text for answer in question.answers]


def _means(prefix: str, exact: Mapping[str, float], overlap: Mapping[str, float], ids: set[str]) -> dict[str, float]:
    return {
        f"{prefix}exact": 100 * sum(exact[name] for name in ids) / max(len(ids), 1),
        f"{prefix}f1": 100 * sum(overlap[name] for name in ids) / max(len(ids), 1),
        f"{prefix}total": len(ids),
    }
