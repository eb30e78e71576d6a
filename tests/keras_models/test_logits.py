"""Losses and metrics that expect probabilities are rejected with the one to use; others are compiled unchanged."""

import re

import keras
import numpy as np
import pytest

import official_bert
from official_bert.keras_models.logits import check_losses, check_metrics
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.losses import TagAccuracy, TaggingLoss
from official_bert.kinds.multi_label.spec import MultiLabelSpec
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.kinds.tagging.spec import TaggingSpec
from official_bert.kinds.vectors.spec import VectorSpec
from tests.make import VOCAB, refusal, tiny_config

CONFIG = tiny_config(num_hidden_layers=1)
TEXTS, LABELS = ["the cat sat", "a dog ran in the sun", "walking", "unaffable mat"], [0, 1, 2, 3]
ONE_CLASS, SEVERAL = ClassificationSpec(labels=("0", "1")), MultiLabelSpec(labels=("0", "1"))
VALUE, TAGS = RegressionSpec(), TaggingSpec(labels=("0", "1"))


SPARSE = r"keras.losses.SparseCategoricalCrossentropy\(from_logits=True\)"
TAG_LOSS = r"keras.losses.SparseCategoricalCrossentropy\(from_logits=True, ignore_class=-1\)"


@pytest.mark.parametrize(("given", "head", "line"), [
    ("sparse_categorical_crossentropy", ONE_CLASS, SPARSE),
    ("SparseCategoricalCrossentropy", ONE_CLASS, SPARSE),
    ("crossentropy", ONE_CLASS, SPARSE),
    ("ce", SEVERAL, r"keras.losses.BinaryCrossentropy\(from_logits=True\)"),
    (keras.losses.SparseCategoricalCrossentropy, ONE_CLASS, SPARSE),
    (keras.losses.SparseCategoricalCrossentropy(), ONE_CLASS, SPARSE),
    ("bce", SEVERAL, r"keras.losses.BinaryCrossentropy\(from_logits=True\)"),
    (keras.losses.binary_crossentropy, SEVERAL, r"keras.losses.BinaryCrossentropy\(from_logits=True\)"),
    ("binary_focal_crossentropy", SEVERAL, r"keras.losses.BinaryFocalCrossentropy\(from_logits=True\)"),
    ("categorical_crossentropy", ONE_CLASS, r"keras.losses.CategoricalCrossentropy\(from_logits=True\)"),
    ("kl_divergence", SEVERAL, "compute it from the output of predict"),
    (keras.losses.KLDivergence, SEVERAL, "compute it from the output of predict"),
    (keras.losses.dice, SEVERAL, "compute it from the output of predict"),
    ("sparse_categorical_crossentropy", TAGS, TAG_LOSS),
    ("crossentropy", TAGS, TAG_LOSS),
    (keras.losses.SparseCategoricalCrossentropy(), TAGS, TAG_LOSS),
    (keras.losses.SparseCategoricalCrossentropy(from_logits=True), TAGS, TAG_LOSS),
    (keras.losses.SparseCategoricalCrossentropy(ignore_class=-1), TAGS, TAG_LOSS),
])  # fmt: skip
def test_losses_of_probabilities_are_rejected_with_the_loss_to_use(given, head, line: str):
    assert re.search(line, refusal(check_losses, {"start": given, "end": None}, head))


@pytest.mark.parametrize(("given", "line"), [
    ("auc", r"keras.metrics.AUC\(from_logits=True\)"),
    (keras.metrics.AUC, r"keras.metrics.AUC\(from_logits=True\)"),
    (keras.metrics.AUC(), r"keras.metrics.AUC\(from_logits=True\)"),
    ("sparse_categorical_crossentropy", r"keras.metrics.SparseCategoricalCrossentropy\(from_logits=True\)"),
    (keras.metrics.CategoricalCrossentropy(), r"keras.metrics.CategoricalCrossentropy\(from_logits=True\)"),
    (keras.metrics.binary_crossentropy, r"keras.metrics.BinaryCrossentropy\(from_logits=True\)"),
    (keras.metrics.Precision(), r"keras.metrics.Precision\(thresholds=0\)"),
    ("Recall", r"keras.metrics.Recall\(thresholds=0\)"),
    (keras.metrics.Recall(thresholds=[0.0, 0.7]), r"keras.metrics.Recall\(thresholds=0\)"),
    ("binary_accuracy", r"keras.metrics.BinaryAccuracy\(threshold=0\)"),
    (keras.metrics.PrecisionAtRecall(0.5), "compute it from the output of predict"),
    ("kl_divergence", "compute it from the output of predict"),
])  # fmt: skip
def test_metrics_of_probabilities_are_rejected_with_the_metric_to_use(given, line: str):
    assert re.search(line, refusal(check_metrics, [given], SEVERAL))


