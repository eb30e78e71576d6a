"""Every Keras loss and metric has the value that NumPy computes, or is rejected with a list of alternatives."""

import inspect
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.keras_models.losses_and_metrics import check_losses, check_metrics
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.losses import MetricOfClasses, TagAccuracy, TaggingLoss
from official_bert.kinds.multi_label.spec import MultiLabelSpec
from official_bert.kinds.multiple_choice.spec import MultipleChoiceSpec
from official_bert.kinds.question_answering.spec import QuestionAnsweringSpec
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.kinds.tagging.spec import TaggingSpec
from official_bert.kinds.vectors.spec import VectorSpec
from tests.make import VOCAB, refusal, tiny_config

CONFIG = tiny_config(num_hidden_layers=1)
TEXTS, LABELS = ["the cat sat", "a dog ran in the sun", "walking", "unaffable mat"], [0, 1, 2, 3]
ONE_CLASS, SEVERAL = ClassificationSpec(labels=("0", "1")), MultiLabelSpec(labels=("0", "1"))
VALUE, TAGS = RegressionSpec(), TaggingSpec(labels=("0", "1"))

ROWS, EPSILON = 12, 1e-7
Y_BY_KIND = {
    "two classes": np.eye(2)[np.arange(ROWS) % 2],
    "four classes": np.eye(4)[np.arange(ROWS) % 4],
    "several labels": (np.arange(ROWS * 3).reshape(ROWS, 3) % 5 < 2).astype(float),
    "values": 1.0 + np.arange(ROWS)[:, None] % 3,
}
HEADS = {"two classes": ONE_CLASS, "four classes": ONE_CLASS, "several labels": SEVERAL, "values": VALUE}
CLASSES = ("two classes", "four classes")  # Kinds whose labels are class indices or one-hot rows.


class Values:
    """Inputs of the losses and metrics of a batch: labels y and outputs z, [rows, classes or 1]."""

    def __init__(self, kind: str, z: np.ndarray) -> None:
        self.kind, self.y, self.z = kind, Y_BY_KIND[kind], z
        self.softmax = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        self.p = 1 / (1 + np.exp(-z)) if kind == "several labels" else self.softmax
        # Binary metrics read the second of two classes. With more classes, they read all decisions.
        columns = slice(1, None) if kind == "two classes" else slice(None)
        self.truth, self.scores = self.y[:, columns].ravel() > 0, self.p[:, columns].ravel()

    def count(self, truth: bool, predicted: bool, threshold: float | np.ndarray = 0.5) -> np.ndarray:
        """Counts the decisions with this truth and prediction, at one threshold or at each of several."""
        above = self.scores > np.reshape(threshold, (-1, 1))
        return np.squeeze(((self.truth == truth) & (above == predicted)).sum(axis=1).astype(float))

    @property
    def curve(self) -> dict[str, np.ndarray]:
        """Returns the rates at the 200 thresholds that Keras uses."""
        thresholds = np.array([-EPSILON, *(np.arange(1, 199) / 199), 1 + EPSILON])
        counts = {(truth, above): self.count(truth, above, thresholds) for truth in (0, 1) for above in (0, 1)}
        return {
            "precision": counts[1, 1] / np.maximum(counts[1, 1] + counts[0, 1], EPSILON),
            "recall": counts[1, 1] / (counts[1, 1] + counts[1, 0]),
            "specificity": counts[0, 0] / (counts[0, 0] + counts[0, 1]),
        }

    def best(self, name: str, other: str, least: float = 0.5) -> float:
        return float(self.curve[name][self.curve[other] >= least].max())

    def f_score(self, beta: float, is_predicted: np.ndarray) -> np.ndarray:
        right = (is_predicted * self.y).sum(axis=0)
        return (1 + beta**2) * right / (beta**2 * self.y.sum(axis=0) + is_predicted.sum(axis=0) + EPSILON)

    @property
    def is_greatest(self) -> np.ndarray:
        return self.z == self.z.max(axis=1, keepdims=True)

    @property
    def iou(self) -> np.ndarray:
        """Returns the intersection over union of each class."""
        both, either = (self.is_greatest * self.y).sum(axis=0), np.maximum(self.is_greatest, self.y).sum(axis=0)
        return both / either


