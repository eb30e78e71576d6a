import dataclasses

import numpy as np
import pytest
from scipy.special import expit as sigmoid

from official_bert.kinds import probabilities
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.multi_label.spec import MultiLabelSpec
from official_bert.kinds.names import parse_measure
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.kinds.spec import DecisionOptions
from official_bert.kinds.text_spec import TextExample
from tests.make import assert_rejected


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def labelled(*labels) -> list[TextExample]:
    return [TextExample("", "", None, label) for label in labels]


def test_probabilities_are_rescaled_as_if_their_logits_were_divided():
    logits = np.random.default_rng(0).normal(0, 3, (50, 4))
    np.testing.assert_allclose(probabilities.rescale_softmax(softmax(logits), 2.5), softmax(logits / 2.5), rtol=1e-6)
    np.testing.assert_allclose(probabilities.rescale_sigmoid(sigmoid(logits), 2.5), sigmoid(logits / 2.5), rtol=1e-6)


def test_fit_temperature_recovers_a_known_temperature():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (20_000, 3))
    # Calibrated: as often right as the probabilities claim.
    labels = (softmax(logits).cumsum(axis=-1) < rng.random((20_000, 1))).sum(axis=-1)
    examples, too_sure = labelled(*labels.tolist()), softmax(logits * 3)
    calibrated = ClassificationSpec(labels=("a", "b", "c")).fit_temperature(too_sure, examples)
    assert calibrated.temperature == pytest.approx(3, rel=0.05)
    rescaled = calibrated.calibrate(too_sure)
    np.testing.assert_allclose(rescaled, softmax(logits), atol=0.02)
    figures = calibrated.calibration_report(rescaled, examples)
    assert figures["before"] > 0.1 > 0.02 > figures["after"]
    (_, _, accuracy_of_all), *_, (_, _, accuracy_of_surest) = figures["coverage"]
    assert accuracy_of_all == np.mean(np.argmax(rescaled, axis=-1) == labels) < accuracy_of_surest
    again = calibrated.fit_temperature(rescaled, examples)
    assert again.temperature == pytest.approx(calibrated.temperature, rel=0.01)


def test_a_report_compares_the_error_with_and_without_the_temperature():
    raw, examples = np.array([[0.9, 0.1]]), labelled(1)
    head = ClassificationSpec(labels=("a", "b"), temperature=2.0)
    figures = head.calibration_report(head.calibrate(raw), examples)  # odds of 9 and 3
    assert (figures["temperature"], figures["before"], figures["after"]) == pytest.approx((2.0, 0.9, 0.75))
    several = MultiLabelSpec(labels=("a", "b"), temperature=0.5)
    assert several.settings == {"temperature": 0.5}
    figures = several.calibration_report(several.calibrate(raw), labelled((0,)))
    assert (figures["before"], figures["after"]) == pytest.approx((0.1, 1 / 82))
    assert figures["coverage"] == []  # such a model cannot abstain


def test_thresholds_are_chosen_on_calibrated_probabilities():
    head, examples = ClassificationSpec(labels=("a", "b")), labelled(0, 0, 1, 1, 0, 1)
    predictions = softmax(3 * np.array([[1.0, 0], [0.5, 0], [0.3, 0], [0, 1.0], [0, 0.2], [0, 0.6]]))
    calibrated = head.fit_temperature(predictions, examples)
    assert calibrated.temperature > 1.1
    chosen = head.choose_settings(predictions, examples, DecisionOptions(True, "f1", min_confidence=0.1))
    expected = calibrated.choose_thresholds(calibrated.calibrate(predictions), examples, "f1")
    assert chosen == dataclasses.replace(expected, min_confidence=0.1)
    assert chosen.thresholds != head.choose_thresholds(predictions, examples, "f1").thresholds


def test_multi_label_models_are_calibrated():
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 2, (10_000, 2))
    examples = labelled(*(tuple(np.flatnonzero(row)) for row in rng.random(logits.shape) < sigmoid(logits)))
    found = MultiLabelSpec(labels=("a", "b")).fit_temperature(sigmoid(logits / 2), examples)
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
    assert_rejected(("thresholds", 3), ClassificationSpec(labels=("a", "b", "c")).choose_thresholds, [], [], "f1")
    for options in (DecisionOptions(calibrate=True), DecisionOptions(min_confidence=0.5)):
        assert_rejected(("--calibrate", "regression"), RegressionSpec().check_decision_options, options)
    for measure in ("auc", "precision", "precision=P", "precision=", "recall=0", "recall=1.1", "f1=1"):
        assert_rejected(("measure", repr(measure)), parse_measure, measure)


@pytest.mark.parametrize("rare", [0, 1])
def test_the_threshold_of_two_classes_applies_to_the_rarer_class(rare: int):
    head = ClassificationSpec(labels=("a", "b"))
    of_rare = np.array([0.1, 0.2, 0.3, 0.45, 0.4])
    predictions = np.stack([1 - of_rare, of_rare][:: 1 if rare else -1], axis=-1)
    labels = [1 - rare, 1 - rare, 1 - rare, rare, rare]
    examples = labelled(*labels)
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
    examples = labelled((0,), (0, 1), (1,), ())
    predictions = np.array([[0.9, 0.1], [0.8, 0.3], [0.7, 0.35], [0.2, 0.05]])
    head = MultiLabelSpec(labels=("a", "b")).choose_thresholds(predictions, examples, "f1")
    np.testing.assert_allclose(head.thresholds, [0.75, 0.2])
    assert head.predicted_labels(predictions) == [(0,), (0, 1), (1,), ()]
    predicted = head.named_answers(predictions, examples)["predicted"]
    assert predicted == [[True, False], [True, True], [False, True], [False, False]]
    scores = dataclasses.replace(head, thresholds=()).label_scores(predictions, examples)
    assert scores["a"] == {"precision": pytest.approx(2 / 3), "recall": 1.0, "f1": pytest.approx(0.8), "examples": 2}
    assert scores["b"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "examples": 2}
    assert head.settings == {"thresholds": list(head.thresholds)}


def test_an_answer_below_min_confidence_is_empty():
    head = ClassificationSpec(labels=("a", "b"), min_confidence=0.7)
    predictions, examples = np.array([[0.9, 0.1], [0.4, 0.6], [0.25, 0.75]]), labelled(0, 0, 0)
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
