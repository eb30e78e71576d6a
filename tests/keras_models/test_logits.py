"""Keras' losses and metrics: names are made for logits, and what takes logits for probabilities is refused."""

import re

import keras
import numpy as np
import pytest

import official_bert
from official_bert.errors import UserError
from official_bert.keras_models.logits import losses_of_logits, metrics_of_logits
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.losses import TaggingLoss
from official_bert.kinds.metrics import TagAccuracy
from official_bert.kinds.multi_label.spec import MultiLabelSpec
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.kinds.tagging.spec import TaggingSpec
from tests.make import VOCAB, refusal, tiny_config

CONFIG = tiny_config(num_hidden_layers=1)
TEXTS, LABELS = ["the cat sat", "a dog ran in the sun", "walking", "unaffable mat"], [0, 1, 2, 3]
ONE_CLASS, SEVERAL = ClassificationSpec(labels=("0", "1")), MultiLabelSpec(labels=("0", "1"))
VALUE, TAGS = RegressionSpec(), TaggingSpec(labels=("0", "1"))


def test_the_loss_of_every_tutorial_is_the_loss_of_logits():
    model = official_bert.TextClassifier(CONFIG, VOCAB, labels=["0", "1", "2", "3"])
    probabilities = model.predict(TEXTS)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy", "sparse_categorical_crossentropy"])
    scores = model.evaluate(TEXTS, LABELS, verbose=0, return_dict=True)
    expected = -np.log(probabilities[np.arange(4), LABELS]).mean()
    assert scores["loss"] == pytest.approx(expected, rel=1e-5)
    assert scores["sparse_categorical_crossentropy"] == pytest.approx(expected, rel=1e-5)
    assert scores["accuracy"] == np.mean(probabilities.argmax(-1) == LABELS)


@pytest.mark.parametrize(
    "name", ["sparse_categorical_crossentropy", "SparseCategoricalCrossentropy", "crossentropy", "ce"]
)
def test_a_loss_that_is_named_is_made_for_logits(name: str):
    loss = losses_of_logits({"start": name, "end": None}, ONE_CLASS)
    assert isinstance(loss["start"], keras.losses.SparseCategoricalCrossentropy)
    assert loss["start"].from_logits
    assert loss["end"] is None
    assert isinstance(losses_of_logits(name, TAGS), TaggingLoss)  # padding has no tag


def test_a_class_in_place_of_a_loss_or_metric_is_made_for_logits():
    loss = losses_of_logits(keras.losses.SparseCategoricalCrossentropy, ONE_CLASS)
    assert loss.from_logits
    assert isinstance(losses_of_logits(keras.losses.SparseCategoricalCrossentropy, TAGS), TaggingLoss)
    auc, recall, mean = metrics_of_logits([keras.metrics.AUC, keras.metrics.Recall, keras.metrics.Mean], SEVERAL)
    assert (auc._from_logits, recall.thresholds, mean) == (True, [0], keras.metrics.Mean)
    assert "compute it from what predict returns" in refusal(losses_of_logits, keras.losses.KLDivergence, SEVERAL)


@pytest.mark.parametrize("name", ["bce", "binary_focal_crossentropy", "categorical_crossentropy"])
def test_other_names_are_too(name: str):
    assert losses_of_logits(name, SEVERAL).from_logits
    assert metrics_of_logits(["bce"], SEVERAL)[0].get_config()["from_logits"]


def test_what_takes_logits_stays_as_it_is():
    losses = [
        keras.losses.BinaryCrossentropy(from_logits=True),
        "mse",
        "hinge",
        lambda y, logits: logits,
        TaggingLoss(),
    ]
    assert losses_of_logits(losses, SEVERAL) == losses
    metrics = [
        "mae", keras.metrics.AUC(from_logits=True), keras.metrics.Precision(thresholds=0),
        keras.metrics.BinaryAccuracy(threshold=0.0), keras.metrics.SparseCategoricalAccuracy(),
        keras.metrics.Recall(top_k=1),
    ]  # fmt: skip
    assert metrics_of_logits(metrics, SEVERAL) == metrics
    assert metrics_of_logits(["accuracy"], ONE_CLASS) == ["accuracy"]
    assert losses_of_logits("poisson", VALUE) == "poisson"
    assert metrics_of_logits([keras.metrics.Precision()], VALUE)  # values are what they are


