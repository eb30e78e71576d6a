"""Every Keras loss and metric has its value for labels and outputs in the form it expects, or is rejected."""

import functools
import inspect
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.special import expit as sigmoid

import official_bert
from official_bert.keras_models import fitting_model
from official_bert.keras_models.inputs import Inputs
from official_bert.keras_models.losses_and_metrics import check_losses, check_metrics
from official_bert.kinds import all_kinds, losses
from official_bert.kinds.model import create_kind_model
from tests.make import VOCAB, assert_mentions, assert_rejected, compile_eagerly, refusal
from tests.make import build_text_model as build
from tests.reference import softmax

TEXTS = ["the cat sat", "a dog ran in the sun", "walking", "unaffable mat"]
HEAD_OF = {kind: spec(labels=("0", "1")) for kind, spec in all_kinds.SPECS.items()}
ONE_CLASS, SEVERAL, VALUES, TAGS = map(HEAD_OF.get, ("classification", "multi_label", "regression", "tagging"))

ROWS = 12
Y_BY_KIND = {
    "two classes": np.eye(2)[np.arange(ROWS) % 2],
    "four classes": np.eye(4)[np.arange(ROWS) % 4],
    "several labels": (np.arange(ROWS * 3).reshape(ROWS, 3) % 5 < 2).astype(float),
    "values": 1.0 + np.arange(ROWS)[:, None] % 3,
}
HEADS = {"two classes": ONE_CLASS, "four classes": ONE_CLASS, "several labels": SEVERAL, "values": VALUES}
TRADE_OFFS = ("PrecisionAtRecall", "RecallAtPrecision", "SensitivityAtSpecificity", "SpecificityAtSensitivity")
# Metrics that read the second of two classes. With more classes, they read all decisions.
DECISIONS = {"BinaryAccuracy", "BinaryCrossentropy", "BinaryIoU", "AUC", "Precision", "Recall", *TRADE_OFFS} | {
    f"{truth}{decision}" for truth in ("True", "False") for decision in ("Positives", "Negatives")
}
# Metrics that read logits. The others read probabilities.
READ_LOGITS = {"CategoricalHinge", "Hinge", "SquaredHinge", "LogCoshError"} | {
    f"{name}Error" for name in ("MeanSquared", "MeanAbsolute", "RootMeanSquared")
}
ARGUMENTS = {
    **dict.fromkeys(TRADE_OFFS, (0.5,)),
    **dict.fromkeys(("SparseTopKCategoricalAccuracy", "TopKCategoricalAccuracy"), (2,)),
    "FBetaScore": (None, 2.0, 0.5),
}


def find_names(module) -> set[str]:
    """Returns the names of Keras' losses or metrics, without wrappers for user-defined functions."""
    return {name for name, value in vars(module).items() if inspect.isclass(value)} - {"MeanMetricWrapper"}


def create(module, name: str, classes: int = 2):
    """Returns a loss or a metric of Keras. Losses read logits."""
    kind = getattr(module, name)
    if module is keras.losses and "from_logits" in inspect.signature(kind).parameters:
        return kind(from_logits=True)
    if name.endswith("IoU") and name != "BinaryIoU":
        return kind(classes) if "Mean" in name else kind(classes, [0])
    return kind(*ARGUMENTS.get(name, ()))


share = functools.cache(create)  # losses and metrics for calls that do not change them


@functools.cache
def build_model(kind: str):
    """Returns a model with outputs of different sizes, ids of texts, and the model's outputs for them."""
    if kind == "values":
        model = build("TextRegressor")
        model.get_layer("sequence_classifier").bias.assign([3.0])  # some errors are only defined for positive values
    else:
        labels = [f"class {number}" for number in range(Y_BY_KIND[kind].shape[1])]
        model = build(labels=labels, multi_label=kind == "several labels")
    random = np.random.default_rng(5)
    for variable in model.variables:
        if variable.name in ("embeddings", "kernel"):
            variable.assign(random.standard_normal(variable.shape) * (0.3 if kind == "values" else 0.7))
    words = VOCAB.split()[5:]
    texts = [" ".join(words[number % len(words)] for number in range(row, 2 * row + 1)) for row in range(ROWS)]
    ids = {name: np.asarray(values) for name, values in model.preprocessor(texts).items()}
    return model, ids, np.asarray(model(ids)).reshape(ROWS, -1)


