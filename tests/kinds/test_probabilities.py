"""Calibration and thresholds, margins, answers at the very limits, and models that give every text one answer."""

import dataclasses
import types

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import expit as sigmoid
from scipy.special import softmax

from official_bert.kinds import constant_answers, probabilities
from official_bert.kinds.classification.graph import Graph as ClassificationGraph
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.multi_label.graph import Graph as MultiLabelGraph
from official_bert.kinds.multi_label.spec import MultiLabelSpec
from official_bert.kinds.names import parse_measure
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.kinds.spec import DecisionOptions
from tests.make import assert_rejected, make_examples

AB, ABC = ("a", "b"), ("a", "b", "c")


def test_fit_temperature_recovers_a_known_temperature():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (20_000, 3))
    # Calibrated: as often right as the probabilities claim.
    labels = (softmax(logits, -1).cumsum(axis=-1) < rng.random((20_000, 1))).sum(axis=-1)
    examples, too_sure = make_examples(*labels.tolist()), softmax(logits * 3, -1)
    calibrated = ClassificationSpec(labels=ABC).fit_temperature(too_sure, examples)
    assert calibrated.temperature == pytest.approx(3, rel=0.05)
    rescaled = calibrated.calibrate(too_sure)
    np.testing.assert_allclose(rescaled, softmax(logits, -1), atol=0.02)
    figures = calibrated.calibration_report(rescaled, examples)
    assert figures["before"] > 0.1 > 0.02 > figures["after"]
    (_, _, accuracy_of_all), *_, (_, _, accuracy_of_surest) = figures["coverage"]
    assert accuracy_of_all == np.mean(np.argmax(rescaled, axis=-1) == labels) < accuracy_of_surest
    again = calibrated.fit_temperature(rescaled, examples)
    assert again.temperature == pytest.approx(calibrated.temperature, rel=0.01)


def test_a_report_compares_the_error_with_and_without_the_temperature():
    raw, examples = np.array([[0.9, 0.1]]), make_examples(1)
    head = ClassificationSpec(labels=AB, temperature=2.0)
    figures = head.calibration_report(head.calibrate(raw), examples)  # odds of 9 and 3
    assert (figures["temperature"], figures["before"], figures["after"]) == pytest.approx((2.0, 0.9, 0.75))
    several = MultiLabelSpec(labels=AB, temperature=0.5)
    assert several.settings == {"temperature": 0.5}
    figures = several.calibration_report(several.calibrate(raw), make_examples((0,)))
    assert (figures["before"], figures["after"]) == pytest.approx((0.1, 1 / 82))
    assert figures["coverage"] == []  # such a model cannot abstain


def test_thresholds_are_chosen_on_calibrated_probabilities():
    head, examples = ClassificationSpec(labels=AB), make_examples(0, 0, 1, 1, 0, 1)
    predictions = softmax(3 * np.array([[1.0, 0], [0.5, 0], [0.3, 0], [0, 1.0], [0, 0.2], [0, 0.6]]), -1)
    calibrated = head.fit_temperature(predictions, examples)
    assert calibrated.temperature > 1.1
    chosen = head.choose_settings(predictions, examples, DecisionOptions(True, "f1", min_confidence=0.1))
    expected = calibrated.choose_thresholds(calibrated.calibrate(predictions), examples, "f1")
    assert chosen == dataclasses.replace(expected, min_confidence=0.1)
    assert chosen.thresholds != head.choose_thresholds(predictions, examples, "f1").thresholds


def test_multi_label_models_are_calibrated():
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 2, (10_000, 2))
    examples = make_examples(*(tuple(np.flatnonzero(row)) for row in rng.random(logits.shape) < sigmoid(logits)))
    found = MultiLabelSpec(labels=AB).fit_temperature(sigmoid(logits / 2), examples)
    assert found.temperature == pytest.approx(0.5, rel=0.05)


def test_calibration_error_equals_its_definition():
    # Two of the fifteen bins meet at 2/3.
    confidences, is_right = np.array([0.95, 0.95, 0.95, 0.95, 0.66, 0.67]), np.array([1, 1, 1, 0, 0, 1])
    assert probabilities.calibration_error(confidences, is_right) == pytest.approx((0.2 * 4 + 0.66 + 0.33) / 6)
    assert probabilities.calibration_error(np.ones(3), np.ones(3)) == 0.0
    # The last bin includes 1.
    assert probabilities.calibration_error(np.array([1.0, 0.95]), np.array([0, 1])) == pytest.approx((1 - 0.05) / 2)