def test_metrics_that_are_named_are_made_for_logits():
    y, logits = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[0.2, -3.0], [-1.0, 0.3]])  # 0.5 is between
    metrics = metrics_of_logits(["accuracy", "binary_accuracy", "Precision", "recall", "auc"], SEVERAL)
    for metric in metrics:
        metric.update_state(y, logits)
        assert float(metric.result()) == pytest.approx(1.0), metric.name
    assert [metric.name for metric in metrics] == ["accuracy", "binary_accuracy", "Precision", "recall", "auc"]
    assert isinstance(metrics_of_logits("acc", TAGS), TagAccuracy)


@pytest.mark.parametrize(("given", "line"), [
    (keras.losses.SparseCategoricalCrossentropy(), r"keras.losses.SparseCategoricalCrossentropy\(from_logits=True\)"),
    (keras.losses.binary_crossentropy, r"keras.losses.BinaryCrossentropy\(from_logits=True\)"),
    (keras.losses.KLDivergence(), "compute it from what predict returns"),
    ("kl_divergence", "compute it from what predict returns"),
    (keras.losses.dice, "compute it from what predict returns"),
])  # fmt: skip
def test_losses_of_probabilities_are_refused_with_the_line_to_write(given, line: str):
    assert re.search(line, refusal(losses_of_logits, given, SEVERAL))


def test_a_loss_of_tags_that_reads_padding_is_refused():
    line = r"keras.losses.SparseCategoricalCrossentropy\(from_logits=True, ignore_class=-1\)"
    for from_logits in (False, True):
        with pytest.raises(UserError, match=line):
            losses_of_logits(keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits), TAGS)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    assert losses_of_logits(loss, TAGS) is loss


@pytest.mark.parametrize(("given", "line"), [
    (keras.metrics.AUC(), r"keras.metrics.AUC\(from_logits=True\)"),
    (keras.metrics.CategoricalCrossentropy(), r"keras.metrics.CategoricalCrossentropy\(from_logits=True\)"),
    (keras.metrics.binary_crossentropy, r"keras.metrics.BinaryCrossentropy\(from_logits=True\)"),
    (keras.metrics.Precision(), r"keras.metrics.Precision\(thresholds=0\)"),
    (keras.metrics.Recall(thresholds=[0.0, 0.7]), r"keras.metrics.Recall\(thresholds=0\)"),
    (keras.metrics.BinaryAccuracy(), r"keras.metrics.BinaryAccuracy\(threshold=0\)"),
    (keras.metrics.PrecisionAtRecall(0.5), "compute it from what predict returns"),
    ("kl_divergence", "compute it from what predict returns"),
])  # fmt: skip
def test_metrics_of_probabilities_are_refused_with_the_line_to_write(given, line: str):
    assert re.search(line, refusal(metrics_of_logits, [given], SEVERAL))


def test_a_model_that_was_saved_with_such_a_loss_is_loaded_without_it(tmp_path, capsys):
    model = official_bert.TextClassifier(CONFIG, VOCAB, labels=["0", "1", "2", "3"])
    keras.Model.compile(model, "sgd", keras.losses.SparseCategoricalCrossentropy())
    model.save(tmp_path / "model.keras")
    loaded = official_bert.TextClassifier.load(str(tmp_path / "model.keras"))
    assert "from_logits=True" in capsys.readouterr().out
    np.testing.assert_array_equal(loaded.predict(TEXTS), model.predict(TEXTS))
