"""How far an answer is from another one, answers at the very limits, and models that give every text one answer."""

import re
import types

import numpy as np
import pytest
import tensorflow as tf

from official_bert.kinds.classification.graph import Graph as ClassificationGraph
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.constant_answers import describe_constant_answers
from official_bert.kinds.multi_label.graph import Graph as MultiLabelGraph
from official_bert.kinds.multi_label.spec import MultiLabelSpec
from official_bert.kinds.question_answering.candidates import Candidate, Prediction
from official_bert.kinds.question_answering.questions import Answer, Question
from official_bert.kinds.question_answering.spec import QuestionAnsweringSpec
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.kinds.text_spec import TextExample

AB, ABC = ("a", "b"), ("a", "b", "c")


@pytest.mark.parametrize(("head", "probabilities", "expected"), [
    (ClassificationSpec(labels=ABC), [0.5, 0.3, 0.2], 0.2),
    (ClassificationSpec(labels=AB, thresholds=(0.3, 0.7)), [0.6, 0.4], 0.6),
    (ClassificationSpec(labels=ABC, min_confidence=0.55), [0.5, 0.3, 0.2], 0.05),
    (ClassificationSpec(labels=ABC, min_confidence=0.4), [0.5, 0.3, 0.2], 0.1),
    (ClassificationSpec(labels=ABC, min_confidence=0.9), [0.5, 0.3, 0.2], 0.2),
    (MultiLabelSpec(labels=AB), [0.9, 0.4], 0.1), (MultiLabelSpec(labels=AB, thresholds=(0.75, 0.1)), [0.9, 0.4], 0.15),
    (MultiLabelSpec(labels=AB, temperature=2.0), [0.9, 0.4], 0.05051),  # 0.4 becomes 0.44949
])  # fmt: skip
def test_the_margin_is_the_distance_to_the_nearest_other_answer(head, probabilities: list[float], expected: float):
    features = types.SimpleNamespace(details={"example": np.array([0])})
    values = np.array(probabilities)
    logits = np.log(values / (1 - values)) if isinstance(head, MultiLabelSpec) else np.log(values)
    assert head.margins([logits], features, [None]) == pytest.approx([expected], abs=1e-5)


@pytest.mark.parametrize(("version_2", "probabilities", "difference", "expected"), [
    (False, [0.5, 0.4, 0.1], 0.95, 0.1), (True, [0.5, 0.4, 0.1], 0.95, 0.05), (True, [0.5, 0.4, 0.1], -5.0, 0.1),
    (False, [1.0], 0.0, 1.0),
])  # fmt: skip
def test_the_margin_of_an_answer_to_a_question(version_2: bool, probabilities, difference, expected, monkeypatch):
    some = [Candidate("a", 0, 1, 0.0, 0.0, probability) for probability in probabilities]
    prediction = Prediction(some, some[0], difference)
    monkeypatch.setattr(QuestionAnsweringSpec, "decode", lambda *_: [prediction])
    features = None
    head = QuestionAnsweringSpec(version_2=version_2, null_score_diff_threshold=1.0)
    assert head.margins(None, features, []) == pytest.approx([expected])


def test_any_of_several_correct_answers_is_accepted():
    question = Question("q", "who?", "a dog and a cat", (Answer("a dog", 0), Answer("cat", 12), Answer("cat", 12)))
    for text, is_right in (("cat", True), ("a dog", True), ("dog and", False), ("", False)):
        candidate = Candidate(text, 0, len(text), 0.0, 0.0, 0.5)
        (outcome,) = QuestionAnsweringSpec().outcomes([Prediction([candidate], candidate, 0.0)], [question])
        shown = ("who? ||| a dog and a cat", "a dog | cat", text or "(no answer)")
        assert (outcome.text, outcome.expected, outcome.predicted) == shown
        assert outcome.correct == is_right


SURE, THRESHOLDS, CALIBRATED = {"min_confidence": 0.5}, {"thresholds": (0.3, 0.7)}, {"temperature": 2.0}
ANSWERS = [
    (ClassificationSpec(labels=("b", "a"), **SURE), [0.0, 0.0], "label", "b"),  # the first of two equally probable ones
    (ClassificationSpec(labels=AB, min_confidence=0.7), np.log([0.4, 0.6]), "label", ""),
    (ClassificationSpec(labels=AB, **CALIBRATED), np.log([0.9, 0.1]), "probabilities", pytest.approx([0.75, 0.25])),
    (MultiLabelSpec(labels=AB, **CALIBRATED), np.log([9, 1 / 9]), "probabilities", pytest.approx([0.75, 0.25])),
    (ClassificationSpec(labels=AB, **THRESHOLDS), np.log([0.4, 0.6]), "label", "a"),  # farthest above its threshold
    (ClassificationSpec(labels=AB, **THRESHOLDS), np.log([0.4, 0.6]), "probability", pytest.approx(0.4)),
    # A probability equal to the threshold does not predict the label.
    (MultiLabelSpec(labels=AB), [0.0, 1.0], "predicted", [False, True]),
    (MultiLabelSpec(labels=AB, thresholds=(0.75, 0.5)), [0.9, 0.1], "predicted", [False, True]),
    (MultiLabelSpec(labels=AB, thresholds=(0.5, 0.25)), [0.0, -0.9], "predicted", [False, True]),
]


@pytest.mark.parametrize(("head", "logits", "name", "expected"), ANSWERS)
def test_answers_are_the_same_in_a_graph(head, logits, name: str, expected):
    predictions = head.apply_activation(np.array([logits]))
    assert head.named_answers(predictions, [])[name] == [expected]
    graph = MultiLabelGraph if isinstance(head, MultiLabelSpec) else ClassificationGraph
    in_graph = graph.answer_logits(types.SimpleNamespace(spec=head), tf.constant([logits], tf.float32))[name]
    assert in_graph.numpy().tolist() == [expected.encode() if name == "label" else expected]
    if name == "label":
        assert head.scores(predictions, [TextExample("", "", None, 0)]).get("coverage", 1.0) == bool(expected)


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