# The score that each measure maximizes, from the numbers of true and false positives, false and true negatives.
MEASURES = {
    "accuracy": lambda tp, fp, fn, tn: (tp + tn) / 30,
    "balanced_accuracy": lambda tp, fp, fn, tn: (tp / (tp + fn) + tn / (tn + fp)) / 2,
    "f1": lambda tp, fp, fn, tn: 2 * tp / (2 * tp + fp + fn),
    "f0.5": lambda tp, fp, fn, tn: 1.25 * tp / (1.25 * tp + fp + 0.25 * fn),
    "f2": lambda tp, fp, fn, tn: 5 * tp / (5 * tp + fp + 4 * fn),
    "precision=0.4": lambda tp, fp, fn, tn: tp / (tp + fn) if tp / max(tp + fp, 1) >= 0.4 else -1.0,
    "recall=0.7": lambda tp, fp, fn, tn: tp / max(tp + fp, 1) if tp / (tp + fn) >= 0.7 else -1.0,
}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("measure", MEASURES)
def test_no_threshold_is_better_than_the_chosen_one(measure: str, seed: int):
    rng = np.random.default_rng(seed)
    right = rng.random(30) < 0.3
    right[0] = True
    values = np.round(np.clip(rng.normal(0.3 + 0.2 * right, 0.2), 0, 1), 2)  # includes equal values

    def score(threshold: float) -> float:
        above = values > threshold
        counts = map(np.sum, (above & right, above & ~right, ~above & right, ~above & ~right))
        return MEASURES[measure](*counts)

    (chosen,) = probabilities.choose_thresholds(values[:, None], right[:, None].astype(float), ["a"], measure)
    best = max(score(threshold) for threshold in [-1.0, *np.unique(values)])  # every set that a threshold can select
    assert score(chosen) == pytest.approx(best)


def test_thresholds_at_the_edges_are_defined_or_refused():
    choose = probabilities.choose_thresholds
    rows, expected = np.array([[0.9], [0.5]]), np.array([[0.0], [1.0]])
    assert_rejected(("a", "precision=0.6", 0.5), choose, rows, expected, ["a"], "precision=0.6")
    assert choose(rows, expected, ["a"], "precision=0.5") == (0.25,)
    # Among equally good thresholds, the closest to a half: 0.15 is as accurate as 0.75.
    assert choose(np.array([[0.9], [0.6], [0.3]]), np.array([[1.0], [0.0], [1.0]]), ["a"], "accuracy") == (0.75,)
    # The only text without the label counts as much as all texts with it.
    rows, expected = np.array([[0.9], [0.8], [0.7], [0.6], [0.5]]), np.array([[1.0], [0.0], [1.0], [1.0], [1.0]])
    assert choose(rows, expected, ["a"], "balanced_accuracy") == (pytest.approx(0.85),)
    rows = np.array([[1.0, 0.0], [0.0, 0.0]])
    assert_rejected(("b", "--thresholds"), choose, rows, rows, ["a", "b"], "f1")
    assert_rejected(("thresholds", 3), ClassificationSpec(labels=ABC).choose_thresholds, [], [], "f1")
    for options in (DecisionOptions(calibrate=True), DecisionOptions(min_confidence=0.5)):
        assert_rejected(("--calibrate", "regression"), RegressionSpec().check_decision_options, options)
    for measure in ("auc", "precision", "precision=P", "precision=", "recall=0", "recall=1.1", "f1=1"):
        assert_rejected(("measure", repr(measure)), parse_measure, measure)


@pytest.mark.parametrize("rare", [0, 1])
def test_the_threshold_of_two_classes_applies_to_the_rarer_class(rare: int):
    head = ClassificationSpec(labels=AB)
    of_rare = np.array([0.1, 0.2, 0.3, 0.45, 0.4])
    predictions = np.stack([1 - of_rare, of_rare][:: 1 if rare else -1], axis=-1)
    labels = [1 - rare, 1 - rare, 1 - rare, rare, rare]
    examples = make_examples(*labels)
    before = head.scores(predictions, examples)
    assert (before["roc_auc"], before["average_precision"], before["f1_rare_class"]) == (1.0, 1.0, 0.0)
    for measure in ("f1", "f2", "balanced_accuracy", "recall=1", "precision=1"):
        chosen = head.choose_settings(predictions, examples, DecisionOptions(thresholds=measure))
        assert chosen.thresholds[rare] == pytest.approx(0.35)
        assert sum(chosen.thresholds) == 1.0
        assert chosen.predicted_labels(predictions) == labels
        assert chosen.scores(predictions, examples)["f1_rare_class"] == 1.0
    answers = chosen.named_answers(predictions, examples)
    assert answers["label"] == [head.labels[label] for label in labels]
    np.testing.assert_allclose(answers["probability"], [0.9, 0.8, 0.7, 0.45, 0.4])
    assert [outcome.certainty for outcome in chosen.outcomes(predictions, examples)] == answers["probability"]
    with_limit = dataclasses.replace(chosen, min_confidence=0.42)
    assert with_limit.named_answers(predictions, examples)["label"][3:] == [head.labels[rare], ""]


