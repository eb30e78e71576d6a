"""Keras' fit, evaluate and callbacks on strings give the metrics and weights of manually built batches."""

import dataclasses
import gc
import re
import warnings
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.errors import UserError
from official_bert.finetuning import batches
from official_bert.keras_models import best_model
from official_bert.keras_models.inputs import EpochCounter
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.modeling.dropout import Dropout
from official_bert.optimization import distribution
from official_bert.optimization.optimizers import BertAdamW
from official_bert.optimization.schedules import WarmupPolynomialDecay
from tests.event_files import read_scalars
from tests.make import VOCAB, refusal, run_python, tiny_config
from tests.processes import run_marked_tests

TEXTS = ["the cat sat", "a dog ran in the sun", "walking", "unaffable mat , and the sun ."] * 8 + ["the cat"]
LABELS = ["good", "bad", "good", "bad"] * 8 + ["good"]
CONFIG = tiny_config()


@pytest.fixture
def classifier() -> official_bert.TextClassifier:
    return build()


def build() -> official_bert.TextClassifier:
    model = official_bert.TextClassifier(CONFIG, VOCAB, labels=["bad", "good"], seed=3)
    model.compile(jit_compile=False)
    return model


def test_texts_that_are_cut_are_counted(classifier, capsys):
    long = ["the cat sat " * 20, "the dog", "a mat in the sun " * 9]
    classifier.fit(long, ["good", "bad", "good"], validation_data=(long[:1], ["bad"]), verbose=2)
    classifier.predict(long)
    told = capsys.readouterr().out
    assert told.count("note: cut to 32 tokens (max_seq_length): 2 of 3 texts\n") == 2
    assert "note: cut to 32 tokens (max_seq_length): 1 of 1 text\n" in told
    classifier.predict(long[1:2])
    assert "were cut" not in capsys.readouterr().out


@pytest.mark.parametrize("in_data_set", [False, True])
def test_a_fitted_model_and_its_data_are_freed(in_data_set: bool):
    model = build()
    data = (TEXTS[:4], LABELS[:4])
    if in_data_set:
        model.fit(tf.data.Dataset.from_tensor_slices(data).batch(2), verbose=0)
    else:
        model.fit(*data, batch_size=2, validation_data=data, verbose=0)
    deleted = weakref.ref(model)
    del model
    gc.collect()
    assert deleted() is None


def test_predict_warns_if_all_answers_are_equal(capsys):
    model = build()
    model.get_layer("sequence_classifier").bias.assign([9.0, -9.0])
    model.predict(TEXTS)
    assert "warning: all 33 answers are bad: the model may have learned nothing" in capsys.readouterr().out
    model.predict(TEXTS[:9])
    official_bert.TextEncoder(CONFIG, VOCAB).predict(["the cat"] * 33)
    assert "warning" not in capsys.readouterr().out


def test_fit_on_strings_is_fit_on_the_same_batches_made_by_hand(classifier):
    history = classifier.fit(TEXTS[:32], LABELS[:32], batch_size=8, epochs=2, verbose=0).history
    by_hand = build()
    by_hand.compile(BertAdamW(WarmupPolynomialDecay(5e-5, 8, 0), adam_bias_correction=True), jit_compile=False)
    features = by_hand.head.featurize(by_hand.head.examples(TEXTS[:32], LABELS[:32]), by_hand._tokenizer, 32)
    losses = []
    for epoch in range(2):
        sums = []
        for rows in batches.draw_batches(batches.row_lengths(features), 8, 3, epoch):
            inputs = batches.padded_inputs(features, rows, 32)
            sums.append(by_hand.train_on_batch(inputs, features.targets["labels"][rows], return_dict=True)["loss"])
            by_hand.reset_metrics()
        losses.append(float(np.mean(sums)))
    np.testing.assert_allclose(history["loss"], losses, rtol=1e-6)
    for ours, expected in zip(classifier.variables, by_hand.variables, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-8, err_msg=ours.path)  # the order of sums varies


def test_a_smaller_last_batch_leaves_loss_and_accuracy_right(classifier):
    classifier.fit(TEXTS, LABELS, epochs=3, verbose=0)
    loss, accuracy = classifier.evaluate(TEXTS, LABELS, batch_size=32, verbose=0)
    probabilities = classifier.predict(TEXTS)
    numbers = [classifier.labels.index(label) for label in LABELS]
    assert accuracy == pytest.approx(np.mean(probabilities.argmax(-1) == numbers))
    assert loss == pytest.approx(-np.log(probabilities[np.arange(33), numbers]).mean(), rel=1e-5)
    assert classifier.classify(TEXTS) == [classifier.labels[number] for number in probabilities.argmax(-1)]


