"""Keras' fit, evaluate and callbacks on strings give the metrics and weights of manually built batches."""

import gc
import weakref
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.finetuning import batches
from official_bert.inference.keras_model import KerasRunner
from official_bert.keras_models import best_model, fit_arguments, steps
from official_bert.keras_models.inputs import Inputs
from official_bert.kinds.features import padded_inputs, row_lengths
from official_bert.modeling.dropout import Dropout
from official_bert.optimization import distribution
from official_bert.optimization.optimizers import BertAdamW
from official_bert.optimization.schedules import WarmupPolynomialDecay
from tests import make
from tests.make import VOCAB, assert_equal_weights, assert_rejected, build_text_model, slow_after, tiny_config
from tests.processes import run_marked_tests

TEXTS = ["the cat sat", "a dog ran in the sun", "walking", "unaffable mat , and the sun ."] * 8 + ["the cat"]
LABELS = ["good", "bad", "good", "bad"] * 8 + ["good"]
NAN = float("nan")
slices = tf.data.Dataset.from_tensor_slices
DATA = slices((TEXTS, LABELS))
ExponentialDecay = keras.optimizers.schedules.ExponentialDecay


def build(**settings) -> official_bert.TextClassifier:
    model = build_text_model(labels=["bad", "good"], seed=3)
    model.compile(**settings)
    return model


@pytest.fixture(scope="module")
def unchanged() -> official_bert.TextClassifier:
    """A model for calls that are refused, and calls that change nothing."""
    return build(run_eagerly=True)


@pytest.mark.parametrize("uses_data_set", slow_after(1, [True, False]))
def test_a_fitted_model_and_its_data_are_freed(uses_data_set: bool):
    model, data = build_text_model(labels=["bad", "good"]), (TEXTS[:4], LABELS[:4])
    arguments = (slices(data).batch(2),) if uses_data_set else data
    model.fit(*arguments, batch_size=2, validation_data=data, verbose=0)
    deleted = weakref.ref(model)
    del model
    gc.collect()
    assert deleted() is None


def test_validation_batches_have_the_size_of_training_batches_or_their_own(monkeypatch):
    model, callback, batches = build(run_eagerly=True), keras.callbacks.Callback(), []
    make.skip_steps(model, monkeypatch)
    callback.on_test_batch_end = lambda batch, logs=None: batches.append(batch)
    settings = {"batch_size": 2, "validation_data": (TEXTS[:4], LABELS[:4]), "callbacks": [callback], "verbose": 0}
    model.fit(TEXTS[:4], LABELS[:4], **settings)
    model.fit(TEXTS[:4], LABELS[:4], validation_batch_size=4, **settings)
    assert batches == [0, 1, 0]


def test_fit_on_strings_equals_fit_on_the_same_batches_of_ids():
    model = build(adam_bias_correction=False, run_eagerly=True)
    settings = {"batch_size": 8, "epochs": 2, "group_by_length": True}
    history = model.fit(TEXTS[:16], LABELS[:16], verbose=0, **settings).history
    by_hand = build(optimizer=BertAdamW(WarmupPolynomialDecay(5e-5, 4, 0)), run_eagerly=True)
    examples, losses = model.spec.make_examples(TEXTS[:16], LABELS[:16]), []
    features = model.spec.featurize(examples, model._tokenizer, 32)
    for epoch in range(2):
        for rows in batches.draw_batches(row_lengths(features), 8, 3, epoch, group_by_length=True):
            inputs = padded_inputs(features, rows, 32)
            losses.append(by_hand.train_on_batch(inputs, features.targets["labels"][rows])[0])
            by_hand.reset_metrics()
    np.testing.assert_allclose(history["loss"], np.reshape(losses, (2, -1)).mean(axis=1), rtol=1e-6)
    assert_equal_weights(model, by_hand, atol=1e-8)  # the order of sums varies
    assert float(model.optimizer.learning_rate) == 0.0  # it decreased over the four steps
    # A smaller last batch does not change loss and accuracy, and a second fit resets the metrics.
    loss, accuracy = model.evaluate(TEXTS, LABELS, batch_size=32, verbose=0)
    probabilities, numbers = model.predict(TEXTS), [model.labels.index(label) for label in LABELS]
    assert accuracy == pytest.approx(np.mean(probabilities.argmax(-1) == numbers))
    assert loss == pytest.approx(-np.log(probabilities[np.arange(33), numbers]).mean(), rel=1e-5)
    assert model.classify(TEXTS) == [model.labels[number] for number in probabilities.argmax(-1)]
    assert model.fit(TEXTS[:1], LABELS[:1], verbose=0).history["accuracy"][0] in (0.0, 1.0)