def softplus(z):
    return np.logaddexp(0, z)


def binary_crossentropy(v: Values) -> np.ndarray:
    return softplus(v.z) - v.y * v.z


def binary_focal(v: Values) -> np.ndarray:
    probability = 1 / (1 + np.exp(-v.z))
    return (1 - np.where(v.y > 0, probability, 1 - probability)) ** 2 * binary_crossentropy(v)


def huber(v: Values) -> np.ndarray:
    error = np.abs(v.y - v.z)
    return np.where(error <= 1, error**2 / 2, error - 0.5)


def mean_of_rows(values: np.ndarray) -> float:
    return float(values.sum(axis=1).mean())


ERROR_VALUES = {
    "MeanSquaredError": lambda v: (v.y - v.z) ** 2,
    "MeanAbsoluteError": lambda v: np.abs(v.y - v.z),
}
LOG_COSH = {"LogCosh": lambda v: np.log(np.cosh(v.z - v.y))}
HINGES = {
    "Hinge": lambda v: np.maximum(1 - (2 * v.y - 1) * v.z, 0),
    "SquaredHinge": lambda v: np.maximum(1 - (2 * v.y - 1) * v.z, 0) ** 2,
}
BINARY_LOSSES = {
    "BinaryCrossentropy": binary_crossentropy,
    "BinaryFocalCrossentropy": binary_focal,
    "Huber": huber,
    **LOG_COSH,
    **ERROR_VALUES,
    **HINGES,
}
CATEGORICAL_VALUES = {
    "SparseCategoricalCrossentropy": lambda v: mean_of_rows(-v.y * np.log(v.softmax)),
    "CategoricalCrossentropy": lambda v: mean_of_rows(-v.y * np.log(v.softmax)),
    "CategoricalHinge": lambda v: np.maximum(((1 - v.y) * v.z).max(axis=1) - (v.y * v.z).sum(axis=1) + 1, 0),
}
CLASS_LOSSES = {
    **BINARY_LOSSES,
    **CATEGORICAL_VALUES,
    "CategoricalFocalCrossentropy": lambda v: mean_of_rows(-0.25 * (1 - v.softmax) ** 2 * v.y * np.log(v.softmax)),
}
VALUE_ERRORS = {
    "MeanAbsolutePercentageError": lambda v: 100 * np.abs(v.y - v.z) / np.abs(v.y),
    "MeanSquaredLogarithmicError": lambda v: (np.log1p(v.y) - np.log1p(v.z)) ** 2,
    "Poisson": lambda v: v.z - v.y * np.log(v.z),
    **ERROR_VALUES,
}
LOSSES = {
    "two classes": CLASS_LOSSES,
    "four classes": CLASS_LOSSES,
    "several labels": BINARY_LOSSES,
    "values": {**VALUE_ERRORS, **LOG_COSH, "Huber": huber},
}