@pytest.mark.slow
def test_data_in_every_form_give_the_same_loss(classifier):
    class Column(list):
        """Like a pandas column: not a sequence for Keras, but it has to_list."""

        to_list = list.copy

    expected = classifier.evaluate(TEXTS, LABELS, verbose=0)
    numbers = [classifier.labels.index(label) for label in LABELS]
    slices = tf.data.Dataset.from_tensor_slices
    forms = [
        (np.array(TEXTS), np.array(LABELS)),
        (np.array([text.encode() for text in TEXTS]), numbers),
        (Column(TEXTS), Column(LABELS)),
        (tf.constant(TEXTS), tf.constant(numbers)),
        (slices((TEXTS, LABELS)), None),
        (slices((TEXTS, numbers)).batch(5), None),
        (classifier.preprocessor(TEXTS), np.array(numbers)),
    ]
    for x, y in forms:
        np.testing.assert_allclose(classifier.evaluate(x, y, verbose=0), expected, rtol=1e-5)
    for x in (slices(TEXTS), slices((TEXTS, numbers)).batch(4), np.array(TEXTS)):
        np.testing.assert_allclose(classifier.predict(x), classifier.predict(TEXTS), rtol=1e-6)
    np.testing.assert_allclose(
        tf.nn.softmax(classifier.predict(classifier.preprocessor(TEXTS), verbose=0)),
        classifier.predict(TEXTS),
        rtol=1e-5,
    )


@pytest.mark.slow
def test_a_data_set_trains_as_the_model_s_own_ids_do(classifier):
    data = tf.data.Dataset.from_tensor_slices((TEXTS, LABELS)).batch(8)
    history = classifier.fit(data, validation_data=data, epochs=2, verbose=0).history
    assert set(history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert int(classifier.optimizer.iterations) == 10
    assert float(classifier.optimizer.learning_rate) == 0.0  # it decreased over the ten steps
    classifier.compile(learning_rate=1)
    assert float(classifier.optimizer.learning_rate) == 1.0
    plain = keras.Model(classifier.input, classifier.output)
    plain.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    number_of = tf.constant([[1], [0]] * 4)
    plain.fit(data.take(4).map(lambda x, y: (classifier.preprocessor(x), number_of)), shuffle=False, verbose=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": ["good", "fair"]}, r"y\[1\] is 'fair'; expected one of bad, good, or a number from 0 to 1"),
        ({"y": [0]}, "y has 1 values for 2 examples"),
        ({"y": [0, float("nan")]}, r"y\[1\] is nan"),
        ({"y": None}, "have no labels"),
        ({"x": "a text"}, "x is a single text, 'a text'; expected several texts"),
        ({"x": ["a", 5]}, r"x\[1\] is 5; expected a text"),
        ({"x": ["a", b"\xff"]}, r"x\[1\] is not UTF-8"),
        ({"x": [], "y": []}, "no examples"),
        ({"sample_weight": [1.0]}, "sample_weight has 1 values for 2 examples"),
        ({"class_weight": {"fair": 2.0}}, r"class_weight\[0\] is 'fair'"),
        ({"validation_split": 0.9}, "validation_split=0.9"),
        ({"validation_data": [TEXTS]}, "validation_data has .* parts; expected"),
        (
            {"validation_split": 0.25, "validation_data": (TEXTS, LABELS)},
            "validation_split and validation_data",
        ),
        ({"sample_weight": [1.0, 1e39]}, r"sample_weight\[1\] is 1e\+39; expected .*, at most 1e\+18"),
        ({"class_weight": {0: 1e39}}, r"class_weight\[0\] is 1e\+39; expected .*, at most 1e\+18"),
        ({"x": None}, "x is missing"),
        ({"y": [0, None]}, r"y\[1\] is None; expected one of bad, good"),
        ({"y": [[1, 0], [1, 1]]}, r"y\[1\] is \[1, 1\]; expected 2 probabilities that add up to 1"),
        ({"sample_weight": [1.0, float("nan")]}, r"sample_weight\[1\] is nan; expected a finite number, 0 or more"),
        ({"class_weight": {"good": -2.0}}, r"class_weight\['good'\] is -2.0; expected a finite number, 0 or more"),
        (
            {"class_weight": "rare"},
            "class_weight is 'rare'; expected a dict of weights by class, an array of 2 weights",
        ),
        ({"batch_size": 0}, "batch_size is 0; expected an integer, at least 1"),
        ({"validation_batch_size": -1}, "validation_batch_size is -1; expected an integer, at least 1"),
        ({"x": tf.data.Dataset.from_tensor_slices((TEXTS, LABELS)).take(0), "y": None}, "x is an empty data set"),
        (
            {"x": tf.data.Dataset.from_tensor_slices((TEXTS, LABELS)).filter(lambda x, y: False), "y": None},
            "the data set is empty",
        ),
        (
            {"x": tf.data.Dataset.from_tensor_slices((TEXTS, LABELS)), "y": None, "class_weight": "balanced"},
            "class_weight='balanced'",
        ),
    ],
)
def test_data_that_do_not_fit_are_named(classifier, change, message):
    assert re.search(message, refusal(classifier.fit, **{"x": TEXTS[:2], "y": [0, 1], "verbose": 0, **change}))