@pytest.mark.parametrize(("change", "names"), [
    ({"y": ["good", "fair"]}, ("y[1]", "'fair'", "bad", "good", "0 to 1")), ({"y": [0]}, ("y", 1, 2)),
    ({"y": None}, ("labels", "y")), ({"x": [*zip(TEXTS, LABELS, strict=True)], "y": None}, "tf.data.Dataset"),
    ({"x": None}, ("x", "missing")), ({"x": ["a", 5]}, ("x[1]", 5)), ({"x": ["a", b"\xff"]}, ("x[1]", "UTF-8")),
    ({"x": [], "y": []}, ("x", "examples")), ({"x": ["", " "]}, ("x", "empty")),
    ({"sample_weight": [1.0]}, ("sample_weight", 1, 2)),
    ({"sample_weight": [1.0, 1e39]}, ("sample_weight[1]", 1e39, 1e18)),
    *[({"class_weight": weight}, ("class_weight", *names)) for weight, *names in (
        ({"fair": 2.0}, "class_weight[0]", "'fair'"), ({0: 1e39}, "class_weight[0]", 1e39, 1e18), ("rare", "'rare'", 2),
    )],
    ({"validation_split": 0.9}, "validation_split=0.9"), ({"validation_data": [TEXTS]}, ("validation_data", 1)),
    ({"validation_data": (TEXTS, LABELS, None, None)}, ("validation_data", 4)),
    ({"validation_split": 0.25, "validation_data": (TEXTS, LABELS)}, ("validation_split", "validation_data")),
    *[({"x": data, "y": None}, "empty") for data in (DATA.take(0), DATA.filter(lambda x, y: False))],
    ({"x": DATA, "y": None, "class_weight": "balanced"}, "class_weight='balanced'"),
    *[({"validation_split": value}, ("validation_split", repr(value), 0, 1))
      for value in (NAN, "0.5", -0.1, 1.0, np.array([]), "")],
    *[({name: value}, (name, repr(value), lowest)) for name, lowest, *values in (
        ("epochs", 1, 0, -3, 1.5, "2"), ("initial_epoch", 0, -1, 2**31), ("steps_per_epoch", 1, 0, -3),
        ("batch_size", 1, 0), ("validation_batch_size", 1, -3), ("validation_freq", 1, 0),
        ("validation_steps", 1, np.array([])),
    ) for value in values],
])  # fmt: skip
def test_invalid_data_and_numbers_are_reported(unchanged, change, names):
    assert_rejected(names, unchanged.fit, **{"x": TEXTS[:2], "y": [0, 1], "verbose": 0, **change})


@pytest.mark.filterwarnings("ignore")
def test_evaluate_and_predict_reject_the_same_inputs_as_fit(unchanged):
    for method in (unchanged.evaluate, unchanged.predict):
        assert_rejected(("batch_size", 0), method, TEXTS[:2], batch_size=0)
        assert_rejected("x", method, None)
    for data in (DATA.take(0), DATA.filter(lambda x, y: False)):
        assert_rejected("empty", unchanged.evaluate, data)
    assert_rejected(("steps", -3, 1), unchanged.evaluate, TEXTS, LABELS, steps=-3)
    assert_rejected(("x", "examples"), unchanged.predict, [])
    for settings in ({"steps": 1}, {"callbacks": [keras.callbacks.Callback()]}):
        assert_rejected(("predict", "steps", "callbacks"), unchanged.predict, TEXTS, **settings)
    ids, y = unchanged.preprocessor(TEXTS[:2]), np.array([0, 1])
    empty = {name: values[:0] for name, values in ids.items()}
    assert_rejected(("x", "examples"), unchanged.fit, empty, np.empty(0))
    assert_rejected("class_weight='balanced'", unchanged.fit, ids, y, class_weight="balanced")
    assert_rejected(("sample_weight[1]", NAN), unchanged.fit, ids, y, sample_weight=np.array([1.0, NAN]))


