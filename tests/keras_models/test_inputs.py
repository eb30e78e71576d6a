"""Inputs of fit, evaluate and predict: data sets of text and of ids, row weights, and what is random in each epoch."""

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import official_bert
from official_bert.keras_models.inputs import Inputs
from official_bert.kinds.features import NO_LABEL
from tests import make
from tests.make import WORDS, assert_mentions, assert_rejected, build_text_model, refusal, slow_after, tiny_config

TEXTS = ["the cat sat", "a dog ran in the sun", "walking", "unaffable mat , and the sun ."] * 2
LABELS, NUMBERS = ["good", "bad", "good", "bad"] * 2, np.array([1, 0, 1, 0] * 2)
CONFIG = tiny_config(num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
slices = tf.data.Dataset.from_tensor_slices


def build(*, run_eagerly: bool = True, **settings) -> official_bert.TextClassifier:
    model = build_text_model(config=CONFIG, **{"labels": ["bad", "good"], **settings})
    model.compile(keras.optimizers.SGD(0.0), run_eagerly=run_eagerly)
    return model


@pytest.fixture(scope="module")
def classifier() -> official_bert.TextClassifier:
    return build()


def test_a_data_set_of_token_ids_can_be_used_for_training():
    model = build(max_seq_length=6)
    features = model.spec.featurize(model.spec.make_examples(TEXTS, None), model._tokenizer, model.max_seq_length)
    ids = slices((TEXTS, NUMBERS)).batch(8).map(lambda text, label: (model.preprocessor(text), label))
    values = next(iter(ids))[0]
    np.testing.assert_array_equal(values["input_ids"][values["input_mask"] > 0], features.input_ids)
    vectors = model.backbone.predict(ids.map(lambda inputs, label: inputs), verbose=0)["pooled_output"]
    np.testing.assert_allclose(vectors, model.backbone(model.preprocessor(TEXTS))["pooled_output"], atol=1e-6)
    weights = {"good": 3.0, 0: 0.0}
    history = model.fit(ids, validation_data=(TEXTS, LABELS), class_weight=weights, verbose=0).history
    assert int(model.optimizer.iterations) == 1
    losses = -np.log(model.predict(TEXTS)[np.arange(8), NUMBERS])
    assert history["val_loss"][0] == pytest.approx(losses.mean(), rel=1e-5)
    assert history["loss"][0] == pytest.approx((3 * NUMBERS * losses).mean(), rel=0.05)  # differs by dropout
    for data in (ids, slices((TEXTS, LABELS))):
        for change in ({"validation_split": 0.5}, {"y": NUMBERS}, {"sample_weight": NUMBERS}):
            assert_rejected(("x", *change), model.fit, data, **change)
            if "validation_split" not in change:
                assert_rejected(("x", *change), model.evaluate, data, **change)


@pytest.mark.parametrize(("columns", "class_weight", "expected"), [
    ([np.arange(8.0)], None, np.arange(8.0)), ([np.arange(8.0)[:, None]], None, np.arange(8.0)),
    ([[2.0] * 8], {"good": 3.0, 0: 0.5}, [6.0, 1.0] * 4), ([], {"good": 3.0, 0: 0.5}, [3.0, 0.5] * 4),
])  # fmt: skip
def test_sample_weight_and_class_weight_by_name_are_applied(columns, class_weight, expected, classifier):
    data = slices((TEXTS, LABELS, *columns))
    (batch,) = Inputs(classifier, class_weight=class_weight).convert_data_set(data, 8)
    np.testing.assert_array_equal(batch[2], expected)


@pytest.mark.parametrize("doc_stride", slow_after(1, [4, None]))
def test_truncated_texts_of_a_data_set_are_counted(doc_stride, monkeypatch, capsys):
    model = build(pair=True, max_seq_length=12, doc_stride=doc_stride)
    make.skip_steps(model, monkeypatch)  # the texts are counted before the steps
    firsts = ["the cat sat " * 4, "the dog", "the sun", "a mat in the sun " * 9]  # the first and the last are cut
    data = slices(((firsts, ["a dog"] * 4), [0, 1, 1, 0])).batch(1)
    model.fit(data, epochs=3, validation_data=data.take(1), verbose=2)
    model.fit(data.skip(1).take(2), validation_data=data.skip(1).take(2), verbose=2)
    model.evaluate(data, verbose=2)
    model.evaluate(data, steps=1, verbose=2)
    model.fit(data.repeat(), epochs=2, steps_per_epoch=1, validation_data=data, validation_steps=1, verbose=2)
    lines = [line for line in capsys.readouterr().out.splitlines() if "max_seq_length" in line]
    *exact, of_evaluate, of_fit, of_validation = lines
    # In windows, only the first texts of pairs are truncated. These texts are read before the epochs.
    cut, texts = "truncated to 12 tokens (max_seq_length):", "texts"
    of_data_set = f"note: validation, in 3 epochs: {cut} 3 of 3 texts"
    if doc_stride:
        cut, texts = "truncated to 4 tokens (half of a window of max_seq_length):", "first texts"
        of_data_set = f"note: {cut} 1 of 1 first text"
    expected = [f"note: in 3 epochs: {cut} 6 of 12 {texts}", of_data_set, f"note: {cut} 2 of 4 {texts}"]
    assert sorted(exact) == sorted(expected)
    assert of_evaluate.startswith(f"note: with batches read ahead: {cut}")
    assert of_fit.startswith(f"note: in 2 epochs, with batches read ahead: {cut}")
    assert of_validation.startswith(f"note: validation, in 2 epochs, with batches read ahead: {cut}")


ENDINGS, ASKED = (["the cat"], [["sat", "ran", "on", "the mat"]]), (["who sat ?"], ["the cat sat"])
WORD_ROWS, TAG_ROWS = tf.ragged.constant([["the", "cat", "sat"], ["a", "dog"]]), tf.ragged.constant([[0, 1, 2], [0, 1]])
LABEL_SETS = [["a"], [], ["c", "b"]]
WINDOWS = {"labels": ["bad", "good"], "doc_stride": 2, "max_seq_length": 5}


# Each class, its settings, and the same examples as lists and as a data set.
@pytest.mark.parametrize(("name", "settings", "lists", "data"), [
    ("TextClassifier", WINDOWS, (TEXTS, LABELS), slices((TEXTS, LABELS)).batch(3)),
    ("TextClassifier", WINDOWS, (TEXTS, LABELS), slices(({"text": TEXTS}, LABELS)).batch(4)),
    ("TextClassifier", {"labels": ["a", "b", "c"], "multi_label": True}, (TEXTS[:3], LABEL_SETS),
     slices((tf.constant(TEXTS[:3]), tf.ragged.constant(LABEL_SETS, dtype=tf.string))).batch(2)),
    ("TextClassifier", {"labels": ["True", "False"]}, (["a", "b"], ["True", "False"]),
     slices((["a", "b"], [True, False]))),
    ("TokenTagger", {"labels": ["D", "N", "V"]}, (["the cat sat", "a dog"], ["D N V", "D N"]),
     slices((WORD_ROWS, TAG_ROWS)).batch(2)),
    ("QuestionAnswerer", {"max_query_length": 8, "doc_stride": 8}, (ASKED, ["cat"]), slices((ASKED, (["cat"], [4])))),
    ("MultipleChoice", {}, (ENDINGS, [3]), slices((ENDINGS, [3]))),
])  # fmt: skip
def test_a_data_set_of_texts_gives_the_features_of_the_same_lists(name: str, settings, lists, data):
    model, (x, y) = build_text_model(name, **settings), lists
    expected = model.spec.featurize(model.spec.make_examples(x, y), model._tokenizer, model.max_seq_length)
    model.compile()
    batches = list(Inputs(model).prepare_evaluation(data, 32))
    ids = np.concatenate([batch[0]["input_ids"].numpy().ravel() for batch in batches])
    np.testing.assert_array_equal(ids[ids > 0], expected.input_ids)
    for name, values in expected.targets.items():
        columns = (batch[1][name] if isinstance(batch[1], dict) else batch[1] for batch in batches)
        targets = np.concatenate([np.ravel(column) for column in columns])
        np.testing.assert_array_equal(targets[targets != NO_LABEL], np.ravel(values)[np.ravel(values) != NO_LABEL])


@pytest.mark.parametrize(("data", "names"), [
    *[(slices(data), "(texts, labels, weights)") for data in (TEXTS, (TEXTS, LABELS, NUMBERS, NUMBERS))],
    (slices((np.arange(3), [0, 1, 0])), ("tf.int64", "string")),
    (slices((TEXTS, LABELS)).repeat(), "steps_per_epoch"),
    (tf.data.Dataset.from_generator(list, (tf.string, tf.int32)), ("shape=<unknown>", "[None]")),
    (slices(((TEXTS, TEXTS), LABELS)), ("tf.string", "pair=True")),
    (slices(({"text": TEXTS, "text_pair": TEXTS}, LABELS)), ("text_pair", "pair=True")),
])  # fmt: skip
def test_an_unsupported_data_set_is_rejected(data, names, classifier):
    assert_rejected(names, classifier.fit, data, verbose=0)


@pytest.mark.parametrize("name", ["__call__", "train_on_batch", "test_on_batch", "predict_on_batch"])
def test_methods_for_token_ids_reject_texts(name: str, classifier):
    for texts in (TEXTS, [b"a"], np.array(TEXTS), np.array(TEXTS, "S"), tf.constant(TEXTS), pd.Series(TEXTS)):
        instead = ("fit", "evaluate", "predict", "model.preprocessor(texts)")
        assert_rejected(instead, getattr(classifier, name), texts, NUMBERS)


@pytest.fixture(scope="module")
def traced() -> official_bert.TextClassifier:
    """A classifier whose steps are traced. Its training step reads the data, and does nothing with them."""
    model = build(run_eagerly=False)
    model.train_step = lambda data: {"loss": tf.zeros(())}
    return model


@pytest.mark.parametrize(("y", "weight", "names"), [
    ([0, 1, 1, 7], 1.0, ("y[1]", 7, "bad", "good", "0 to 1")),
    (["bad", "good", "bad", "fair"], 1.0, ("y[1]", "b'fair'", "bad", "good")),
    ([0, 1, 1, 0], -1.0, ("sample_weight[1]", -1.0, "1e+18")),
    ([0, 1, 1, 0], 1e39, ("sample_weight[1]", "1e+39", "1e+18")), ([[1, 0]] * 3 + [[1, 7]], 1.0, ("y[1]", "[1, 7]")),
])  # fmt: skip
def test_invalid_labels_and_weights_in_a_later_batch_are_reported_in_one_line(y, weight, names, traced, classifier):
    for learn in (traced.fit, traced.evaluate, classifier.fit):
        data = slices((TEXTS[:4], y, np.array([1.0, 1.0, 1.0, weight]))).batch(2)
        message = refusal(learn, data, verbose=0)
        assert_mentions(message, "batch 1", *names)
        assert "\n" not in message


def test_invalid_numbers_and_labels_in_a_data_set_are_reported():
    several = build(labels=["a", "b", "c"], multi_label=True)
    names, expected = ("batch 0", "y[1]", "nan", "-1e+18 to 1e+18"), ("0 to 1", "a, b, c")
    assert_rejected(names, build_text_model("TextRegressor").fit, slices((TEXTS[:2], [0.5, np.nan])))
    assert_rejected(("y[1]", *expected), several.fit, slices((TEXTS[:2], [[0, 1, 0], [0, 7, 0]])))
    assert_rejected(("y[0]", *expected), several.fit, TEXTS[:1], np.array([[1, 0]]))
    assert_rejected(("y[0]", "b'a'", *expected), several.fit, slices((TEXTS[:3], ["a", "b", "c"])))
    data = slices((TEXTS[:1], [[1, 0, 0]]))
    assert_rejected(("class_weight", "multi"), several.fit, data, class_weight={"a": 2.0})


def test_labels_passed_with_token_ids_are_checked(classifier, traced):
    ids = {name: values.numpy() for name, values in classifier.preprocessor(TEXTS[:4]).items()}
    for names, y in (
        ((7, 0, 1), np.array([0, 1, 7, 1])), (("y", "nan", "1e+18"), np.array([0, 1, np.nan, 1])),
        (("y", 2, 4), np.array([0, 1])), (("y", "tf.data.Dataset"), None),
        (("y[3]", "'fair'", "bad", "good"), ["bad", "good", "bad", "fair"]),
    ):  # fmt: skip
        for learn in (classifier.fit, classifier.evaluate):
            assert_rejected(names, learn, ids, y)
    for learn in (classifier.fit, traced.evaluate):
        assert_rejected((7, 0, 1), learn, slices((ids, [0, 1, 7, 1], [1.0] * 4)).batch(2))
    wrong = {**ids, "input_ids": ids["input_ids"] + len(WORDS)}
    assert_rejected(("x", wrong["input_ids"][0, 0], 0, len(WORDS) - 1), classifier.predict, wrong)
    names = ["bad", "good"] * 2
    expected = pytest.approx(classifier.evaluate(TEXTS[:4], names, verbose=0))
    for y in (names, np.array(names), np.array([0, 1, 0, 1])):
        assert classifier.evaluate(ids, y, verbose=0) == expected
    np.testing.assert_allclose(tf.nn.softmax(classifier.predict(ids)), classifier.predict(TEXTS[:4]), rtol=1e-5)


def test_an_error_about_unknown_keys_lists_the_keys_of_the_data_set(classifier):
    data = slices(({"review": TEXTS, "stars": [1] * 8}, LABELS))
    for each in (data, data.batch(4)):
        for method in (classifier.fit, classifier.evaluate, classifier.predict):
            selection = "data.map(lambda columns, labels: (columns['review'], labels))"
            assert_rejected(("review", "stars", "text", selection), method, each)
    assert_rejected("(columns['review'], columns['stars'])", build(pair=True).fit, data)
    selected = data.map(lambda columns, labels: (columns["review"], labels))
    for each in (selected, slices(({"text": TEXTS}, LABELS)).batch(4)):
        np.testing.assert_allclose(classifier.predict(each), classifier.predict(TEXTS), atol=1e-6)


def test_a_data_set_of_pairs_is_read():
    model, others = build(pair=True), TEXTS[1:] + TEXTS[:1]
    expected = model.predict((TEXTS, others))
    for data in ((TEXTS, others), ((TEXTS, others), NUMBERS), {"text": TEXTS, "text_pair": others}):
        np.testing.assert_allclose(model.predict(slices(data)), expected, atol=1e-6)


@pytest.fixture
def masked_lm() -> official_bert.MaskedLM:
    settings = {"max_predictions_per_seq": 2, "masked_lm_prob": 0.3, "max_seq_length": 6, "seed": 3}
    return build_text_model("MaskedLM", **settings)


def test_ids_are_passed_to_keras_with_the_weights_of_each_output():
    model = build_text_model("QuestionAnswerer")
    ids = {name: np.asarray(each) for name, each in model.preprocessor(TEXTS).items()}
    settings = {"batch_size": 3, "validation_split": 0.25, "shuffle": True, "group_by_length": False}
    weights, y = {"start_logits": np.ones(8)}, {"start_logits": NUMBERS, "end_logits": NUMBERS}
    arguments, _ = Inputs(model).prepare_fit(ids, y, weights, **settings)
    assert (arguments["shuffle"], arguments["sample_weight"]) == (True, weights)
    weights["start_logits"][2] = -1.0
    assert_rejected("sample_weight[2]", Inputs(model).prepare_fit, ids, y, weights, **settings)


def test_each_window_has_the_weight_of_its_text():
    data = Inputs(build(labels=["0", "1"], doc_stride=2, max_seq_length=6), class_weight={1: 10.0})
    texts = ["the cat sat and a dog ran in the sun", "the cat sat in the sun", "a dog ran"]
    examples = data.make_examples(texts, [0, 1, 0], sample_weight=[2.0, 3.0, 5.0])
    ((_, labels, weights),) = data.training(examples, 32, False).as_numpy_iterator()
    counts = [(weights == weight).sum() for weight in (2.0, 30.0, 5.0)]
    assert weights.tolist() == np.repeat([2.0, 30.0, 5.0], counts).tolist()
    assert counts[0] > counts[1] > 1 == counts[2]
    np.testing.assert_array_equal(labels, weights == 30.0)


@pytest.mark.parametrize(("is_compiled", "lengths"), [(False, {4, 6}), (True, {8})])
def test_lengths_are_rounded_up_more_with_jit_compile(is_compiled: bool, lengths: set[int]):
    model = build_text_model(config=CONFIG, labels=["0", "1"], max_seq_length=32)
    model.compile("sgd", jit_compile=is_compiled)
    data = Inputs(model)
    examples = data.make_examples(["a", "the cat sat"], [0, 1])
    assert {inputs["input_ids"].shape[1] for inputs, _ in data.training(examples, 1, False)} == lengths
    batches = data.evaluation(examples[::-1], 1).as_numpy_iterator()
    assert [inputs["input_mask"].sum() for inputs, _ in batches] == [3, 5]  # sorted by length


def test_the_specification_of_batches_has_their_size_if_all_have_the_same(classifier):
    data = Inputs(classifier)
    examples = data.make_examples(TEXTS, LABELS)
    assert [data.training(examples, size, True).element_spec[1].shape[0] for size in (4, 3, 9)] == [4, None, 8]


def test_epochs_may_leave_out_rows_with_equal_texts(capsys):
    model = official_bert.TextEncoder(CONFIG, "\n".join(WORDS))
    data = Inputs(model, prints_notes=False)
    examples = data.make_examples([("cat", "dog"), ("cat", "mat"), ("sun", "ran"), ("the", "sat")], None)
    batches, sizes = data.training(examples, 2, True), set()
    for data.epoch in (11, 12):
        sizes |= {len(inputs["input_ids"]) for inputs, _ in batches.as_numpy_iterator()}
    assert (sizes, capsys.readouterr().out) == ({1, 2}, "")


def test_an_unused_prediction_of_a_masked_lm_has_no_label(masked_lm):
    data = Inputs(masked_lm)
    ((_, targets),) = data.training(data.make_examples(["cat"], None), 1, False).as_numpy_iterator()
    assert targets.tolist() == [[WORDS.index("cat"), NO_LABEL]]
    assert data.read_evaluation((["cat"], None), 1, None) == data.read_evaluation(["cat"], 1, None)
    assert_rejected("sample_weight", data.make_examples, ["cat"], None, [1.0])
    assert_rejected("only texts", masked_lm.fit, slices((TEXTS, NUMBERS)))


def test_a_masked_lm_masks_different_tokens_in_each_epoch_and_text(masked_lm):
    data, texts = Inputs(masked_lm), ["the cat sat in the sun"] * 16
    lists, data_set = data.training(data.make_examples(texts, None), 8, False), data.convert_data_set(slices(texts), 8)

    def positions(batches: tf.data.Dataset, epoch: int) -> list[list[list[int]]]:
        data.epoch = epoch
        return [inputs["masked_lm_positions"].numpy().tolist() for inputs, _ in batches]

    first, second = positions(lists, 0), positions(lists, 1)
    assert first[0] != first[1]
    assert first != second
    assert [positions(batches, epoch) for batches in (lists, data_set) for epoch in (0, 1)] == [first, second] * 2
    vars(masked_lm)["seed"] = 4
    assert positions(lists, 0) != first