ERROR_METRICS = {
    **ERROR_VALUES,
    "RootMeanSquaredError": lambda v: np.sqrt(np.mean((v.y - v.z) ** 2)),
    "LogCoshError": LOG_COSH["LogCosh"],
}
BINARY_METRICS = {
    **ERROR_METRICS,
    **HINGES,
    "BinaryAccuracy": lambda v: (v.scores > 0.5) == v.truth,
    "BinaryCrossentropy": lambda v: -np.log(np.where(v.truth, v.scores, 1 - v.scores)),
    "TruePositives": lambda v: v.count(True, True),
    "TrueNegatives": lambda v: v.count(False, False),
    "FalsePositives": lambda v: v.count(False, True),
    "FalseNegatives": lambda v: v.count(True, False),
    "Precision": lambda v: v.count(True, True) / (v.count(True, True) + v.count(False, True)),
    "Recall": lambda v: v.count(True, True) / v.truth.sum(),
    "AUC": lambda v: -np.trapezoid(v.curve["recall"], 1 - v.curve["specificity"]),
    "PrecisionAtRecall": lambda v: v.best("precision", "recall"),
    "RecallAtPrecision": lambda v: v.best("recall", "precision"),
    "SensitivityAtSpecificity": lambda v: v.best("recall", "specificity"),
    "SpecificityAtSensitivity": lambda v: v.best("specificity", "recall"),
    "F1Score": lambda v: v.f_score(1.0, v.is_greatest),
    "FBetaScore": lambda v: v.f_score(2.0, v.p > 0.5),
    "BinaryIoU": lambda v: np.mean(
        [
            v.count(truth, truth) / (v.count(truth, truth) + v.count(False, True) + v.count(True, False))
            for truth in (False, True)
        ]
    ),
}
CLASS_METRICS = {
    **BINARY_METRICS,
    **CATEGORICAL_VALUES,
    "SparseCategoricalAccuracy": lambda v: (v.is_greatest * v.y).sum(axis=1),
    "CategoricalAccuracy": lambda v: (v.is_greatest * v.y).sum(axis=1),
    "SparseTopKCategoricalAccuracy": lambda v: (v.y * (np.argsort(np.argsort(-v.z)) < 2)).sum(axis=1),
    "TopKCategoricalAccuracy": lambda v: (v.y * (np.argsort(np.argsort(-v.z)) < 2)).sum(axis=1),
    "KLDivergence": lambda v: mean_of_rows(np.maximum(v.y, EPSILON) * np.log(np.maximum(v.y, EPSILON) / v.softmax)),
    "OneHotIoU": lambda v: v.iou[0],
    "OneHotMeanIoU": lambda v: v.iou,
}
METRICS = {
    "two classes": CLASS_METRICS,
    "four classes": CLASS_METRICS,
    "several labels": BINARY_METRICS,
    "values": {
        **VALUE_ERRORS,
        **ERROR_METRICS,
        "R2Score": lambda v: 1 - ((v.y - v.z) ** 2).sum() / ((v.y - v.y.mean()) ** 2).sum(),
    },
}

NO_LOSS = {
    "CTC",
    "CategoricalGeneralizedCrossEntropy",
    "Circle",
    "CosineSimilarity",
    "Dice",
    "KLDivergence",
    "Loss",
    "Tversky",
}
NO_METRIC = {
    "Accuracy",
    "ConcordanceCorrelation",
    "CosineSimilarity",
    "IoU",
    "Mean",
    "MeanIoU",
    "Metric",
    "PearsonCorrelation",
    "Sum",
}
CUSTOM = {"MeanMetricWrapper"}  # with a user-defined function, which is not checked
ARGUMENTS = {
    **dict.fromkeys(("PrecisionAtRecall", "RecallAtPrecision"), (0.5,)),
    **dict.fromkeys(("SensitivityAtSpecificity", "SpecificityAtSensitivity"), (0.5,)),
    **dict.fromkeys(("SparseTopKCategoricalAccuracy", "TopKCategoricalAccuracy"), (2,)),
    "FBetaScore": (None, 2.0, 0.5),
}


def find_classes(module) -> dict[str, type]:
    return {name: value for name, value in vars(module).items() if inspect.isclass(value)}


def create(module, name: str, classes: int):
    """Returns a loss or a metric of Keras. Losses read logits."""
    kind = find_classes(module)[name]
    if module is keras.losses and "from_logits" in inspect.signature(kind).parameters:
        return kind(from_logits=True)
    if name == "OneHotIoU":
        return kind(classes, [0], sparse_y_pred=False)
    if name == "OneHotMeanIoU":
        return kind(classes, sparse_y_pred=False)
    if name in ("IoU", "MeanIoU"):
        return kind(*[classes, [0]][: 1 + (name == "IoU")])
    return kind(*ARGUMENTS.get(name, ()))


