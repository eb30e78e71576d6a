"""Models that give every text the same answer are reported, and others are not."""

import re

import numpy as np
import pytest

from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.constant_answers import describe_constant_answers
from official_bert.kinds.multi_label.spec import MultiLabelSpec
from official_bert.kinds.regression.spec import RegressionSpec

ONE, OTHER = [0.9, 0.1], [0.2, 0.8]
CLASSES, SEVERAL = ClassificationSpec(labels=("a", "b")), MultiLabelSpec(labels=("a", "b"))


@pytest.mark.parametrize(("head", "predictions", "expected"), [
    (CLASSES, [ONE] * 10, "all 10 answers are a: "), (CLASSES, [*[ONE] * 40, OTHER], None), (CLASSES, [ONE] * 9, None),
    (ClassificationSpec(labels=("a", "b"), min_confidence=0.95), [ONE, OTHER] * 20, "min_confidence"),
    (ClassificationSpec(labels=("a", "b"), min_confidence=0.85), [ONE, OTHER] * 20, None),
    (SEVERAL, [[0.1, 0.2]] * 40, "are (none): "), (SEVERAL, [[0.9, 0.7], [0.6, 0.7]] * 20, "are a, b: "),
    (SEVERAL, [ONE, OTHER] * 20, None), (RegressionSpec(), [-2.5, -2.501] * 20, "are between -2.501 and -2.5: "),
    (RegressionSpec(), [0.0] * 40, "all 40 answers are between 0 and 0: "),
    (RegressionSpec(), [1e-5, 1.1e-5] * 20, None), (RegressionSpec(), [-1e-9, 1e-9] * 20, None),
])  # fmt: skip
def test_constant_answers_are_reported(head, predictions, expected: str | None):
    found = describe_constant_answers(head.named_answers(np.array(predictions), []))
    assert found is None if expected is None else expected in found


def test_numbers_are_compared_with_the_spread_of_the_labels():
    found = describe_constant_answers({"value": [0.366, 0.37] * 20}, [10_000.0, 15_000.0])
    assert {"0.366", "0.37", "10000", "15000"} <= {*re.findall(r"[\d.]+\d", found or "")}
    assert describe_constant_answers({"value": [0.366, 0.37] * 20}, [0.0, 1.0]) is None


@pytest.mark.parametrize(("answers", "expected"), [
    ({"tags": [["O", "O"], ["O"]] * 20, "words": [["a", "b"], ["c"]] * 20}, "all 40 answers are O: "),
    ({"tags": [[], ["O"]] * 9}, None), ({"tags": [["O", "O"], ["O", "B-PER"]] * 20}, None),
    ({"answer": [""] * 40, "start": [-1] * 40}, "all 40 answers are (no answer): "),
    ({"choice": [2] * 40}, "all 40 answers are 2: "), ({"choice": [2, 0] * 20}, None),
    ({"answer": ["1912"] * 40}, None), ({"answer": ["", *["1912"] * 40]}, None), ({"vector": [[1.0]] * 20}, None),
])  # fmt: skip
def test_constant_tags_and_constant_answers_to_questions_are_reported(answers, expected: str | None):
    found = describe_constant_answers(answers)
    assert found is None if expected is None else expected in found