def test_the_suggested_loss_and_metrics_are_those_of_the_predicted_probabilities():
    model = official_bert.TextClassifier(CONFIG, VOCAB, labels=["0", "1", "2", "3"])
    probabilities = model.predict(TEXTS)
    crossentropy = keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="ce")
    model.compile(
        "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy", crossentropy]
    )
    figures = model.evaluate(TEXTS, LABELS, verbose=0, return_dict=True)
    expected = -np.log(probabilities[np.arange(4), LABELS]).mean()
    assert figures["loss"] == pytest.approx(expected, rel=1e-5)
    assert figures["ce"] == pytest.approx(expected, rel=1e-5)
    assert figures["accuracy"] == np.mean(probabilities.argmax(-1) == LABELS)


def test_losses_and_metrics_of_logits_are_unchanged():
    losses = [
        keras.losses.BinaryCrossentropy(from_logits=True),
        "mse",
        "hinge",
        lambda y, logits: logits,
        TaggingLoss(),
    ]
    assert check_losses(losses, SEVERAL) == losses
    metrics = [
        "mae", keras.metrics.Mean, keras.metrics.AUC(from_logits=True), keras.metrics.Precision(thresholds=0),
        keras.metrics.BinaryAccuracy(threshold=0.0), keras.metrics.SparseCategoricalAccuracy(),
        keras.metrics.Recall(top_k=1),
    ]  # fmt: skip
    assert check_metrics(metrics, SEVERAL) == metrics
    assert check_losses("poisson", VALUE) == "poisson"
    assert check_metrics([keras.metrics.Precision()], VALUE)  # a value is not a logit
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    assert check_losses(loss, TAGS) is loss


def test_vectors_are_compiled_without_metrics_and_reject_accuracy():
    vectors = VectorSpec()
    assert check_metrics([], vectors) == []
    message = refusal(check_metrics, ["accuracy"], vectors)
    assert "'accuracy'" in message
    assert "vectors" in message


def test_accuracy_is_that_of_the_head():
    assert check_metrics(["accuracy"], ONE_CLASS) == ["accuracy"]
    assert isinstance(check_metrics("acc", TAGS), TagAccuracy)
    metric = check_metrics("accuracy", SEVERAL)
    metric.update_state(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[0.2, -3.0], [-1.0, 0.3]]))  # 0.5 is between
    assert float(metric.result()) == 1.0


@pytest.mark.parametrize("name", [None, "auto"])
def test_the_defaults_have_the_name_that_keras_hub_gives_them(name):
    model = official_bert.TextClassifier(CONFIG, VOCAB, labels=["0", "1"])
    model.compile(name, name, name)
    assert isinstance(model.optimizer, official_bert.BertAdamW)
    assert isinstance(model.loss, keras.losses.SparseCategoricalCrossentropy)
    assert model.loss.get_config()["from_logits"]


def test_a_model_that_was_saved_with_such_a_loss_is_loaded_without_it(tmp_path, capsys):
    model = official_bert.TextClassifier(CONFIG, VOCAB, labels=["0", "1", "2", "3"])
    keras.Model.compile(model, "sgd", keras.losses.SparseCategoricalCrossentropy())
    model.save(tmp_path / "model.keras")
    loaded = official_bert.TextClassifier.load(str(tmp_path / "model.keras"))
    assert "from_logits=True" in capsys.readouterr().out
    np.testing.assert_array_equal(loaded.predict(TEXTS), model.predict(TEXTS))