def test_evaluate_and_predict_refuse_what_fit_does(classifier):
    for method in (classifier.evaluate, classifier.predict):
        assert "batch_size is 0" in refusal(method, TEXTS[:2], batch_size=0)
        assert re.search("x is (None|missing)", refusal(method, None))
    data = tf.data.Dataset.from_tensor_slices((TEXTS, LABELS))
    assert "empty data set" in refusal(classifier.evaluate, data.take(0))
    with warnings.catch_warnings(action="ignore"):
        assert "data set is empty" in refusal(classifier.evaluate, data.filter(lambda x, y: False))
    ids = classifier.preprocessor(TEXTS[:2])
    empty = {name: values[:0] for name, values in ids.items()}
    assert "no examples" in refusal(classifier.fit, empty, np.empty(0))
    weights = np.array([1.0, np.nan])
    assert "sample_weight[1] is nan" in refusal(classifier.fit, ids, np.array([0, 1]), sample_weight=weights)


@pytest.mark.parametrize("settings", [
    {"epochs": 0}, {"epochs": -1}, {"epochs": 1.5}, {"epochs": "2"}, {"validation_split": np.nan},
    {"validation_split": "0.5"}, {"validation_split": -0.1}, {"validation_split": 1.0},
    {"validation_split": np.array([])}, {"validation_split": ""}, {"initial_epoch": -1}, {"steps_per_epoch": 0},
    {"steps_per_epoch": -1}, {"validation_steps": np.array([])}, {"validation_freq": 0}, {"batch_size": 0},
])  # fmt: skip
def test_epochs_and_splits_that_cannot_be_are_refused(classifier, settings):
    ((name, value),) = settings.items()
    expected = f"{name} is {re.escape(repr(value))}; expected an? (integer, at least [01]|number)"
    assert re.match(expected, refusal(classifier.fit, TEXTS[:4], LABELS[:4], **settings))


def test_steps_and_callbacks_are_refused_where_they_would_do_nothing(classifier):
    for settings in ({"steps": 1}, {"callbacks": [keras.callbacks.Callback()]}):
        message = refusal(classifier.predict, TEXTS, **settings)
        assert "predict accepts steps and callbacks for token ids only" in message
    message = refusal(classifier.evaluate, TEXTS, LABELS, steps=-1)
    assert message.startswith("steps is -1; expected an integer, at least 1")


def test_metrics_of_a_second_fit_begin_anew(classifier):
    classifier.fit(TEXTS[:4], LABELS[:4], verbose=0)
    classifier.evaluate(TEXTS[:3], LABELS[:3], verbose=0)
    history = classifier.fit(TEXTS[:1], LABELS[:1], verbose=0).history
    assert history["accuracy"][0] in (0.0, 1.0)  # from a single text


def test_a_value_that_a_loss_of_float32_does_not_hold_is_refused():
    regressor = official_bert.TextRegressor(CONFIG, VOCAB)
    assert "y[1] is 1e+39; expected a finite number, at most 1e+18" in refusal(regressor.fit, TEXTS[:2], [0.0, 1e39])


def test_balanced_classes_weigh_as_in_the_command(classifier):
    def rows(**arguments):
        data = classifier._create_inputs()
        return list(data.training(data.examples(TEXTS[:6], [0, 0, 0, 0, 1, 1], **arguments), 6, False, EpochCounter()))

    ((_, labels, weights),) = rows(class_weight="balanced")
    np.testing.assert_allclose(weights, np.where(labels == 1, 1.5, 0.75))
    ((_, labels, weights),) = rows(class_weight="balanced", sample_weight=[2.0] * 6)
    np.testing.assert_allclose(weights, np.where(labels == 1, 3.0, 1.5))
    regression = dataclasses.replace(classifier._create_inputs(), head=RegressionSpec())
    assert "has no classes" in refusal(regression.examples, TEXTS[:1], [1.0], None, "balanced")


