"""Scores that evaluate adds to Keras' metrics, and character positions in the output of tag."""

import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.errors import UserError
from official_bert.inference.batch_prediction import load_model
from official_bert.inference.exports import find_newest_version, to_columns
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.question_answering import squad_scores
from official_bert.kinds.tagging import entity_scores
from official_bert.kinds.tagging.spec import Span
from tests.make import VOCAB, refusal, tiny_config

CONFIG = tiny_config(num_hidden_layers=1)
TEXTS, LABELS = ["the cat sat", "a dog", "ran in the sun", "the mat", "walking"], ["a", "b", "c", "a", "b"]


@pytest.fixture(scope="module")
def classifier() -> official_bert.TextClassifier:
    model = official_bert.TextClassifier(CONFIG, VOCAB, labels=["a", "b", "c"], seed=3)
    model.compile(run_eagerly=True)  # a graph would be slower for a few texts
    return model


@pytest.fixture(scope="module")
def tagger() -> official_bert.TokenTagger:
    model = official_bert.TokenTagger(CONFIG, VOCAB, labels=["O", "B-X", "I-X", "B-Y"], seed=1)
    model.compile(run_eagerly=True)
    return model


@pytest.mark.parametrize("version_2", [False, True])
def test_answers_to_questions_are_scored_as_by_the_command(version_2):
    answerer = official_bert.QuestionAnswerer(
        CONFIG, VOCAB, no_answer=version_2, max_query_length=8, doc_stride=8, max_answer_length=3
    )
    answerer.compile(run_eagerly=True)
    x = ["who sat", "who ran", "what"], ["the cat sat on the mat", "a dog ran", "in the sun ! the cat ."]
    y = ["the cat", None if version_2 else "dog", "the sun"]
    figures = answerer.evaluate(x, y, verbose=0, return_dict=True)
    examples = answerer.head.examples(x, y)
    texts = {question.id: each.text for question, each in zip(examples, answerer.predict(x), strict=True)}
    score, names = squad_scores.score_version_1, ("exact_match", "f1")
    if version_2:
        score, names = squad_scores.score_version_2, ("exact", "f1", "HasAns_f1", "NoAns_exact")
    expected = score(examples, texts)
    assert [figures[name] for name in names] == [expected[name] for name in names]
    assert np.isfinite(figures["loss"])
    data = tf.data.Dataset.from_tensor_slices(((list(x[0]), list(x[1])), ["the cat", "dog", "the sun"]))
    assert {"f1"} <= set(answerer.evaluate(data, verbose=0, return_dict=True))
    assert "f1" not in answerer.evaluate(x, y, batch_size=1, steps=1, verbose=0, return_dict=True)


def test_tags_are_scored_by_entities(tagger):
    x, y = ["the cat sat", "a dog ran ."], ["O B-X O", "B-Y O B-X I-X"]
    figures = tagger.evaluate(x, y, verbose=0, return_dict=True)
    predicted = [tags for tags, _ in tagger.predict(x)]
    expected = entity_scores.score([row.split() for row in y], predicted)
    names = ["precision", "recall", "f1", "X_precision", "X_recall", "X_f1", "Y_precision", "Y_recall", "Y_f1"]
    assert [figures[name] for name in names] == [expected[name] for name in names]
    assert figures["accuracy"] == pytest.approx(expected["accuracy"])
    listed = tagger.evaluate(x, y, verbose=0)
    assert listed[2:] == [expected[name] for name in names]
    classes = official_bert.TokenTagger(CONFIG, VOCAB, labels=["D", "N"])
    classes.compile(run_eagerly=True)
    assert len(classes.evaluate(["the cat"], ["D N"], verbose=0)) == 2  # Keras' accuracy is already the only score


def test_the_confusion_matrix_comes_on_request(classifier, tagger):
    figures = classifier.evaluate(TEXTS, LABELS, verbose=0, return_dict=True, confusion_matrix=True)
    matrix = figures["confusion_matrix"]
    predicted = classifier.classify(TEXTS)
    for expected in "abc":
        for label in "abc":
            assert matrix[expected][label] == list(zip(LABELS, predicted, strict=True)).count((expected, label))
    loss, accuracy = classifier.evaluate(TEXTS, LABELS, verbose=0)
    assert classifier.evaluate(TEXTS, LABELS, verbose=0, confusion_matrix=True) == [loss, accuracy, matrix]
    data = tf.data.Dataset.from_tensor_slices((TEXTS, LABELS))
    assert classifier.evaluate(data, verbose=0, confusion_matrix=True)[2] == matrix
    ids = classifier.preprocessor(TEXTS)
    for model, x, y in ((tagger, ["the cat"], ["O O"]), (classifier, ids, np.zeros(5))):
        message = refusal(model.evaluate, x, y, confusion_matrix=True)
        assert "confusion_matrix" in message