def make_labels(kind: str, form: str | None):
    y = Y_BY_KIND[kind]
    return y[:, 0] if kind == "values" else y.argmax(axis=1) if form == "indices" else y


@functools.cache
def compute_metric(name: str, kind: str):
    """Returns the value of a Keras metric for labels and outputs in the form that it expects."""
    y, z = Y_BY_KIND[kind], build_model(kind)[2]
    metric = create(keras.metrics, name, y.shape[1])
    outputs = z if kind == "values" or name in READ_LOGITS else sigmoid(z) if kind == "several labels" else softmax(z)
    if kind == "two classes" and name in DECISIONS:
        y, outputs = y[:, 1:], outputs[:, 1:]
    metric.update_state(y.argmax(axis=1) if name.startswith("Sparse") else y, outputs)
    return metric.result()


@pytest.mark.parametrize(("kind", "form"), [
    ("two classes", "rows"), ("four classes", "indices"), ("several labels", None), ("values", None),
])  # fmt: skip
def test_each_supported_loss_has_the_expected_value(kind: str, form: str | None, monkeypatch):
    model, ids, z = build_model(kind)
    logits = model(ids)
    monkeypatch.setattr(fitting_model, "make_forward_pass", lambda model: lambda ids, training: logits)
    for name in create_kind_model(HEADS[kind]).keras_losses:
        loss, y, outputs = create(keras.losses, name), Y_BY_KIND[kind], z
        model.compile("sgd", loss, metrics=[], run_eagerly=True)
        found = model.test_on_batch(ids, Inputs(model).convert_labels(ids, make_labels(kind, form)))
        if "from_logits" in loss.get_config():  # Expects probabilities by default.
            outputs = sigmoid(z) if name.startswith("Binary") else softmax(z)
        expected = getattr(keras.losses, name)()(y.argmax(axis=1) if name.startswith("Sparse") else y, outputs)
        assert found == pytest.approx(float(expected), rel=1e-4), name


@pytest.mark.parametrize(("kind", "loss"), [
    ("two classes", None), ("two classes", "rows"), ("four classes", None), ("several labels", None), ("values", None),
])  # fmt: skip
def test_each_supported_metric_has_the_expected_value(kind: str, loss: str | None):
    model, ids, _ = build_model(kind)
    names = create_kind_model(HEADS[kind]).keras_metrics
    metrics = {name: create(keras.metrics, name, Y_BY_KIND[kind].shape[1]) for name in names}
    for name, metric in metrics.items():
        metric.name = name
    loss_of_rows = keras.losses.CategoricalCrossentropy(from_logits=True) if loss else None
    model.compile("sgd", loss_of_rows, metrics=list(metrics.values()), run_eagerly=True)
    found = model.evaluate(ids, make_labels(kind, "rows"), verbose=0, return_dict=True)
    for name in metrics:
        np.testing.assert_allclose(found[name], compute_metric(name, kind), rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("kind", "num_losses", "num_metrics"), [
    ("classification", 12, 32), ("multi_label", 8, 22), ("regression", 7, 8), ("tagging", 1, 1), ("vectors", 5, 5),
    ("question_answering", 1, 3), ("multiple_choice", 1, 3),
])  # fmt: skip
def test_unsupported_losses_and_metrics_are_rejected_with_a_list_of_supported_ones(kind, num_losses, num_metrics):
    head = HEAD_OF[kind]
    model = create_kind_model(head)
    assert (len(model.keras_losses), len(model.keras_metrics)) == (num_losses, num_metrics)
    for module, check, fitting in (
        (keras.losses, check_losses, model.keras_losses), (keras.metrics, check_metrics, model.keras_metrics)
    ):  # fmt: skip
        for name in find_names(module) - {*fitting}:
            message = refusal(check, share(module, name), head)
            assert_mentions(message, f"{module.__name__}.{name}", *fitting)
            assert ("evaluate" in message) == head.has_own_scores