def build_model(kind: str) -> tuple[official_bert.TextClassifier | official_bert.TextRegressor, dict, Values]:
    """Returns a model with outputs of different sizes, ids of texts, and labels with these outputs."""
    classes = Y_BY_KIND[kind].shape[1]
    if kind == "values":
        model = official_bert.TextRegressor(CONFIG, VOCAB)
    else:
        labels = [f"class {number}" for number in range(classes)]
        model = official_bert.TextClassifier(CONFIG, VOCAB, labels=labels, multi_label=kind == "several labels")
    random = np.random.default_rng(5)
    for variable in model.variables:
        if variable.name in ("embeddings", "kernel"):
            variable.assign(random.standard_normal(variable.shape) * (0.3 if kind == "values" else 0.7))
    if kind == "values":  # Some errors are only defined for positive values.
        model.get_layer("sequence_classifier").bias.assign([3.0])
    words = VOCAB.split()[5:]
    texts = [" ".join(words[number % len(words)] for number in range(row, 2 * row + 1)) for row in range(ROWS)]
    ids = {name: np.asarray(values) for name, values in model.preprocessor(texts).items()}
    return model, ids, Values(kind, np.asarray(model.predict(ids, verbose=0), np.float64).reshape(ROWS, -1))


def make_labels(kind: str, form: str = "rows"):
    y = Y_BY_KIND[kind]
    return y[:, 0] if kind == "values" else y.argmax(axis=1) if form == "indices" else y


@pytest.mark.parametrize(
    ("kind", "form"), [*((kind, "rows") for kind in LOSSES), *((kind, "indices") for kind in CLASSES)]
)
def test_each_loss_of_keras_has_the_value_of_numpy_or_is_rejected(kind: str, form: str):
    assert set(find_classes(keras.losses)) == set().union(*LOSSES.values()) | NO_LOSS
    model, ids, values = build_model(kind)
    for name in find_classes(keras.losses):
        if name not in LOSSES[kind]:
            loss = create(keras.losses, name, values.y.shape[1])
            message = refusal(model.compile, "sgd", loss)
            assert f"keras.losses.{name} does not fit" in message
            assert "use one of " in message
            continue
        model.compile("sgd", create(keras.losses, name, values.y.shape[1]), metrics=[], run_eagerly=True)
        found = model.evaluate(ids, make_labels(kind, form), verbose=0)
        assert found == pytest.approx(np.mean(LOSSES[kind][name](values)), rel=1e-4), name


@pytest.mark.parametrize(("kind", "loss"), [*((kind, None) for kind in METRICS), *((kind, "rows") for kind in CLASSES)])
def test_each_metric_of_keras_has_the_value_of_numpy_or_is_rejected(kind: str, loss: str | None):
    known = set().union(*METRICS.values()) | NO_METRIC | CUSTOM
    assert set(find_classes(keras.metrics)) == known
    model, ids, values = build_model(kind)
    for name in known - set(METRICS[kind]) - CUSTOM:
        message = refusal(model.compile, "sgd", metrics=[create(keras.metrics, name, values.y.shape[1])])
        assert f"keras.metrics.{name} does not fit" in message
        assert "use one of " in message
    metrics = [create(keras.metrics, name, values.y.shape[1]) for name in METRICS[kind]]
    for metric, name in zip(metrics, METRICS[kind], strict=True):
        metric.name = name
        if "Categorical" in name and "from_logits" in metric.get_config():
            assert not metric.get_config()["from_logits"]  # This metric receives probabilities.
    loss_of_rows = keras.losses.CategoricalCrossentropy(from_logits=True) if loss else None
    model.compile("sgd", loss_of_rows, metrics=metrics, run_eagerly=True)
    found = model.evaluate(ids, make_labels(kind), verbose=0, return_dict=True)
    for name, expected in METRICS[kind].items():
        value = expected(values)
        value = value if name in ("F1Score", "FBetaScore") else np.mean(value)
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("module", [keras.losses, keras.metrics])
@pytest.mark.parametrize("head", [
    TAGS, QuestionAnsweringSpec(), MultipleChoiceSpec(num_choices=4), VectorSpec(),
])  # fmt: skip
def test_other_heads_reject_losses_and_metrics_of_other_kinds_by_name(module, head):
    is_loss = module is keras.losses
    for name in set(find_classes(module)) - CUSTOM:
        if name.startswith("Sparse") or (isinstance(head, VectorSpec) and ("Error" in name or "Cosine" in name)):
            continue
        if isinstance(head, VectorSpec) and name in ("Huber", "LogCosh"):
            continue
        item = create(module, name, 2)
        message = refusal(check_losses, item, head) if is_loss else refusal(check_metrics, [item], head)
        assert f".{name} does not fit" in message