@pytest.mark.parametrize("metric", ["f1_score", keras.metrics.F1Score(), keras.metrics.FBetaScore(beta=2.0)])
def test_f1_of_classes_is_keras_own(metric, classifier):
    classifier.compile(metrics=[metric], run_eagerly=True)
    figures = classifier.evaluate(TEXTS, LABELS, verbose=0, return_dict=True)
    own = keras.metrics.FBetaScore(beta=2.0) if getattr(metric, "beta", 1.0) == 2.0 else keras.metrics.F1Score()
    own.update_state(np.eye(3)[["abc".index(label) for label in LABELS]], classifier.predict(TEXTS))
    np.testing.assert_allclose(figures[own.name], own.result(), rtol=1e-6)


def test_f1_with_a_threshold_takes_probabilities_and_is_saved(tmp_path):
    model = official_bert.TextClassifier(CONFIG, VOCAB, labels=["a", "b"], multi_label=True)
    model.get_layer("sequence_classifier").bias.assign([1.0, -1.0])
    model.compile("sgd", metrics=[keras.metrics.F1Score(average="micro", threshold=0.6)])
    labels = [["a"], ["a", "b"], [], ["a"], ["b"]]
    figures = model.evaluate(TEXTS, labels, verbose=0, return_dict=True)
    assert figures["f1_score"] == pytest.approx(2 * 3 / (5 + 5))  # "a" for every text: three of five are right
    model.save(tmp_path / "model.keras")
    loaded = official_bert.TextClassifier.load(str(tmp_path / "model.keras"))
    assert loaded.evaluate(TEXTS, labels, verbose=0, return_dict=True) == pytest.approx(figures)


def test_where_there_are_no_classes_f1_is_refused_with_what_to_take(tagger):
    with pytest.raises(UserError, match="F1Score does not fit tagging; .*evaluate returns the scores"):
        tagger.compile(metrics=[keras.metrics.F1Score()])
    message = refusal(official_bert.MaskedLM(CONFIG, VOCAB).compile, metrics=["f1_score"])
    assert "F1Score does not fit fill mask" in message


def test_tag_gives_the_characters_of_entities_without_the_punctuation_beside_them(tagger, monkeypatch):
    text = "the cat, dog sat (in the sun)."  # the cat , dog sat ( in the sun ) .
    tags = "O B-X O B-X I-X O B-Y O B-X O O".split()
    predictions = [(tags, [0.9, 0.8, 0.9, 0.7, 0.6, *[0.5] * 6])]
    asked = []

    def predicted(examples, batch_size):
        asked.extend(examples)
        return predictions

    monkeypatch.setattr(tagger, "_predictions", predicted)
    (spans,) = tagger.tag([text])
    assert asked[0].words == ("the", "cat", ",", "dog", "sat", "(", "in", "the", "sun", ")", ".")
    assert spans == [
        Span("cat", "X", 4, 7, 0.8), Span("dog sat", "X", 9, 16, 0.6), Span("in", "Y", 18, 20, 0.5),
        Span("sun", "X", 25, 28, 0.5),
    ]  # fmt: skip
    assert all(text[span.start : span.end] == span.text for span in spans)
    predictions[:] = [(["B-X", "I-X"], [0.5, 0.5])]
    assert tagger.tag([["the", "cat,"]]) == [[Span("the cat,", "X", 0, 8, 0.5)]]  # the given words are kept


def test_tags_that_are_of_no_entities_are_given_by_word():
    tagger = official_bert.TokenTagger(CONFIG, VOCAB, labels=["D", "N"])
    data = tf.data.Dataset.from_tensor_slices(["the cat.", " "])
    for x in (["the cat.", " "], data):
        spans, nothing = tagger.tag(x)
        assert [(span.text, span.start, span.end) for span in spans] == [("the", 0, 3), ("cat", 4, 7), (".", 7, 8)]
        assert all(span.label in ("D", "N") and 0.5 <= span.probability <= 1 for span in spans)
        assert nothing == []
    assert "x[1] is 3; expected a list" in refusal(tagger.tag, ["the", 3])