def test_settings_for_logits_have_the_values_of_settings_for_probabilities():
    kind = "two classes"
    (model, ids, z), y = build_model(kind), Y_BY_KIND[kind]
    metrics = [
        keras.metrics.AUC(from_logits=True, name="AUC"), keras.metrics.Precision(thresholds=0, name="Precision"),
        keras.metrics.BinaryAccuracy(threshold=0.0, name="BinaryAccuracy"),
        keras.metrics.BinaryCrossentropy(from_logits=True, name="BinaryCrossentropy"),
    ]  # fmt: skip
    of_classes = [keras.metrics.Recall(class_id=0, name="of 0"), keras.metrics.Recall(top_k=1, name="top")]
    compile_eagerly(model, metrics=[*metrics, *of_classes])
    found = model.evaluate(ids, make_labels(kind, "rows"), verbose=0, return_dict=True)
    for metric in metrics:
        assert found[metric.name] == pytest.approx(float(compute_metric(metric.name, kind)), rel=1e-4), metric.name
    assert found["of 0"] == pytest.approx(np.mean((softmax(z)[:, 0] > 0.5)[y[:, 0] > 0]))
    assert found["top"] == pytest.approx(np.mean(z.argmax(axis=1) == y.argmax(axis=1)))


@pytest.mark.parametrize("uses_data_set", [False, True])
def test_soft_labels_are_learned_by_a_loss_that_reads_them(uses_data_set: bool):
    model = build(labels=["bad", "good", "plain"])
    soft = np.array([[0.7, 0.2, 0.1], [0.0, 1.0, 0.0], [0.25, 0.5, 0.25], [0.1, 0.1, 0.8]], np.float32)
    data = (tf.data.Dataset.from_tensor_slices((TEXTS, soft)),) if uses_data_set else (TEXTS, soft.tolist())
    names = ("y", "[0.7, 0.2, 0.1]", "keras.losses.CategoricalCrossentropy(from_logits=True)")
    assert_rejected(names, model.evaluate, *data, verbose=0)
    compile_eagerly(model, "sgd", keras.losses.CategoricalCrossentropy(from_logits=True))
    loss, accuracy = model.evaluate(*data, verbose=0)
    predictions = model.predict(TEXTS)
    assert loss == pytest.approx(-(soft * np.log(predictions)).sum(axis=1).mean(), rel=1e-5)
    assert accuracy == pytest.approx(np.mean(predictions.argmax(1) == soft.argmax(1)))
    assert_rejected(("y[1]", "[0.3, 0.3, 0.3]", 3), model.fit, TEXTS[:2], [[1, 0, 0], [0.3] * 3])


def test_labels_of_ids_in_a_data_set_must_have_the_form_of_the_loss():
    model = build(labels=["0", "1", "2", "3"])
    focal = keras.losses.CategoricalFocalCrossentropy(from_logits=True)
    for loss, labels, expected, other in (
        (focal, [0, 1, 2, 3], "CategoricalFocalCrossentropy", "SparseCategoricalCrossentropy"),
        (None, np.eye(4), "SparseCategoricalCrossentropy", "CategoricalCrossentropy"),
    ):
        model.compile("sgd", loss, run_eagerly=True)
        # A batch with as many rows as classes.
        data = tf.data.Dataset.from_tensors((model.preprocessor(TEXTS), labels))
        for method in (model.fit, model.evaluate):
            assert_rejected((expected, f"keras.losses.{other}(from_logits=True)"), method, data, verbose=0)