@pytest.mark.parametrize(("labels", "is_noted"), [([0, 1, 1, 1], True), ([0, 1, 1, 0], False), ([0, 0, 0, 1], False)])
def test_a_note_reports_held_out_texts_of_one_class(labels, is_noted: bool, unchanged, capsys):
    for split, expected in ((0.5, is_noted), (0.25, False)):  # 0.25 holds out one text
        settings = {"batch_size": 2, "validation_split": split, "shuffle": True, "group_by_length": False}
        Inputs(unchanged).prepare_fit(TEXTS[:4], labels, None, **settings)
        told = capsys.readouterr().out
        assert ("2 texts have the label good" in told) == ("validation_split" in told) == expected


def test_balanced_class_weights_equal_those_of_the_command(unchanged):
    inputs = Inputs(unchanged, class_weight="balanced")
    for sample_weight, factor in ((None, 1.0), ([2.0] * 6, 2.0)):
        examples = inputs.make_examples(TEXTS[:6], [0, 0, 0, 0, 1, 1], sample_weight)
        ((_, labels, weights),) = inputs.training(examples, 6, False)
        np.testing.assert_allclose(weights, factor * np.where(labels == 1, 1.5, 0.75))
    fit = build_text_model("TextRegressor").fit
    assert_rejected(("class_weight", "regression"), fit, TEXTS[:1], [1.0], class_weight="balanced")


def test_steps_are_counted_without_the_validation_split():
    ids = {"input_ids": np.zeros((10, 3))}
    assert [fit_arguments.count_steps(ids, 4, split) for split in (0.0, 0.25, 0.6)] == [3, 2, 1]
    assert fit_arguments.count_kept(10, 0.25) == 7  # rounded down
    assert type(fit_arguments.check_count(np.int64(7), "epochs")) is int
    assert [fit_arguments.check_split(split, None) for split in (np.float32(0.5), None)] == [0.5, 0.0]
    assert fit_arguments.count_steps(slices(np.arange(10)).batch(4).filter(lambda x: True), 1, 0.0) == 3
    for split in (0.95, 0):
        assert_rejected((f"validation_split={split}", 10), fit_arguments.count_kept, 10, split)


@pytest.mark.parametrize(("arguments", "names"), [
    ({"labels": "ab"}, ("labels", "'ab'", "two")), ({"labels": ["a"]}, ("labels", "['a']", "two")),
    ({"labels": 2}, ("labels", 2)), ({"num_classes": 2}, ("num_classes=2", "two")),
    *[({"labels": ["a", "b"], name: value}, (name, value, lowest)) for name, value, lowest in (
        ("max_seq_length", -5, 3), ("gradient_accumulation_steps", 1.5, 1), ("seed", None, 0), ("seed", -1, 0),
    )],
    *[({"labels": ["a", "b"], name: 3}, (name, f"{valid}?", "doc_stride", "dtype", "frozen"))
      for name, valid in (("max_len", "max_seq_length"), ("max_length", "max_seq_length"), ("sede", "seed"))],
])  # fmt: skip
def test_invalid_fit_arguments_are_rejected(arguments, names):
    assert_rejected(names, official_bert.TextClassifier, tiny_config(), VOCAB, **arguments)
    assert_rejected(("max_seq_length", 3, 4), build_text_model, pair=True, max_seq_length=3)
    if arguments.get("labels") != ["a"]:  # one tag is enough
        names = tuple("one" if name == "two" else name for name in names)
        assert_rejected(names, official_bert.TokenTagger, tiny_config(), VOCAB, **arguments)