def test_settings_for_logits_have_the_values_of_settings_for_probabilities():
    for kind in ("two classes", "several labels"):
        model, ids, values = build_model(kind)
        metrics = [
            keras.metrics.AUC(from_logits=True, name="AUC"), keras.metrics.Precision(thresholds=0, name="Precision"),
            keras.metrics.BinaryAccuracy(threshold=0.0, name="BinaryAccuracy"),
            keras.metrics.BinaryCrossentropy(from_logits=True, name="BinaryCrossentropy"),
        ]  # fmt: skip
        model.compile("sgd", metrics=metrics, run_eagerly=True)
        found = model.evaluate(ids, make_labels(kind), verbose=0, return_dict=True)
        for metric in metrics:
            expected = np.mean(BINARY_METRICS[metric.name](values))
            assert found[metric.name] == pytest.approx(expected, rel=1e-4), (kind, metric.name)


def test_settings_that_name_classes_select_them():
    model, ids, values = build_model("two classes")
    model.compile(
        "sgd", metrics=[keras.metrics.Recall(class_id=0, name="recall"), keras.metrics.Recall(top_k=1, name="top")]
    )
    found = model.evaluate(ids, make_labels("two classes"), verbose=0, return_dict=True)
    assert found["recall"] == pytest.approx(np.mean((values.p[:, 0] > 0.5)[values.y[:, 0] > 0]))
    assert found["top"] == pytest.approx((values.is_greatest * values.y).sum() / ROWS)


@pytest.mark.parametrize("of_data_set", [False, True])
def test_soft_labels_are_learned_by_a_loss_that_reads_them(of_data_set: bool):
    model = official_bert.TextClassifier(CONFIG, VOCAB, labels=["bad", "good", "plain"])
    soft = np.array([[0.7, 0.2, 0.1], [0.0, 1.0, 0.0], [0.25, 0.5, 0.25], [0.1, 0.1, 0.8]], np.float32)
    data = (tf.data.Dataset.from_tensor_slices((TEXTS, soft)),) if of_data_set else (TEXTS, soft.tolist())
    message = refusal(model.evaluate, *data, verbose=0)
    assert "y contains probabilities, such as [0.7, 0.2, 0.1]" in message
    assert "keras.losses.CategoricalCrossentropy(from_logits=True)" in message
    model.compile("sgd", keras.losses.CategoricalCrossentropy(from_logits=True), run_eagerly=True)
    expected = -(soft * np.log(model.predict(TEXTS))).sum(axis=1).mean()
    figures = model.evaluate(*data, verbose=0, return_dict=True)
    assert figures["loss"] == pytest.approx(expected, rel=1e-5)
    assert figures["accuracy"] == pytest.approx(np.mean(model.predict(TEXTS).argmax(1) == soft.argmax(1)))


def test_soft_labels_of_several_labels_are_learned():
    model = official_bert.TextClassifier(CONFIG, VOCAB, labels=["bad", "good"], multi_label=True)
    soft = np.array([[0.7, 0.6], [0.0, 1.0], [0.25, 0.5], [0.1, 0.1]])
    p = model.predict(TEXTS)
    model.compile("sgd", metrics=[], run_eagerly=True)
    expected = -np.mean(soft * np.log(p) + (1 - soft) * np.log(1 - p))
    assert model.evaluate(TEXTS, soft, verbose=0) == pytest.approx(expected, rel=1e-5)
    assert "numbers from 0 to 1" in refusal(model.evaluate, TEXTS, 2 * soft, verbose=0)