def test_losses_and_metrics_are_recognized_by_name_class_and_function():
    sparse = keras.losses.SparseCategoricalCrossentropy
    line = "keras.losses.SparseCategoricalCrossentropy(from_logits=True"
    for given in ("sparse_categorical_crossentropy", "ce", sparse, keras.losses.sparse_categorical_crossentropy):
        assert_rejected(f"{line})", check_losses, {"start": given, "end": None}, ONE_CLASS)
        assert_rejected(f"{line}, ignore_class=-1)", check_losses, given, TAGS)
    for given in ("binary_crossentropy", "crossentropy"):
        assert_rejected("keras.losses.BinaryCrossentropy(from_logits=True)", check_losses, given, SEVERAL)
    assert_rejected(("SparseCategoricalCrossentropy", "regression"), check_losses, "ce", VALUES)
    assert_rejected(("label -1", "ignore_class=-1"), check_losses, sparse(from_logits=True), TAGS)
    metrics = check_metrics(["auc", "ce", "f1_score", keras.metrics.AUC, keras.metrics.kl_divergence], ONE_CLASS)
    assert re.fullmatch(r"auc ce f1_score auc(_\d+)? kl\w+", " ".join(metric.name for metric in metrics))


def test_losses_and_metrics_of_logits_are_unchanged():
    binary = keras.losses.BinaryCrossentropy(from_logits=True)
    tagging = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    for loss in (binary, "mse", "hinge", lambda y, logits: logits, losses.TaggingLoss()):
        assert check_losses(loss, SEVERAL) is loss
    assert check_losses({"value": "poisson"}, VALUES) == {"value": "poisson"}
    assert check_losses(tagging, TAGS) is tagging
    metrics = [keras.metrics.Precision(thresholds=0), keras.metrics.Precision(thresholds=[0])]
    metrics += ["mae", keras.metrics.AUC(from_logits=True), keras.metrics.BinaryAccuracy(threshold=0.0)]
    own = keras.metrics.MeanMetricWrapper(lambda y, logits: logits)
    for head, unchanged in ((SEVERAL, metrics), (ONE_CLASS, ["accuracy", own]), (VALUES, ["accuracy"])):
        assert all(check_metrics(metric, head) is metric for metric in unchanged)
    top = keras.metrics.SparseTopKCategoricalAccuracy()
    for has_one_hot, is_wrapped in ((False, False), (True, True), (None, True)):  # None: a loss of the user's own
        assert (check_metrics(top, ONE_CLASS, has_one_hot) is not top) == is_wrapped


def test_accuracy_resolves_to_the_metric_of_the_kind():
    assert isinstance(check_metrics("acc", TAGS), losses.TagAccuracy)
    metric = check_metrics("accuracy", SEVERAL)
    metric.update_state(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[0.2, -3.0], [-1.0, 0.3]]))  # 0.5 is between them
    assert float(metric.result()) == 1.0


def test_auto_selects_the_default_optimizer_loss_and_metrics():
    model = build(labels=["0", "1"])
    for name in (None, "auto"):
        model.compile(name, name, name, learning_rate=1)  # an integer is a rate as well
        assert isinstance(model.optimizer, official_bert.BertAdamW)
        assert isinstance(model.loss, keras.losses.SparseCategoricalCrossentropy)
        assert model.loss.get_config()["from_logits"]


@pytest.mark.parametrize(("metric", "first"), [
    (lambda: keras.metrics.AUC(multi_label=True, num_labels=2), 0), (keras.metrics.AUC, 1),
    (keras.metrics.CategoricalCrossentropy, 0),
])  # fmt: skip
def test_a_wrapped_metric_reads_columns_from_the_first_and_supports_sample_weight_and_reset(metric, first: int):
    z, labels, weights = np.float32([[0, 1], [2, 0], [0, 3], [1, 0]]), np.array([0, 1, 1, 0]), np.float32([1, 2, 3, 4])
    wrapped, alone = losses.MetricOfClasses(metric(), True), metric()
    wrapped.update_state(1 - labels, z)
    wrapped.reset_state()
    wrapped.update_state(labels, z, sample_weight=weights)
    alone.update_state(np.eye(2)[labels][:, first:], softmax(z)[:, first:], weights)
    assert float(wrapped.result()) == pytest.approx(float(alone.result()), rel=1e-5)