@pytest.mark.parametrize(("arguments", "message"), [
    ({"labels": "ab"}, "labels is 'ab'; expected the names of two or more different classes"),
    ({"labels": ["a"]}, r"labels is \['a'\]; expected the names of two or more different classes"),
    ({"labels": 2}, "labels is 2; expected the names"),
    ({"num_classes": 2}, "num_classes=2 was given; expected the names of two or more different classes, such as"),
    ({"labels": ["a", "b"], "max_seq_length": -5}, "max_seq_length is -5; expected at least 3"),
    ({"labels": ["a", "b"], "max_seq_length": 0}, "max_seq_length is 0; expected at least 3"),
    ({"labels": ["a", "b"], "gradient_accumulation_steps": 1.5}, "gradient_accumulation_steps is 1.5; expected"),
])  # fmt: skip
def test_arguments_that_cannot_be_are_refused(arguments, message, vocab_file):
    with pytest.raises(UserError, match=message):
        official_bert.TextClassifier.from_checkpoint(CONFIG, vocab_file=vocab_file, **arguments)
    if "max_seq_length" not in arguments and arguments.get("labels") != ["a"]:  # one tag is enough
        with pytest.raises(UserError, match=message.replace("two", "one")):
            official_bert.TokenTagger.from_checkpoint(CONFIG, vocab_file=vocab_file, **arguments)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"learning_rate": float("nan")}, "learning_rate is nan; expected a positive number"),
    ({"learning_rate": -1.0}, "learning_rate is -1.0; expected a positive number"),
    ({"learning_rate": True}, "learning_rate is True; expected a positive number"),
    ({"optimizer": keras.optimizers.Adam(float("nan"))}, "the optimizer's learning_rate is nan"),
    ({"optimizer": BertAdamW(-1e-3)}, "the optimizer's learning_rate is -0.001"),
    ({"optimizer": keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(float("nan"), 9, 0.9))},
     "the optimizer's schedule returns nan for step 0"),
    ({"warmup_proportion": 2.0}, "warmup_proportion is 2.0; expected a number from 0 to 1"),
    ({"layer_decay": "0.9"}, "layer_decay is '0.9'; expected a number"),
    ({"layer_decay": 0.0}, "layer_decay is 0.0; expected a number"),
])  # fmt: skip
def test_rates_that_cannot_be_are_refused(classifier, arguments, message):
    assert re.search(message, refusal(classifier.compile, **arguments))


@pytest.mark.slow
def test_callbacks_see_true_figures_and_resuming_is_exact(classifier, tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise InterruptedError

    def backup():
        return keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), delete_checkpoint=False)

    settings = {"validation_data": (TEXTS, LABELS), "epochs": 4, "batch_size": 8, "verbose": 0}
    whole = classifier.fit(TEXTS, LABELS, **settings)
    seen = [build(), build()]
    with pytest.raises(InterruptedError):
        seen[0].fit(TEXTS, LABELS, callbacks=[backup(), Stop()], **settings)
    best = keras.callbacks.ModelCheckpoint(str(tmp_path / "best.keras"), monitor="val_loss", save_best_only=True)
    rest = seen[1].fit(TEXTS, LABELS, callbacks=[backup(), best, keras.callbacks.EarlyStopping(patience=5)], **settings)
    np.testing.assert_allclose(rest.history["val_loss"], whole.history["val_loss"][2:], rtol=1e-6)
    for ours, expected in zip(seen[1].variables, classifier.variables, strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-7, err_msg=ours.path)
    loaded = official_bert.TextClassifier.load(str(tmp_path / "best.keras"))
    assert min(rest.history["val_loss"]) == pytest.approx(loaded.evaluate(TEXTS, LABELS, verbose=0)[0], rel=1e-5)


@pytest.mark.slow
def test_keras_tensorboard_callback_writes_the_history_of_fit(classifier, tmp_path):
    callback = keras.callbacks.TensorBoard(str(tmp_path))
    settings = {"validation_data": (TEXTS, LABELS), "epochs": 2, "verbose": 0, "callbacks": [callback]}
    history = classifier.fit(TEXTS, LABELS, **settings).history
    for folder, prefix in (("train", ""), ("validation", "val_")):
        scalars = read_scalars(tmp_path / folder)
        for name in ("loss", "accuracy"):
            assert list(scalars[f"epoch_{name}"].values()) == pytest.approx(history[prefix + name], rel=1e-6)


