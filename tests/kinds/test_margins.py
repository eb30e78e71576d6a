"""How far an answer is from another one, and answers at the very limits."""

import types
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from official_bert.kinds.classification.graph import Graph as ClassificationGraph
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.multi_label.graph import Graph as MultiLabelGraph
from official_bert.kinds.multi_label.spec import MultiLabelSpec
from official_bert.kinds.question_answering.candidates import Candidate, Prediction
from official_bert.kinds.question_answering.questions import Answer, Question
from official_bert.kinds.question_answering.spec import QuestionAnsweringSpec
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
    features: Any = types.SimpleNamespace(details={"example": np.array([0])})
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
    features: Any = None
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


def answer_in_graph(graph: Any, head: Any, logits: list[float]) -> dict[str, Any]:
    model: Any = types.SimpleNamespace(spec=head)
    return {name: value.numpy().tolist() for name, value in graph.answer_logits(model, tf.constant([logits])).items()}


def test_a_probability_equal_to_min_confidence_gives_an_answer():
    head, predictions = ClassificationSpec(labels=("b", "a"), min_confidence=0.5), np.array([[0.5, 0.5]])
    assert head.named_answers(predictions, [])["label"] == ["b"]  # the first of two equally probable classes
    assert head.scores(predictions, [TextExample("", "", None, 0)])["coverage"] == 1.0
    assert answer_in_graph(ClassificationGraph, head, [0.0, 0.0])["label"] == [b"b"]


def test_the_class_farthest_above_its_threshold_is_predicted():
    head, predictions = ClassificationSpec(labels=AB, thresholds=(0.3, 0.7)), np.array([[0.4, 0.6]])
    assert head.named_answers(predictions, [])["label"] == ["a"]
    answer = answer_in_graph(ClassificationGraph, head, np.log(predictions[0]).tolist())
    assert (answer["label"], answer["probability"]) == ([b"a"], [pytest.approx(0.4)])


def test_a_probability_equal_to_the_threshold_does_not_predict_the_label():
    for head, logits in (
        (MultiLabelSpec(labels=AB), [0.0, 1.0]),
        (MultiLabelSpec(labels=AB, thresholds=(0.75, 0.5)), [0.9, 0.1]),
        (MultiLabelSpec(labels=AB, thresholds=(0.5, 0.25)), [0.0, -0.9]),
    ):
        predictions = 1 / (1 + np.exp(-np.array([logits])))
        expected = [[False, True]]
        assert head.named_answers(predictions, [])["predicted"] == expected
        assert answer_in_graph(MultiLabelGraph, head, logits)["predicted"] == expected