@pytest.mark.slow
def test_a_classifier_keeps_its_decisions_in_files_and_exports(tmp_path):
    model = official_bert.TextClassifier(CONFIG, VOCAB, labels=["a", "b"], multi_label=True)
    texts, labels = ["the cat", "a dog", "a mat", "sun"], [["a"], ["b"], ["a", "b"], []]
    temperature = model.calibrate(texts, labels)
    thresholds = model.choose_thresholds(texts, labels, "f2")
    assert list(thresholds) == ["a", "b"]
    answers = model.classify(texts)
    assert model.head.settings["temperature"] == temperature != 1.0
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.head == model.head
    assert loaded.classify(texts) == answers
    model.export(str(tmp_path / "export"))  # the export verifies itself, including decisions
    assert json.loads((tmp_path / "export/1/assets.extra/replay.json").read_text())["decisions"] == ["predicted"]
    assert "no text with the label b" in refusal(model.choose_thresholds, ["a"], [["a"]])
    assert "measure is 'auc'; expected one of f1" in refusal(model.choose_thresholds, texts, labels, "auc")


def test_a_classifier_does_not_answer_where_it_is_not_sure(tmp_path):
    model = official_bert.TextClassifier(CONFIG, VOCAB, labels=["a", "b"], min_confidence=0.99)
    assert model.classify(["the cat"]) == [None]
    assert isinstance(model.head, ClassificationSpec)
    model.min_confidence = 0.1
    assert model.classify(["the cat"])[0] in ("a", "b")
    message = refusal(official_bert.TextClassifier, CONFIG, VOCAB, labels=["a", "b"], positive_weights=[2, 1])
    assert "positive_weights" in message


def test_decisions_that_are_set_act_in_every_interface(tmp_path):
    model = official_bert.TextClassifier(CONFIG, VOCAB, labels=["a", "b"])
    before = model.predict(["the cat"])
    assert (model.temperature, model.min_confidence, model.thresholds) == (1.0, 0.0, None)
    model.temperature, model.min_confidence = 0.25, 0.999
    calibrated = model.predict(["the cat"])
    np.testing.assert_allclose(calibrated, before**4 / (before**4).sum(), rtol=1e-5)
    assert model.classify(["the cat"]) == [None]
    model.save(tmp_path / "model.keras")
    model.save_checkpoint(str(tmp_path / "folder"))
    assert official_bert.TextClassifier.load(tmp_path / "model.keras").min_confidence == 0.999
    read = official_bert.TextClassifier.from_checkpoint(str(tmp_path / "folder"))
    assert (read.temperature, read.min_confidence) == (0.25, 0.999)
    model.export(str(tmp_path / "export"), format="saved_model,onnx")
    for kind in ("saved_model", "onnx"):
        model = load_model(find_newest_version(str(tmp_path / "export" / kind)))
        assert model.run(to_columns({"text": ["the cat"]}))["label"].tolist() == [""]
    several = official_bert.TextClassifier(CONFIG, VOCAB, labels=["a", "b"], multi_label=True)
    several.thresholds = [0.0, 1.0]
    assert several.classify(["the cat"]) == [["a"]]
    several.thresholds = None
    assert several.thresholds is None


@pytest.mark.parametrize(("multi_label", "name", "value", "message"), [
    (False, "temperature", 0, "temperature is 0.0; expected a positive number"),
    (False, "temperature", None, "temperature is nan; expected a positive number"),
    (False, "min_confidence", 1.5, "min_confidence is 1.5; expected a probability"),
    (False, "thresholds", [0.5, 0.6], "thresholds is .*; expected a number for each of 2 labels, which add up to 1"),
    (True, "min_confidence", 0.5, "min_confidence is 0.5.*thresholds"),
    (True, "thresholds", [0.5, 2], "thresholds is .*; expected a list of probabilities"),
    (True, "thresholds", [0.5], "thresholds is .*; expected a number for each of 2 labels"),
])  # fmt: skip
def test_decisions_that_cannot_be_are_refused_when_they_are_given_or_set(multi_label, name, value, message):
    model = official_bert.TextClassifier(CONFIG, VOCAB, labels=["a", "b"], multi_label=multi_label)
    head = model.head
    assert re.search(message, refusal(setattr, model, name, value))
    assert model.head == head
    with pytest.raises(UserError, match=message):
        official_bert.TextClassifier(CONFIG, VOCAB, labels=["a", "b"], multi_label=multi_label, **{name: value})