@pytest.mark.slow
def test_any_optimizer_loss_and_metric_can_be_compiled(classifier):
    classifier.compile(
        keras.optimizers.Adam(3e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseTopKCategoricalAccuracy(2, name="top2")],
        weighted_metrics=["accuracy"],
        steps_per_execution=2,
        jit_compile=False,
    )
    before = classifier.evaluate(TEXTS, LABELS, verbose=0, return_dict=True)
    classifier.fit(TEXTS, LABELS, batch_size=8, epochs=32, verbose=0)
    after = classifier.evaluate(TEXTS, LABELS, verbose=0, return_dict=True)
    assert after["loss"] < before["loss"] / 2
    assert after["top2"] == 1.0
    assert "accuracy" in after


@pytest.mark.slow
def test_layers_can_be_frozen_and_learn_at_rates_of_their_own(classifier):
    frozen = classifier.freeze("layer_0_.*", ".*embeddings.*")
    classifier.compile(layer_decay=0.5, learning_rate=1e-3, jit_compile=False)
    before = {variable.path: variable.numpy() for variable in classifier.variables}
    classifier.fit(TEXTS, LABELS, verbose=0)
    assert classifier.optimizer.factors == {
        variable.path: 0.5 for variable in classifier.trainable_variables if "/layer_1" in f"/{variable.path}"
    }
    for variable in classifier.variables:
        changed = not np.array_equal(variable, before[variable.path])
        assert changed != any(f"{name}/" in f"{variable.path}/" for name in frozen), variable.path


@pytest.mark.slow
def test_fit_of_a_frozen_encoder_trains_the_head_and_of_frozen_layers_only_is_refused(classifier):
    classifier.freeze()
    before = {variable.path: variable.numpy() for variable in classifier.variables}
    classifier.fit(TEXTS, LABELS, verbose=0)
    moved = {each.path for each in classifier.variables if not np.array_equal(each, before[each.path])}
    assert moved == {"sequence_classifier/kernel", "sequence_classifier/bias"}
    classifier.freeze(".*")
    assert "nothing to train" in refusal(classifier.fit, TEXTS, LABELS, verbose=0)
    classifier.compile("sgd")
    assert "nothing to train" in refusal(classifier.fit, TEXTS, LABELS, verbose=0)


@pytest.mark.parametrize(("metric", "best_epoch"), [("loss", 1), ("mean_absolute_error", 1), ("accuracy", 2)])
def test_the_best_epoch_has_the_lowest_error_or_the_highest_score(metric: str, best_epoch: int):
    values = [0.5, 0.25, 0.75]
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    bias = model.layers[0].bias
    callback = best_model._BestModel(metric, lambda: values[int(bias.numpy()[0])], len(values))
    callback.set_model(model)
    callback.on_train_begin()
    for epoch, value in enumerate(values):
        bias.assign([float(epoch)])
        callback.on_epoch_end(epoch, {"val_loss": value})
    callback.on_train_end()
    assert bias.numpy() == best_epoch


@pytest.mark.slow
def test_fit_ends_with_the_weights_of_the_epoch_with_the_best_score():
    model = build()
    model.compile(learning_rate=1e-3)
    wrong = {"good": "bad", "bad": "good"}
    held_out = (TEXTS, [wrong[label] for label in LABELS])  # the model gets worse on these labels
    seen = []
    record = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(logs["val_roc_auc"]))
    settings = {"validation_data": held_out, "metric_for_best_model": "roc_auc", "callbacks": [record], "verbose": 0}
    history = model.fit(TEXTS, LABELS, epochs=6, **settings).history
    assert history["val_roc_auc"] == seen
    assert len(seen) == 6
    examples = model.head.examples(*held_out)
    assert model.head.scores(model.predict(TEXTS), examples)["roc_auc"] == max(seen) > seen[-1]
    model.fit(TEXTS, LABELS, validation_split=0.5, metric_for_best_model="loss", verbose=0)
    message = refusal(model.fit, TEXTS, LABELS, validation_data=held_out, metric_for_best_model="f1")
    assert "'f1'" in message
    assert "f1_rare_class" in message
    assert "validation_split" in refusal(model.fit, TEXTS, LABELS, metric_for_best_model="roc_auc")


