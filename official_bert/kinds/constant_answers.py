"""Detects models that give the same answer to every text, which usually means that training has failed."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

_MIN_ANSWERS = 10  # fewer texts may well have the same class
_MIN_SPREAD = 1e-3  # smallest spread of numbers that counts, relative to their largest magnitude or the labels' spread


class ConstantAnswers:
    """Collects the answers of a model, and returns a warning if they are all equal or nearly equal.

    Answers of a tagger count as equal if all words of all texts have the same tag. Answers to questions count as equal
    only if all are empty, because the same answer may be correct for many questions. Vectors are ignored.

    Args:
        expected: The known labels of a regression. Answers count as nearly equal if their spread is
            tiny compared with the spread of the labels.
    """

    def __init__(self, expected: Sequence[float] = ()) -> None:
        self._expected = (min(expected), max(expected)) if expected else (0.0, 0.0)
        self._count, self._names = 0, set[str]()
        self._least, self._most = math.inf, -math.inf

    def add(self, answer: Mapping[str, Any]) -> None:
        """Adds one answer. Ignores vectors, and answers of a tagger to a text without words.

        Args:
            answer: The outputs for one text, by the names of an export's outputs (see `KindSpec.named_answers`).
        """
        if "value" in answer:
            self._least, self._most = min(self._least, answer["value"]), max(self._most, answer["value"])
        elif "predicted" in answer:
            pairs = zip(answer["labels"], answer["predicted"], strict=True)
            self._names.add(", ".join(label for label, is_predicted in pairs if is_predicted) or "(none)")
        elif answer.get("tags"):
            self._names.update(answer["tags"])
        elif "answer" in answer:
            # Texts count as different, even if they are equal.
            self._names.update({"a text", "another text"} if answer["answer"] else {"(no answer)"})
        elif "label" in answer or "choice" in answer:
            self._names.add(str(answer.get("label", answer.get("choice"))))  # "" is below min_confidence.
        else:
            return
        self._count += 1

    def warning(self) -> str | None:
        """Returns a warning if all answers are equal or nearly equal, or None if they differ or are too few to tell."""
        if self._count < _MIN_ANSWERS:
            return None
        advice = "the model may have learned nothing; check the labels, or train with a lower learning rate"
        if self._names == {""}:
            return f"all {self._count:,} answers are (no answer): no class is as probable as the model's min_confidence"
        if len(self._names) == 1:
            return f"all {self._count:,} answers are {min(self._names)}: {advice}"
        least, most, (low, high) = self._least, self._most, self._expected
        if not self._names and most - least <= _MIN_SPREAD * max(abs(least), abs(most), high - low):
            labels = f", and the labels between {low:.7g} and {high:.7g}" if high > low else ""
            scaling = "; scale the labels to about 0 to 1 if they are much larger" if high > low else ""
            return f"all {self._count:,} answers are between {least:.7g} and {most:.7g}{labels}: {advice}{scaling}"
        return None


def describe_constant_answers(answers: Mapping[str, Sequence[Any]], expected: Sequence[float] = ()) -> str | None:
    """Returns a warning if a model answered all texts with the same or nearly the same answer, else None.

    Args:
        answers: For each output of the model (see `KindSpec.named_answers`), a list with one value per text.
        expected: See `ConstantAnswers`.
    """
    constant = ConstantAnswers(expected)
    for row in zip(*answers.values(), strict=True):
        constant.add(dict(zip(answers, row, strict=True)))
    return constant.warning()