@pytest.mark.parametrize(("arguments", "names"), [
    *[({"learning_rate": rate}, ("learning_rate", rate, "positive")) for rate in (NAN, -1.0, True, 0, 1e38)],
    *[({"optimizer": kind(rate)}, ("optimizer", "learning_rate", rate))
      for kind, rate in ((keras.optimizers.Adam, NAN), (keras.optimizers.Adam, float("inf")), (BertAdamW, -0.5))],
    *[({"optimizer": keras.optimizers.Adam(ExponentialDecay(rate, 9, 0.9))}, ("optimizer", "schedule", rate, "step 0"))
      for rate in (NAN, -0.5, float("inf"))],
    ({"optimizer": keras.optimizers.Adam(ExponentialDecay(0.1, 9, NAN))}, (NAN, "step 1")),
    ({"warmup_proportion": 2.0}, ("warmup_proportion", 2.0, 0, 1)),
    *[({"layer_decay": value}, ("layer_decay", repr(value))) for value in ("0.9", 0.0, 1.5)],
])  # fmt: skip
def test_invalid_learning_rates_are_rejected(unchanged, arguments, names):
    assert_rejected(names, unchanged.compile, **arguments)


@pytest.mark.slow
def test_callbacks_get_correct_metrics_and_resuming_is_exact(tmp_path):
    def stop(epoch, logs=None):
        if epoch == 1:
            raise InterruptedError

    def fit(model, *callbacks):
        settings = {"validation_data": (TEXTS, LABELS), "epochs": 4, "batch_size": 8, "verbose": 0}
        return model.fit(TEXTS, LABELS, callbacks=list(callbacks), **settings).history

    def backup():
        return keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), delete_checkpoint=False)

    model, resumed = build(), build()
    whole = fit(model)
    with pytest.raises(InterruptedError):
        fit(build(), backup(), keras.callbacks.LambdaCallback(on_epoch_end=stop))
    path = str(tmp_path / "best.keras")
    best = keras.callbacks.ModelCheckpoint(path, monitor="val_loss", save_best_only=True)
    rest = fit(resumed, backup(), best, keras.callbacks.EarlyStopping(patience=5))["val_loss"]
    np.testing.assert_allclose(rest, whole["val_loss"][2:], rtol=1e-6)
    assert_equal_weights(resumed, model, atol=1e-7)
    loaded = official_bert.TextClassifier.load(path)
    assert min(rest) == pytest.approx(loaded.evaluate(TEXTS, LABELS, verbose=0)[0], rel=1e-5)


@pytest.mark.parametrize("optimizer", [None, "sgd"])
def test_fit_of_a_frozen_encoder_trains_the_head_and_of_frozen_layers_only_is_refused(optimizer):
    model = build(optimizer=optimizer, run_eagerly=True)
    model.freeze()
    before = make.list_weights(model)
    model.fit(TEXTS[:4], LABELS[:4], verbose=0)
    moved = {each.path for each in model.variables if not np.array_equal(each, before[each.path])}
    assert moved == {"sequence_classifier/kernel", "sequence_classifier/bias"}
    model.freeze(".*")
    model.compile(optimizer)
    assert_rejected(("freeze", "model.get_layer(name).trainable"), model.fit, TEXTS, LABELS, verbose=0)


def test_fit_ends_with_the_weights_of_the_epoch_with_the_best_score():
    model, seen = build(learning_rate=1e-3, run_eagerly=True), []
    held_out = (TEXTS[:8], LABELS[1:9])  # with swapped labels, so that the model gets worse on these
    record = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(logs["val_roc_auc"]))
    settings = {"validation_data": held_out, "metric_for_best_model": "roc_auc", "callbacks": [record], "verbose": 0}
    assert model.fit(TEXTS[:8], LABELS[:8], epochs=3, **settings).history["val_roc_auc"] == seen
    assert len(seen) == 3
    scores = model.spec.scores(model.predict(TEXTS[:8]), model.spec.make_examples(*held_out))
    assert scores["roc_auc"] == pytest.approx(max(seen))
    assert seen[-1] != pytest.approx(max(seen))