def test_rows_that_are_no_probabilities_are_refused():
    model = official_bert.TextClassifier(CONFIG, VOCAB, labels=["bad", "good"])
    assert "y[1] is [0.3, 0.3]; expected 2 probabilities that add up to 1" in refusal(
        model.fit, TEXTS[:2], [[0.5, 0.5], [0.3, 0.3]], verbose=0
    )


@pytest.mark.parametrize(("loss", "labels", "message"), [
    (keras.losses.CategoricalFocalCrossentropy(from_logits=True), [0, 1, 2, 3], "the index of a class"),
    (None, np.eye(4), "a row with a number per class"),
])  # fmt: skip
def test_labels_of_ids_in_a_data_set_must_have_the_form_of_the_loss(loss, labels, message: str):
    model = official_bert.TextClassifier(CONFIG, VOCAB, labels=["0", "1", "2", "3"])
    model.compile("sgd", loss)
    data = tf.data.Dataset.from_tensors((model.preprocessor(TEXTS), labels))  # a batch with as many rows as classes
    for method in (model.fit, model.evaluate):
        assert f"each label is {message}" in refusal(method, data, verbose=0)


@pytest.mark.parametrize("given", [
    "sparse_categorical_crossentropy", "crossentropy", keras.losses.SparseCategoricalCrossentropy,
    keras.losses.sparse_categorical_crossentropy,
])  # fmt: skip
def test_losses_are_known_by_name_class_and_function(given):
    line = "use keras.losses.SparseCategoricalCrossentropy(from_logits=True) instead"
    assert line in refusal(check_losses, {"start": given, "end": None}, ONE_CLASS)
    line = line.replace("from_logits=True", "from_logits=True, ignore_class=-1")
    assert line in refusal(check_losses, given, TAGS)
    assert "keras.losses.BinaryCrossentropy(from_logits=True)" in refusal(check_losses, "binary_crossentropy", SEVERAL)
    assert "keras.losses.BinaryCrossentropy(from_logits=True)" in refusal(check_losses, "ce", SEVERAL)
    assert "SparseCategoricalCrossentropy does not fit regression; use one of" in refusal(check_losses, "ce", VALUE)
    assert "does not ignore the label -1" in refusal(
        check_losses, keras.losses.SparseCategoricalCrossentropy(from_logits=True), TAGS
    )


def test_metrics_are_known_by_name_class_and_function_and_keep_their_names():
    names = [
        metric.name
        for metric in check_metrics(["auc", "ce", keras.metrics.AUC, keras.metrics.kl_divergence], ONE_CLASS)
    ]
    assert names[:2] == ["auc", "ce"]
    assert re.match(r"auc(_\d+)?$", names[2])
    assert names[3].startswith("kl")


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
        "mae", keras.metrics.AUC(from_logits=True), keras.metrics.Precision(thresholds=0),
        keras.metrics.BinaryAccuracy(threshold=0.0),
    ]  # fmt: skip
    assert check_metrics(metrics, SEVERAL) == metrics
    assert check_losses("poisson", VALUE) == "poisson"
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    assert check_losses(loss, TAGS) is loss
    own = keras.metrics.MeanMetricWrapper(lambda y, logits: logits)
    assert check_metrics([own], ONE_CLASS) == [own]


def test_accuracy_is_that_of_the_head():
    assert check_metrics(["accuracy"], ONE_CLASS) == ["accuracy"]
    assert isinstance(check_metrics("acc", TAGS), TagAccuracy)
    metric = check_metrics("accuracy", SEVERAL)
    metric.update_state(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[0.2, -3.0], [-1.0, 0.3]]))  # 0.5 is between them
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


def test_a_wrapped_metric_is_saved_with_its_settings():
    metric = MetricOfClasses(keras.metrics.FBetaScore(beta=2.0), True, name="f2")
    again = MetricOfClasses.from_config(metric.get_config())
    assert again.name == "f2"
    assert again.metric.get_config() == metric.metric.get_config()