def test_each_label_has_its_own_threshold():
    examples = make_examples((0,), (0, 1), (1,), ())
    predictions = np.array([[0.9, 0.1], [0.8, 0.3], [0.7, 0.35], [0.2, 0.05]])
    head = MultiLabelSpec(labels=AB).choose_thresholds(predictions, examples, "f1")
    np.testing.assert_allclose(head.thresholds, [0.75, 0.2])
    assert head.predicted_labels(predictions) == [(0,), (0, 1), (1,), ()]
    predicted = head.named_answers(predictions, examples)["predicted"]
    assert predicted == [[True, False], [True, True], [False, True], [False, False]]
    scores = dataclasses.replace(head, thresholds=()).label_scores(predictions, examples)
    assert scores["a"] == {"precision": pytest.approx(2 / 3), "recall": 1.0, "f1": pytest.approx(0.8), "examples": 2}
    assert scores["b"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "examples": 2}
    assert head.settings == {"thresholds": list(head.thresholds)}


def test_an_answer_below_min_confidence_is_empty():
    head = ClassificationSpec(labels=AB, min_confidence=0.7)
    predictions, examples = np.array([[0.9, 0.1], [0.4, 0.6], [0.25, 0.75]]), make_examples(0, 0, 0)
    assert head.named_answers(predictions, examples)["label"] == ["a", "", "b"]
    scores = head.scores(predictions, examples)
    assert (scores["coverage"], scores["accuracy_of_answered"]) == (pytest.approx(2 / 3), 0.5)
    assert scores["accuracy"] == pytest.approx(1 / 3)  # of the most likely class, answered or not
    surest = dataclasses.replace(head, min_confidence=0.99)
    assert "accuracy_of_answered" not in (scores := surest.scores(predictions, examples))
    assert scores["coverage"] == 0.0


def test_coverage_and_accuracy_are_computed_for_each_limit():
    points = probabilities.compute_coverage(np.array([0.6, 0.9, 0.8]), np.array([0, 1, 1]))
    expected = [(limit, 1.0, 2 / 3) for limit in (0.0, 0.5, 0.6)] + [(limit, 2 / 3, 1.0) for limit in (0.7, 0.8)]
    np.testing.assert_allclose(points, [*expected, (0.9, 1 / 3, 1.0)])


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
        assert head.scores(predictions, make_examples(0)).get("coverage", 1.0) == bool(expected)


ONE, OTHER = [0.9, 0.1], [0.2, 0.8]
CLASSES, SEVERAL = ClassificationSpec(labels=AB), MultiLabelSpec(labels=AB)


@pytest.mark.parametrize(("head", "predictions", "expected"), [
    (CLASSES, [ONE] * 10, "all 10 answers are a: "), (CLASSES, [*[ONE] * 40, OTHER], None), (CLASSES, [ONE] * 9, None),
    (ClassificationSpec(labels=AB, min_confidence=0.95), [ONE, OTHER] * 20, "min_confidence"),
    (ClassificationSpec(labels=AB, min_confidence=0.85), [ONE, OTHER] * 20, None),
    (SEVERAL, [[0.1, 0.2]] * 40, "are (none): "), (SEVERAL, [[0.9, 0.7], [0.6, 0.7]] * 20, "are a, b: "),
    (SEVERAL, [ONE, OTHER] * 20, None), (RegressionSpec(), [-2.5, -2.501] * 20, "are between -2.501 and -2.5: "),
    (RegressionSpec(), [0.0] * 40, "all 40 answers are between 0 and 0: "),
    (RegressionSpec(), [1e-5, 1.1e-5] * 20, None), (RegressionSpec(), [-1e-9, 1e-9] * 20, None),
])  # fmt: skip
def test_constant_answers_are_reported(head, predictions, expected: str | None):
    found = constant_answers.describe_constant_answers(head.named_answers(np.array(predictions), []))
    assert found is None if expected is None else expected in found


@pytest.mark.parametrize(("answers", "expected"), [
    ({"tags": [["O", "O"], ["O"]] * 20, "words": [["a", "b"], ["c"]] * 20}, "all 40 answers are O: "),
    ({"tags": [[], ["O"]] * 9}, None), ({"tags": [["O", "O"], ["O", "B-PER"]] * 20}, None),
    ({"answer": [""] * 40, "start": [-1] * 40}, "all 40 answers are (no answer): "),
    ({"choice": [2] * 40}, "all 40 answers are 2: "), ({"choice": [2, 0] * 20}, None),
    ({"answer": ["1912"] * 40}, None), ({"answer": ["", *["1912"] * 40]}, None), ({"vector": [[1.0]] * 20}, None),
])  # fmt: skip
def test_constant_tags_and_constant_answers_to_questions_are_reported(answers, expected: str | None):
    found = constant_answers.describe_constant_answers(answers)
    assert found is None if expected is None else expected in found