@pytest.mark.parametrize(("metric", "best_weight"), [("accuracy", 1), ("loss", 0), ("mean_absolute_error", 0)])
def test_the_best_epoch_is_the_maximum_of_a_score_or_the_minimum_of_an_error(metric: str, best_weight: int):
    model = keras.Sequential([keras.layers.Dense(1, use_bias=False)])
    model.build((1, 1))
    callback = best_model._BestModel(metric, lambda: model.get_weights()[0].item(), epochs=3)
    callback.set_model(model)
    model.stop_training = False
    callback.on_train_begin()
    for epoch in range(3):  # the last one without a validation
        model.set_weights([np.full((1, 1), epoch)])
        callback.on_epoch_end(epoch, {"val_loss": epoch} if epoch < 2 else {})
    assert not model.stop_training
    callback.on_train_end()
    assert model.get_weights() == [[[best_weight]]]


def test_a_score_that_cannot_select_the_best_epoch_is_refused(unchanged):
    settings = {"validation_data": (TEXTS, LABELS), "metric_for_best_model": "f1"}
    assert_rejected(("metric_for_best_model", "'f1'", "f1_rare_class"), unchanged.fit, TEXTS, LABELS, **settings)
    ids, same = (unchanged.preprocessor(TEXTS[:2]), np.array([0, 1])), (TEXTS[:3], LABELS[:1] * 3)
    expected = ("metric_for_best_model", "roc_auc", 3)
    for data, names in ((None, "validation_split"), (ids, "validation_split"), (same, expected)):
        settings = {"metric_for_best_model": "roc_auc", "validation_data": data}
        assert_rejected(names, unchanged.fit, TEXTS, LABELS, **settings)


def test_no_batch_is_skipped_by_the_loop_over_replicas():
    total, strategy = tf.Variable(0), tf.distribute.get_strategy()
    model = mock.Mock(distribute_strategy=strategy, steps_per_execution=2, get_metrics_result=lambda: {"sum": total})
    function = steps.run_on_replicas(model, lambda data: total.assign_add(data[0]))
    batches_of_one = iter([(tf.constant(1 << number),) for number in range(5)])
    assert [int(function(batches_of_one)["sum"]) for _ in range(3)] == [3, 15, 31]
    with pytest.raises(StopIteration):
        function(batches_of_one)


@pytest.mark.slow
@pytest.mark.core
def test_two_devices():
    run_marked_tests(2, __file__)


# Each model class, its arguments, and examples whose last batch (of 5) is not full.
ROWS = TEXTS[:13]
TAGS = [" ".join("NV"[len(word) > 3] for word in text.split()) for text in ROWS]
LAST_WORDS, QUESTIONS = [text.split()[-1] for text in ROWS], (["who sat"] * 13, ROWS)
EXAMPLES = {
    "TextClassifier": ({"labels": ["bad", "good"]}, ROWS, LABELS[:13]),
    "TextRegressor": ({}, ROWS, [len(text) / 10 for text in ROWS]),
    "TokenTagger": ({"labels": ["N", "V"]}, ROWS, TAGS),
    "QuestionAnswerer": ({"max_query_length": 4, "doc_stride": 8}, QUESTIONS, LAST_WORDS),
    "MultipleChoice": ({}, [("who", [text, "a dog", "the sun", "mat"]) for text in ROWS], [0, 1, 2, 3] * 3 + [1]),
}


def loss_of_sentences(tags, logits):
    """A user-defined loss for tags, [B]: the mean over all tokens. Tokens without a tag have a loss of zero."""
    losses = keras.ops.sparse_categorical_crossentropy(keras.ops.maximum(tags, 0), logits, from_logits=True)
    return keras.ops.mean(losses * keras.ops.cast(tags >= 0, losses.dtype), axis=-1)


