"""Scores of evaluate beyond Keras' metrics, decisions of classifiers, and characters in the output of tag."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.finetuning import batches
from official_bert.kinds.question_answering import squad_scores
from official_bert.kinds.tagging import entity_scores
from official_bert.kinds.tagging.spec import Span
from tests.make import assert_rejected, build_text_model, compile_eagerly, tiny_config

TEXTS, LABELS = ["the cat sat", "a dog", "ran in the sun", "the mat", "walking"], ["a", "b", "c", "a", "b"]
slices = tf.data.Dataset.from_tensor_slices


def build(name: str, **settings):
    return compile_eagerly(build_text_model(name, **settings))


share = functools.cache(build)  # models for calls that change nothing


@pytest.fixture(scope="module")
def tagger() -> official_bert.TokenTagger:
    return build("TokenTagger", labels=["O", "B-X", "I-X", "B-Y"], seed=1)


@pytest.mark.parametrize(("no_answer", "score", "names"), [
    (False, squad_scores.score_version_1, ("exact_match", "f1")),
    (True, squad_scores.score_version_2, ("exact", "f1", "HasAns_f1", "NoAns_exact")),
])  # fmt: skip
def test_answers_to_questions_are_scored_as_by_the_command(no_answer: bool, score, names):
    settings = {"no_answer": no_answer, "max_query_length": 8, "doc_stride": 8, "max_answer_length": 1, "seed": 3}
    answerer = build("QuestionAnswerer", **settings)
    x = ["who sat", "who ran", "what"], ["the cat sat on the mat", "a dog ran", "in the sun ! the cat ."]
    y = ["the cat", None if no_answer else "dog", "the sun"]
    figures, examples = answerer.evaluate(x, y, verbose=0, return_dict=True), answerer.spec.make_examples(x, y)
    texts = {question.id: each.text for question, each in zip(examples, answerer.predict(x), strict=True)}
    assert all(len(text.split()) <= 1 for text in texts.values())
    expected = score(examples, texts)
    assert {name: figures[name] for name in names} == {name: expected[name] for name in names}
    assert np.isfinite(figures["loss"])
    assert answerer.answer(x[0][0], x[1][0]).text == texts[examples[0].id]
    assert "f1" in answerer.evaluate(slices((x, ["the cat", "dog", "the sun"])), verbose=0, return_dict=True)
    assert "f1" not in answerer.evaluate(x, y, batch_size=1, steps=1, verbose=0, return_dict=True)


def test_tags_are_scored_by_entities(tagger):
    x, y = ["the cat sat", "a dog ran ."], ["O B-X O", "B-Y O B-X I-X"]
    figures = tagger.evaluate(x, y, verbose=0, return_dict=True)
    expected = entity_scores.score([row.split() for row in y], [tags for tags, _ in tagger.predict(x)])
    names = ["precision", "recall", "f1", "X_precision", "X_recall", "X_f1", "Y_precision", "Y_recall", "Y_f1"]
    assert {**figures, "loss": 0.0} == pytest.approx({**expected, "loss": 0.0})
    assert tagger.evaluate(x, y, verbose=0)[2:] == [expected[name] for name in names]
    classes = build("TokenTagger", labels=["D", "N"])
    assert len(classes.evaluate(["the cat"], ["D N"], verbose=0)) == 2  # Keras' accuracy is already the only score


def test_the_confusion_matrix_comes_on_request(tagger):
    classifier = build("TextClassifier", labels=["a", "b", "c"], seed=3)
    matrix = classifier.evaluate(TEXTS, LABELS, verbose=0, return_dict=True, confusion_matrix=True)["confusion_matrix"]
    outcomes = list(zip(LABELS, classifier.classify(TEXTS), strict=True))
    assert matrix == {right: {label: outcomes.count((right, label)) for label in "abc"} for right in "abc"}
    loss, accuracy = classifier.evaluate(TEXTS, LABELS, verbose=0)
    assert classifier.evaluate(TEXTS, LABELS, verbose=0, confusion_matrix=True) == [loss, accuracy, matrix]
    assert classifier.evaluate(slices((TEXTS, LABELS)), verbose=0, confusion_matrix=True)[2] == matrix
    ids = classifier.preprocessor(TEXTS)
    for model, x, y in ((tagger, ["the cat"], ["O O"]), (classifier, ids, np.zeros(5))):
        assert_rejected("confusion_matrix=True", model.evaluate, x, y, confusion_matrix=True)


@pytest.mark.parametrize("settings", [{}, {"gradient_accumulation_steps": 2}])
def test_metrics_of_texts_in_windows_use_the_mean_logits(settings):
    texts, weights = ["the cat " * 12, "a dog", "the sun", "a mat"], [1.0, 1.0, 1.0, 3.0]
    model = build("TextClassifier", labels=["a", "b"], max_seq_length=8, doc_stride=4, **settings)
    compile_eagerly(model, keras.optimizers.SGD(0.0))
    predictions = model.predict(texts)
    chosen = predictions.argmax(1)
    labels = [chosen[0], *(1 - chosen[1:])]  # only the long text is right
    losses, data = -np.log(predictions[range(4), labels]), slices((texts, labels)).batch(3)
    expected = pytest.approx({"accuracy": 0.25, "loss": losses.mean()}, rel=1e-4)
    assert model.evaluate(texts, labels, verbose=0, return_dict=True) == expected
    assert model.evaluate(data, verbose=0, return_dict=True) == expected
    for arguments in ((texts, labels, 3, 0, weights), (slices((texts, labels, weights)).batch(3), None, None, 0)):
        weighted = model.evaluate(*arguments)
        assert weighted == pytest.approx([(losses * weights).mean(), 0.25], rel=1e-4)
    for validation in ((texts, labels), data):
        history = model.fit(texts, labels, validation_data=validation, verbose=0).history
        assert {name: history[f"val_{name}"][0] for name in ("accuracy", "loss")} == expected
    history = model.fit(texts, labels, validation_data=(texts, labels), validation_steps=1, verbose=0).history
    assert history["val_accuracy"][0] > 0.5  # Every window counts.


def test_f1_with_a_threshold_takes_probabilities_and_is_saved(tmp_path):
    model = build("TextClassifier", multi_label=True)
    model.get_layer("sequence_classifier").bias.assign([1.0, -1.0])
    compile_eagerly(model, metrics=[keras.metrics.F1Score(average="micro", threshold=0.6)])
    labels = [["a"], ["a", "b"], [], ["a"], ["b"]]
    figures = model.evaluate(TEXTS, labels, verbose=0, return_dict=True)
    assert figures["f1_score"] == pytest.approx(2 * 3 / (5 + 5))  # "a" for every text: three of five are right
    model.save(tmp_path / "model.keras")
    loaded = official_bert.TextClassifier.load(str(tmp_path / "model.keras"))
    assert loaded.evaluate(TEXTS, labels, verbose=0, return_dict=True) == pytest.approx(figures)


def test_tag_returns_entities_without_adjacent_punctuation(tagger, monkeypatch):
    text = "the cat, dog sat (in the sun)."  # the cat , dog sat ( in the sun ) .
    answers = [("O B-X O B-X I-X O B-Y O B-X O O".split(), [0.9, 0.8, 0.9, 0.7, 0.6, *[0.5] * 6])]
    asked = []
    monkeypatch.setattr(tagger, "_predictions", lambda *arguments: asked.extend(arguments) or answers)
    (spans,) = tagger.tag([text], 5)
    assert asked[1] == 5
    assert asked[0][0].words == ("the", "cat", ",", "dog", "sat", "(", "in", "the", "sun", ")", ".")
    assert spans == [
        Span("cat", "X", 4, 7, 0.8), Span("dog sat", "X", 9, 16, 0.6), Span("in", "Y", 18, 20, 0.5),
        Span("sun", "X", 25, 28, 0.5),
    ]  # fmt: skip
    answers[:] = [(["B-X", "I-X"], [0.5, 0.5])]
    assert tagger.tag([["the", "cat,"]]) == [[Span("the cat,", "X", 0, 8, 0.5)]]  # the given words are kept


def test_tag_returns_single_words_for_tags_that_are_not_entities():
    tagger, texts = build("TokenTagger", labels=["D", "N"]), ["the cat.", " "]
    for x in (texts, slices(texts)):
        spans, nothing = tagger.tag(x)
        assert [(span.text, span.start, span.end) for span in spans] == [("the", 0, 3), ("cat", 4, 7), (".", 7, 8)]
        assert all(span.label in ("D", "N") and 0.5 <= span.probability <= 1 for span in spans)
        assert nothing == []
    assert_rejected(("x[1]", 3), tagger.tag, ["the", 3])


def test_temperature_and_thresholds_are_fitted_to_labelled_texts():
    model = build("TextClassifier", multi_label=True)
    texts, labels = ["the cat", "a dog", "a mat", "sun"], [["a"], ["b"], ["a", "b"], []]
    temperature, thresholds = model.calibrate(texts, labels), model.choose_thresholds(texts, labels, "f2")
    assert model.temperature == temperature != 1.0
    assert model.calibrate(texts, labels) == temperature  # starts from the uncalibrated predictions again
    assert thresholds == dict(zip("ab", model.thresholds, strict=True)) != {"a": 0.5, "b": 0.5}
    assert_rejected(("b", "--thresholds"), model.choose_thresholds, ["a"], [["a"]])
    assert_rejected(("measure", "'auc'"), model.choose_thresholds, texts, labels, "auc")


def test_a_note_reports_that_metrics_ignore_decision_settings(capsys):
    expected = build("TextClassifier").evaluate(TEXTS[:2], [*"ab"], verbose=0)
    for settings in ({}, {"temperature": 2.0}, {"thresholds": [0.9, 0.1]}):
        for verbose in (0, 2):
            assert build("TextClassifier", **settings).evaluate(TEXTS[:2], [*"ab"], verbose=verbose) == expected
            told = capsys.readouterr().out
            assert told.count("temperature and thresholds") == bool(settings and verbose)


def test_temperature_and_min_confidence_set_by_hand_take_effect_and_are_saved(tmp_path):
    model = build("TextClassifier")
    before = model.predict(["the cat"])
    assert model.classify(["the cat"]) == ["ab"[before.argmax()]]
    assert (model.temperature, model.min_confidence, model.thresholds) == (1.0, 0.0, None)
    model.temperature, model.min_confidence = 0.25, 0.999
    np.testing.assert_allclose(model.predict(["the cat"]), before**4 / (before**4).sum(), rtol=1e-5)
    assert model.classify(["the cat"]) == [None]
    model.save(tmp_path / "model.keras")
    model.save_checkpoint(str(tmp_path / "folder"))
    loaded = official_bert.TextClassifier.load(tmp_path / "model.keras")
    for read in (loaded, official_bert.TextClassifier.from_checkpoint(str(tmp_path / "folder"))):
        assert (read.temperature, read.min_confidence) == (0.25, 0.999)
    several = build("TextClassifier", multi_label=True, thresholds=[0.0, 1.0])
    assert several.classify(["the cat"]) == [["a"]]
    several.thresholds = None
    assert several.thresholds is None


@pytest.mark.parametrize(("multi_label", "name", "value", "names"), [
    (False, "temperature", 0, [0.0]), (False, "temperature", None, ["nan"]), (False, "min_confidence", 1.5, [1.5]),
    (False, "thresholds", [0.5, 0.6], ["[0.5, 0.6]", 2, 1]), (True, "min_confidence", 0.5, [0.5, "thresholds"]),
    (True, "thresholds", [0.5, 2], ["[0.5, 2.0]", "probabilities"]), (True, "thresholds", [0.5], ["[0.5]", 2]),
])  # fmt: skip
def test_invalid_decision_settings_are_rejected(multi_label, name, value, names):
    model = share("TextClassifier", multi_label=multi_label)
    head = model.spec
    assert_rejected((name, *names), setattr, model, name, value)
    assert model.spec == head
    assert_rejected((name, *names), build, "TextClassifier", multi_label=multi_label, **{name: value})
    names = ("positive_weights", "[2, 1]", "multi_label=True")
    assert_rejected(names, build, "TextClassifier", positive_weights=[2, 1])


def token_losses(model, sentences, tags):
    """Returns the loss of each word, by sentence."""
    losses = []
    for sentence, row in zip(sentences, tags, strict=True):
        log = keras.ops.log_softmax(model(model.preprocessor([sentence])))[0, 1 : 1 + len(row.split())].numpy()
        losses.append(-log[np.arange(len(log)), ["DNV".index(tag) for tag in row.split()]])
    return losses


def test_the_weight_of_a_sentence_applies_to_its_words():
    tagger = build("TokenTagger", labels=["D", "N", "V"], max_seq_length=8)
    for copies in (2, 3):  # batches with fewer sentences than positions, and with as many
        sentences, tags, weights = ["the cat sat", "a dog"] * copies, ["D N V", "D N"] * copies, [3.0, 0.5] * copies
        losses = token_losses(tagger, sentences[:2], tags[:2]) * copies
        expected = sum(weight * each.sum() for weight, each in zip(weights, losses, strict=True)) / (5 * copies)
        features = tagger.spec.featurize(tagger.spec.make_examples(sentences, tags), tagger._tokenizer, 8)
        ids, targets = batches.pad_batch(features, np.arange(2 * copies), 8)
        assert ids["input_ids"].shape == (2 * copies, 6)
        for x, y in ((sentences, tags), (ids, targets)):
            loss, *_ = tagger.evaluate(x, y, sample_weight=np.array(weights), verbose=0)
            assert loss == pytest.approx(expected, rel=1e-5)


def test_the_masked_lm_loss_does_not_depend_on_the_other_texts_of_a_batch():
    config = tiny_config(num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = compile_eagerly(build_text_model("MaskedLM", config, masked_lm_prob=0.4), keras.optimizers.SGD(0.0))
    texts = ["the cat sat on the mat in the sun", "a dog", "ran", "the mat"]
    expected = model.evaluate(texts, batch_size=4, verbose=0)[0]  # one batch: the mean of its tokens
    # The weights do not change, and the first epoch masks the same tokens as the evaluation.
    history = model.fit(texts, batch_size=3, validation_data=texts, verbose=0).history
    assert [history["loss"], history["val_loss"]] == [pytest.approx([expected], rel=1e-5)] * 2
