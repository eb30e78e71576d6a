"""tf.data in fit, evaluate and predict: data sets of text, of text and labels, and of ids."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.errors import UserError
from official_bert.keras_models.inputs import EpochCounter
from official_bert.kinds.features import NO_LABEL
from tests.conftest import WORDS
from tests.make import VOCAB, refusal, tiny_config

TEXTS = ["the cat sat", "a dog ran in the sun", "walking", "unaffable mat , and the sun ."] * 2
LABELS = ["good", "bad", "good", "bad"] * 2
CONFIG = tiny_config(num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
slices = tf.data.Dataset.from_tensor_slices


@pytest.fixture(scope="module")
def classifier() -> official_bert.TextClassifier:
    return official_bert.TextClassifier(CONFIG, VOCAB, labels=["bad", "good"])


def test_the_preprocessor_may_be_used_first_within_map():
    model = official_bert.TextClassifier(CONFIG, VOCAB, labels=["bad", "good"])
    features = model.head.featurize(model.head.examples(TEXTS, None), model._tokenizer, model.max_seq_length)
    expected = [features.input_ids.tolist()]
    ids = next(iter(slices(TEXTS).batch(8).map(lambda texts: model.preprocessor(texts))))
    for values in (ids, model.preprocessor(tf.constant(TEXTS))):
        assert [tf.boolean_mask(values["input_ids"], values["input_mask"] > 0).numpy().tolist()] == expected


def test_a_data_set_of_ids_trains_as_well(classifier):
    numbers = np.array([classifier.labels.index(label) for label in LABELS])
    classifier.compile(keras.optimizers.SGD(0.0))
    ids = slices((TEXTS, numbers)).batch(4).map(lambda text, label: (classifier.preprocessor(text), label))
    weights = {"good": 3.0, 0: 0.0}
    history = classifier.fit(ids, validation_data=(TEXTS, LABELS), class_weight=weights, verbose=0).history
    assert int(classifier.optimizer.iterations) == 2
    losses = -np.log(classifier.predict(TEXTS)[np.arange(8), numbers])
    assert history["val_loss"][0] == pytest.approx(losses.mean(), rel=1e-5)
    assert history["loss"][0] == pytest.approx((3 * numbers * losses).mean(), rel=0.05)  # differs by dropout


def test_a_column_of_weights_is_the_weights(classifier):
    weights = np.arange(8.0)
    for given in (weights, weights[:, None]):
        (batch,) = classifier._create_inputs().convert_data_set(slices((TEXTS, LABELS, given)), 8, EpochCounter())
        np.testing.assert_array_equal(batch[2], weights)


def test_weights_by_class_name_count_in_a_data_set_of_text(classifier):
    data = slices((TEXTS, LABELS, [2.0] * 8))
    inputs, weights = classifier._create_inputs(), {"good": 3.0, 0: 0.5}
    (batch,) = inputs.convert_data_set(data, 8, EpochCounter(), weights)
    assert batch[2].numpy().tolist() == [6.0, 1.0] * 4
    (batch,) = inputs.convert_data_set(data.map(lambda x, y, _: (x, y)), 8, EpochCounter(), weights)
    assert batch[2].numpy().tolist() == [3.0, 0.5] * 4
    assert "class_weight[0] is 'fair'" in refusal(classifier.fit, data, class_weight={"fair": 1.0})


def lines_on_cut_texts(capsys) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if "max_seq_length" in line]


def cut_pairs(doc_stride: int | None):
    """Returns a text-pair model and batches of one pair. The first and the last pair are truncated."""
    settings = {"labels": ["bad", "good"], "pair": True, "max_seq_length": 12, "doc_stride": doc_stride}
    firsts = ["the cat sat " * 4, "the dog", "the sun", "a mat in the sun " * 9]
    data = slices(((firsts, ["a dog"] * 4), [0, 1, 1, 0])).batch(1)
    return official_bert.TextClassifier(CONFIG, VOCAB, **settings), data


@pytest.mark.parametrize("doc_stride", [None, 4])
def test_cut_texts_of_a_data_set_are_counted(doc_stride, capsys):
    model, data = cut_pairs(doc_stride)
    model.fit(data, epochs=3, validation_data=data.take(1), verbose=2)
    assert lines_on_cut_texts(capsys) == [
        "note: in 3 epochs: cut to 12 tokens (max_seq_length): 6 of 12 texts",
        "note: validation, in 3 epochs: cut to 12 tokens (max_seq_length): 3 of 3 texts",
    ]
    model.fit(data.skip(1).take(2), validation_data=data.skip(1).take(2), verbose=2)
    assert not lines_on_cut_texts(capsys)


def test_cut_texts_of_evaluate_are_counted(capsys):
    model, data = cut_pairs(None)
    model.evaluate(data, verbose=2)
    assert lines_on_cut_texts(capsys) == ["note: cut to 12 tokens (max_seq_length): 2 of 4 texts"]
    model.evaluate(data, steps=1, verbose=2)
    model.fit(data.repeat(), epochs=2, steps_per_epoch=1, validation_data=data, validation_steps=1, verbose=2)
    of_evaluate, of_fit, of_validation = lines_on_cut_texts(capsys)
    assert of_evaluate.startswith("note: with batches read ahead: cut to 12 tokens")
    assert of_fit.startswith("note: in 2 epochs, with batches read ahead: cut to 12 tokens")
    assert of_validation.startswith("note: validation, in 2 epochs, with batches read ahead: cut to 12 tokens")


# Each class, its settings, and the same examples as lists and as a data set.
MODELS = {
    "windows": (
        "TextClassifier", {"labels": ["bad", "good"], "doc_stride": 2, "max_seq_length": 5},
        (TEXTS, LABELS), slices((TEXTS, LABELS)).batch(3),
    ),
    "several": (
        "TextClassifier", {"labels": ["a", "b", "c"], "multi_label": True},
        (TEXTS[:3], [["a"], [], ["c", "b"]]),
        slices((tf.constant(TEXTS[:3]), tf.ragged.constant([["a"], [], ["c", "b"]], dtype=tf.string))).batch(2),
    ),
    "tagger of words": (
        "TokenTagger", {"labels": ["D", "N", "V"]},
        (["the cat sat", "a dog"], ["D N V", "D N"]),
        slices(
            (tf.ragged.constant([["the", "cat", "sat"], ["a", "dog"]]), tf.ragged.constant([[0, 1, 2], [0, 1]]))
        ).batch(2),
    ),
    "answerer with places": (
        "QuestionAnswerer", {"max_query_length": 8, "doc_stride": 8},
        ((["who sat ?"], ["the cat sat"]), ["cat"]),
        slices(((["who sat ?"], ["the cat sat"]), (["cat"], [4]))),
    ),
    "choice": (
        "MultipleChoice", {},
        ((["the cat"], [["sat", "ran", "on", "the mat"]]), [3]),
        slices(((["the cat"], [["sat", "ran", "on", "the mat"]]), [3])),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_data_set_of_text_is_the_lists_of_its_examples(name):
    class_name, settings, (x, y), data = MODELS[name]
    model = getattr(official_bert, class_name)(CONFIG, VOCAB, **settings)
    expected = model.head.featurize(model.head.examples(x, y), model._tokenizer, model.max_seq_length)
    model.compile()
    batches = list(model._create_inputs().prepare_evaluation(data, 32))
    ids = [batch[0]["input_ids"].numpy().ravel() for batch in batches]
    ids = [row[row > 0] for row in ids]
    np.testing.assert_array_equal(np.concatenate(ids), expected.input_ids)
    for name, values in expected.targets.items():
        columns = (batch[1][name] if isinstance(batch[1], dict) else batch[1] for batch in batches)
        targets = np.concatenate([np.ravel(column) for column in columns])
        np.testing.assert_array_equal(targets[targets != NO_LABEL], np.ravel(values)[np.ravel(values) != NO_LABEL])


def test_a_masked_lm_takes_data_sets_of_text():
    model = official_bert.MaskedLM(CONFIG, VOCAB)
    data = slices(TEXTS).batch(4)
    model.compile()
    batches = list(model._create_inputs().convert_data_set(data, 32, EpochCounter()))
    assert [len(ids["input_ids"]) for ids, _ in batches] == [4, 4]
    # The data set yields each text in both batches, masked differently each time.
    assert not np.array_equal(batches[0][0]["input_ids"], batches[1][0]["input_ids"])
    (validation,) = model._create_inputs().prepare_evaluation(TEXTS, 32)
    assert validation[0]["input_ids"].shape[0] == 8


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (slices(TEXTS), "data set contains no labels"),
        (slices((np.arange(3), [0, 1, 0])), "texts have the specification .*expected a string"),
        (slices((TEXTS, LABELS)).repeat(), "infinite; pass steps_per_epoch"),
        (tf.data.Dataset.from_generator(list, (tf.string, tf.int32)), "expected a known shape"),
    ],
)
def test_a_data_set_that_does_not_fit_is_named(data, message, classifier):
    with pytest.raises(UserError, match=message):
        classifier.fit(data, verbose=0)


def test_a_truth_value_in_a_data_set_is_the_class_of_its_name(tiny_config, vocab_file):
    model = official_bert.TextClassifier.from_checkpoint(tiny_config, labels=["True", "False"], vocab_file=vocab_file)
    truth, names = [True, False, False, True], ["True", "False", "False", "True"]
    expected = model.evaluate(TEXTS[:4], names, verbose=0)
    for labels in (truth, names):
        np.testing.assert_allclose(model.evaluate(slices((TEXTS[:4], labels)).batch(2), verbose=0), expected, rtol=1e-5)
    with pytest.raises(UserError, match="is 1; expected one of True, False$"):
        model.evaluate(slices((TEXTS[:4], [1, 0, 0, 1])).batch(2), verbose=0)


@pytest.mark.parametrize(("columns", "message"), [
    (([0, 1, 1, 7],), r"y\[1\] is 7; expected one of bad, good, or a number from 0 to 1"),
    ((["bad", "good", "bad", "fair"],), r"y\[1\] is b'fair'; expected one of bad, good"),
    (([0, 1, 1, 0], [1.0, 1.0, 1.0, -1.0]), r"sample_weight\[1\] is -1.0; expected .*, at most 1e\+18"),
    (([0, 1, 1, 0], np.array([1.0, 1.0, 1.0, 1e39])), r"sample_weight\[1\] is 1e\+39; expected .*, at most 1e\+18"),
    (([[1, 0], [1, 0], [1, 0], [1, 7]],), r"y\[1\] is .*; expected"),
])  # fmt: skip
def test_wrong_labels_and_weights_of_a_later_batch_are_named_in_one_line(columns, message, classifier):
    data = slices((TEXTS[:4], *columns)).batch(2)
    for learn in (classifier.fit, classifier.evaluate):
        with pytest.raises(UserError, match=f"^in batch 1 of the data set, {message}.*$") as raised:
            learn(data, verbose=0)
        assert "\n" not in str(raised.value)


def test_wrong_numbers_for_texts_of_a_data_set_are_named_in_one_line():
    regressor = official_bert.TextRegressor(CONFIG, VOCAB)
    message = refusal(regressor.fit, slices((TEXTS[:2], [0.5, np.nan])).batch(1))
    assert message == "in batch 1 of the data set, y[0] is nan; expected a finite number, at most 1e+18"
    several = official_bert.TextClassifier(CONFIG, VOCAB, labels=["a", "b"], multi_label=True)
    message = refusal(several.fit, slices((TEXTS[:2], [[0, 1], [0, 7]])).batch(1))
    assert "expected a list of names or numbers, or an array of numbers from 0 to 1 for each of a, b" in message


def test_labels_of_ids_are_checked(classifier):
    ids = {name: values.numpy() for name, values in classifier.preprocessor(TEXTS[:4]).items()}
    wrong = {
        "a label is 7; expected a number from 0 to 1": np.array([0, 1, 7, 1]),
        "y contains nan; expected finite numbers, at most 1e+18": np.array([0, 1, np.nan, 1]),
        "y has 2 values for 4 examples": np.array([0, 1]),
        "the examples have no labels": None,
        "y[3] is 'fair'; expected one of bad, good": ["bad", "good", "bad", "fair"],
    }
    for message, y in wrong.items():
        for learn in (classifier.fit, classifier.evaluate):
            assert refusal(learn, ids, y).startswith(message)
    message = refusal(classifier.fit, slices((ids, [0, 1, 7, 1])).batch(2))
    assert message == "a label is 7; expected a number from 0 to 1"
    with pytest.raises(UserError, match=f"^x contains the id .*; expected numbers from 0 to {len(WORDS) - 1}$"):
        classifier.predict({**ids, "input_ids": ids["input_ids"] + len(WORDS)})
    figures = [classifier.evaluate(ids, y, verbose=0) for y in (["bad", "good"] * 2, np.array([0, 1, 0, 1]))]
    assert figures[0] == figures[1]


def test_labels_of_a_data_set_that_are_no_lists_are_named():
    model = official_bert.TextClassifier(CONFIG, VOCAB, labels=["a", "b", "c"], multi_label=True)
    message = refusal(model.fit, slices((TEXTS[:3], ["a", "b", "c"])))
    assert "y[0] is b'a'; expected a list of names or numbers" in message
    assert "an array of numbers from 0 to 1 for each of a, b, c" in refusal(model.fit, TEXTS[:1], np.array([[1, 0]]))
    message = refusal(model.fit, slices((TEXTS[:1], [[1, 0, 0]])), class_weight={"a": 2.0})
    assert "class_weight is for models with one label per text" in message


def test_nothing_to_predict_is_said(classifier):
    assert "no examples" in refusal(classifier.predict, [])


def test_a_data_set_with_other_keys_is_refused_with_those_that_it_has(classifier):
    columns = {"review": TEXTS, "stars": [1] * 8}
    for data in (slices((columns, LABELS)), slices((columns, LABELS)).batch(4)):
        message = (
            "the data set has the keys review, stars; expected text. Select the texts: data.map(.*columns['review']"
        )
        for method in (classifier.fit, classifier.evaluate, classifier.predict):
            assert refusal(method, data).startswith(message.partition(".*")[0])
        data = data.map(lambda columns, labels: (columns["review"], labels))
        assert classifier.predict(data).shape == (8, 2)


def test_a_data_set_with_the_key_text_is_read(classifier):
    windows = official_bert.TextClassifier(CONFIG, VOCAB, labels=["bad", "good"], doc_stride=4)
    for model in (classifier, windows):
        data = slices(({"text": TEXTS}, LABELS)).batch(4)
        assert model.evaluate(data, verbose=0) == pytest.approx(model.evaluate(TEXTS, LABELS, verbose=0), rel=1e-5)
        np.testing.assert_allclose(model.predict(data), model.predict(TEXTS), atol=1e-6)


def test_two_columns_of_a_data_set_need_a_model_of_pairs(classifier):
    assert "create the model with pair=True" in refusal(classifier.fit, slices(((TEXTS, TEXTS), LABELS)))
    message = refusal(classifier.fit, slices(({"text": TEXTS, "text_pair": TEXTS}, LABELS)))
    assert message.endswith("For pairs of texts, create the model with pair=True")