def fitted(name: str, strategy: tf.distribute.Strategy, loss=None):
    """Returns the figures of fit and evaluate for a model without dropout, and its answers and weights."""
    arguments, x, y = EXAMPLES[name]
    config = tiny_config(num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    with strategy.scope():
        model = build_text_model(name, config, seed=3, max_seq_length=24, **arguments)
        for layer in model._flatten_layers():
            if isinstance(layer, Dropout):  # the dropout of the head
                layer.rate = 0.0
    model.compile(learning_rate=1e-4, loss=loss, jit_compile=False, steps_per_execution=2)
    weights = list(np.linspace(0.5, 2.0, 13))
    fit = model.fit(x, y, batch_size=5, epochs=3, sample_weight=weights, verbose=0).history
    figures = {"fit": fit, "evaluate": model.evaluate(x, y, batch_size=4, verbose=0, return_dict=True)}
    return figures, model.predict(x), model.get_weights()


@pytest.mark.two_devices
@pytest.mark.parametrize(("name", "loss"), [*((name, None) for name in EXAMPLES), ("TokenTagger", loss_of_sentences)])
def test_two_devices_equal_one(name, loss):
    strategies = (distribution.get_strategy(each) for each in ("one_device", "mirrored"))
    one, two = (fitted(name, strategy, loss) for strategy in strategies)
    for expected, found in ((one[0], two[0]), (one[2], two[2])):
        keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(b, a, atol=1e-5), expected, found)
    assert len(one[1]) == len(two[1]) == 13


_FIT_TWICE = """
import sys
import tensorflow as tf
import official_bert
tf.config.experimental.enable_op_determinism()
weights = []
for _ in range(2):
    model = official_bert.TextClassifier.from_checkpoint(sys.argv[1], vocab_file=sys.argv[2], labels=["bad", "good"])
    model.fit(["the cat sat", "a dog ran in the sun"] * 16, ["good", "bad"] * 16, epochs=2, verbose=0)
    weights.append(b"".join(weight.tobytes() for weight in model.get_weights()))
print(weights[0] == weights[1])
"""


@pytest.mark.slow
def test_fit_with_deterministic_operations_learns_the_same_bytes_again(vocab_file, tmp_path):
    (tmp_path / "config.json").write_text(tiny_config().to_json())
    threads = {"TF_NUM_INTRAOP_THREADS": "4", "TF_NUM_INTEROP_THREADS": "4"}
    done = make.run_python("-c", _FIT_TWICE, tmp_path / "config.json", vocab_file, environment=threads)
    assert done.stdout.endswith("True\n"), done.stderr


@pytest.mark.parametrize(("name", "settings", "y"), [
    ("TextClassifier", {"labels": ["bad", "good"]}, [0, 1, 0, 1]), ("TextRegressor", {}, [0.5] * 4),
])  # fmt: skip
def test_notes_on_the_texts_are_printed_unless_verbose_is_0(name: str, settings, y, monkeypatch, capfd):
    long = [" ".join(TEXTS[:4])] * 4  # longer than the model's maximum length
    model = build_text_model(name, max_seq_length=8, **settings)
    make.skip_steps(model, monkeypatch)

    def answer_zeros(runner: KerasRunner, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        return tf.zeros((len(inputs["input_ids"]), *runner._model.output.shape[1:]))

    monkeypatch.setattr(KerasRunner, "_traced_forward", answer_zeros)
    model.compile("sgd", run_eagerly=True)
    note = "note: truncated to 8 tokens (max_seq_length): "
    capfd.readouterr()
    for x, labels in ((long, y), (slices((long, y)).batch(4), None)):
        model.fit(x, labels, validation_data=(long[:2], y[:2]), verbose=0)
        model.evaluate(x, labels, verbose=0)
    model.predict(long * 10, 20, verbose=0)
    assert capfd.readouterr() == ("", "")
    model.fit(["the dog", *long[1:]], y, validation_data=(long[:1], y[:1]), verbose=2)
    told = capfd.readouterr().out
    assert all(f"{note}{part}\n" in told for part in ("3 of 4 texts", "1 of 1 text"))
    model.predict(long * 10, 4)
    told, progress_bar = capfd.readouterr().out, "10/10"
    assert all(part in told for part in (progress_bar, f"{note}40 of 40 texts", "warning: all 40 answers"))
    model.predict(["the dog"] * 9, 1)
    build_text_model("TextEncoder").predict(["the cat"] * 33)
    assert capfd.readouterr().out == ""