@pytest.mark.slow
@pytest.mark.core
def test_two_devices():
    run_marked_tests(2, __file__)


# Each model class, its arguments, and examples whose last batch (of 5) is not full.
EXAMPLES = {
    "TextClassifier": ({"labels": ["bad", "good"]}, TEXTS[:13], LABELS[:13]),
    "TextRegressor": ({}, TEXTS[:13], [len(text) / 10 for text in TEXTS[:13]]),
    "TokenTagger": (
        {"labels": ["short", "long"]},
        [text.split() for text in TEXTS[:13]],
        [["long" if len(word) > 3 else "short" for word in text.split()] for text in TEXTS[:13]],
    ),
    "QuestionAnswerer": (
        {"max_query_length": 4, "doc_stride": 8},
        (["who sat"] * 13, TEXTS[:13]),
        [text.split()[-1] for text in TEXTS[:13]],
    ),
    "MultipleChoice": ({}, [("who", [text, "a dog", "the sun", "mat"]) for text in TEXTS[:13]], [0, 1, 2, 3] * 3 + [1]),
}


def loss_of_sentences(tags, logits):
    """A user-defined loss for tags, [B]: the mean over all tokens. Tokens without a tag have a loss of zero."""
    losses = keras.ops.sparse_categorical_crossentropy(keras.ops.maximum(tags, 0), logits, from_logits=True)
    return keras.ops.mean(losses * keras.ops.cast(tags >= 0, losses.dtype), axis=-1)


def fitted(name: str, strategy: tf.distribute.Strategy, loss=None):
    """Returns the results of fit, evaluate and predict for a model without dropout, and its weights."""
    arguments, x, y = EXAMPLES[name]
    config = tiny_config(num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    with strategy.scope():
        model = getattr(official_bert, name)(config, VOCAB, seed=3, max_seq_length=24, **arguments)
        for layer in model._flatten_layers():
            if isinstance(layer, Dropout):  # the dropout of the head
                layer.rate = 0.0
    model.compile(learning_rate=1e-4, loss=loss, jit_compile=False)
    weights = list(np.linspace(0.5, 2.0, 13))
    fit = model.fit(x, y, batch_size=5, epochs=3, sample_weight=weights, verbose=0).history
    return fit, model.evaluate(x, y, batch_size=4, verbose=0, return_dict=True), model.predict(x), model.get_weights()


@pytest.mark.two_devices
@pytest.mark.parametrize(("name", "loss"), [*((name, None) for name in EXAMPLES), ("TokenTagger", loss_of_sentences)])
def test_two_devices_equal_one(name, loss):
    strategies = (distribution.get_strategy(each) for each in ("one_device", "mirrored"))
    one, two = (fitted(name, strategy, loss) for strategy in strategies)
    for expected, found in zip(one[:2], two[:2], strict=True):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_allclose(found[key], value, atol=1e-5, err_msg=key)
    for expected, found in zip(one[3], two[3], strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert len(one[2]) == len(two[2]) == 13


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
    (tmp_path / "config.json").write_text(CONFIG.to_json())
    threads = {"TF_NUM_INTRAOP_THREADS": "4", "TF_NUM_INTEROP_THREADS": "4"}
    done = run_python("-c", _FIT_TWICE, tmp_path / "config.json", vocab_file, environment=threads)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("True\n")


def test_verbose_0_prints_nothing(capfd):
    long = " ".join(TEXTS)  # longer than the model's maximum length
    for kind, y in ((official_bert.TextClassifier, [0, 1] * 200), (official_bert.TextRegressor, [0.5] * 400)):
        model = kind(CONFIG, VOCAB, max_seq_length=8, **({"labels": ["bad", "good"]} if y[0] == 0 else {}))
        model.compile("sgd", run_eagerly=True)
        data = tf.data.Dataset.from_tensor_slices(([long] * 4, y[:4])).batch(4)
        capfd.readouterr()
        for x, labels in (([long] * 4, y[:4]), (data, None)):
            model.fit(x, labels, validation_data=([long] * 2, y[:2]), verbose=0)
            model.evaluate(x, labels, verbose=0)
        model.predict([long] * 400, verbose=0)
        assert capfd.readouterr() == ("", "")
        model.predict([long] * 400)
        shown = capfd.readouterr().out
        assert "13/13" in shown  # the progress bar
        assert "note: cut to 8 tokens (max_seq_length): 400 of 400 texts" in shown
        assert "warning: all 400 answers" in shown
        model.predict([long] * 40)
        assert "2/2" not in capfd.readouterr().out
