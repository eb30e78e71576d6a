"""Models that answer every text alike are named, and others are not."""

import numpy as np
import pytest

from official_bert.tasks.heads.classes import ClassificationHead, MultiLabelHead
from official_bert.tasks.heads.constant_answers import ConstantAnswers
from official_bert.tasks.heads.texts import RegressionHead

ONE, OTHER = [0.9, 0.1], [0.2, 0.8]
LABELS = ("a", "b")


def warning(head, predictions) -> str | None:
    constant, answers = ConstantAnswers(), head.named_answers(np.array(predictions), [])
    for row in zip(*answers.values(), strict=True):
        constant.add(dict(zip(answers, row, strict=True)))
    return constant.warning()


@pytest.mark.parametrize(("head", "predictions", "expected"), [
    (ClassificationHead(labels=LABELS), [ONE] * 40, "all 40 answers are a: the model may have learned nothing"),
    (ClassificationHead(labels=LABELS, min_confidence=0.95), [ONE, OTHER] * 20, "are (no answer): "),
    (MultiLabelHead(labels=LABELS), [[0.1, 0.2]] * 40, "are (none): "),
    (MultiLabelHead(labels=LABELS), [[0.9, 0.7], [0.6, 0.7]] * 20, "are a, b: "),
    (RegressionHead(), [2.5, 2.501] * 20, "all 40 answers are between 2.5 and 2.501: "),
    (RegressionHead(), [0.0] * 40, "all 40 answers are between 0 and 0: "),
])  # fmt: skip
def test_answers_that_are_all_alike_are_named(head, predictions, expected):
    assert expected in warning(head, predictions)


@pytest.mark.parametrize(("head", "predictions"), [
    (ClassificationHead(labels=LABELS), [*[ONE] * 40, OTHER]),
    (ClassificationHead(labels=LABELS), [ONE] * 9),
    (ClassificationHead(labels=LABELS, min_confidence=0.85), [ONE, OTHER] * 20),
    (MultiLabelHead(labels=LABELS), [ONE, OTHER] * 20),
    (RegressionHead(), [1e-5, 1.1e-5] * 20),
    (RegressionHead(), [-1e-9, 1e-9] * 20),
])  # fmt: skip
def test_answers_that_differ_are_not(head, predictions):
    assert warning(head, predictions) is None


def test_answers_of_other_kinds_are_ignored():
    constant = ConstantAnswers()
    for _ in range(20):
        constant.add({"tags": ["O"], "words": ["a"]})
    assert constant.warning() is None
