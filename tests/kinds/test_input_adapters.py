"""The accepted and rejected forms of labels, weights and columns passed to fit, and the weights of classes."""

import numpy as np
import pandas as pd
import pytest
import sklearn.utils.class_weight
import tensorflow as tf

from official_bert.kinds import class_labels, input_adapters
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.features import Features, concatenate_rows
from official_bert.kinds.multi_label.model import WeightedBinaryCrossentropy
from official_bert.kinds.multi_label.spec import MultiLabelSpec
from official_bert.kinds.question_answering.questions import Answer
from official_bert.kinds.question_answering.spec import QuestionAnsweringSpec
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.kinds.vectors.spec import VectorSpec
from tests.make import assert_mentions, assert_rejected, refusal

CLASSES, PAIRS = ClassificationSpec(labels=("no", "yes")), ClassificationSpec(labels=("no", "yes"), pair=True)
SEVERAL, STARS = MultiLabelSpec(labels=("no", "yes", "maybe")), ("1", "2", "3")
NAN = float("nan")


def test_a_data_frame_gives_rows_or_the_values_of_its_only_column():
    frame = pd.DataFrame({"text": ["a", "b"], "other": ["c", "d"]})
    assert input_adapters.to_texts(frame[["text"]]) == ["a", "b"]
    assert_rejected(("x", "other", "x['text']"), input_adapters.to_texts, frame[["other", "text"]])
    assert input_adapters.to_pairs(frame) == (["a", "b"], ["c", "d"])
    swapped = pd.DataFrame({"text_pair": ["c", "d"], "text": ["a", "b"]})
    assert input_adapters.to_pairs(swapped) == (["a", "b"], ["c", "d"])
    assert_rejected(("x", "id", "text", "text_pair"), input_adapters.to_pairs, swapped.assign(id=[1, 2]))
    for names in {"text_pair": "context", "text": "question"}, {}:
        (first, _) = QuestionAnsweringSpec().make_examples(swapped.rename(columns=names), None)
        assert (first.text, first.context) == ("a", "c")
    assert CLASSES.parse_labels(pd.DataFrame({"label": ["yes", "no"]})) == [1, 0]


def test_the_columns_of_a_data_frame_are_matched_by_name():
    head, several = ClassificationSpec(labels=("no", "yes", "3")), MultiLabelSpec(labels=("no", "yes", "3"))
    y = pd.DataFrame({"yes": [0, 1], "3": [1, 0], "no": [0, 0]})
    assert head.parse_labels(y) == [2, 1]
    assert several.parse_labels(y) == [(2,), (1,)]
    assert several.parse_labels(pd.DataFrame(y.to_numpy())) == [(1,), (0,)]
    assert several.parse_labels([np.array([0.5, 0.6, 0.4])]) == [(1,)]
    assert several.parse_rows([["3", "no", "yes"], ["no"]]) is None  # three names for three classes are not numbers
    for either in (head, several):
        assert_rejected(("y", "3, yes", "no, yes, 3"), either.parse_labels, y[["3", "yes"]])
    assert several.parse_labels(pd.DataFrame({"no": [1, True], "yes": [0, False], "3": [0, 0]})) == [(0,), (0,)]
    gap = pd.DataFrame({"no": [1, 0], "yes": [0, 0], "3": pd.array([0, None], "Int64")})
    assert_rejected(("y[1]", NAN, "no, yes, 3"), several.parse_labels, gap)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_two_columns_are_a_pair_for_any_number_of_rows(number):
    first, second = ["a", "b", "c"][:number], ["d", "e", "f"][:number]
    rows = list(zip(first, second, strict=True))
    columns = [
        (first, second), [first, second], [np.array(first), np.array(second)], [tf.constant(first), second],
        {"text": first, "text_pair": second},
    ]  # fmt: skip
    for x in (*columns, rows, np.array(rows), pd.DataFrame(rows)):
        assert input_adapters.to_pairs(x) == (first, second)
        assert [(each.text_a, each.text_b) for each in PAIRS.make_examples(x, None)] == rows
    for x in columns[:4]:
        assert [each.texts for each in VectorSpec().make_training_examples(x, None)] == rows


@pytest.mark.parametrize("x", [
    [["a", "b"], ["c", "d"]], (["a", "b"], ["c", "d"]), [("a", "b")], np.array([["a", "b"]]), [tf.constant(["a"]), "b"],
    pd.DataFrame({"one": ["a"], "two": ["b"]}), (pd.Series(["a"]), pd.Series(["b"])),
])  # fmt: skip
def test_pairs_are_rejected_by_a_model_for_single_texts(x):
    place = "x['one']" if isinstance(x, pd.DataFrame) else "x[0]"
    assert_rejected((place, "pair=True"), CLASSES.make_examples, x, None)


@pytest.mark.parametrize("rows", [[["a", "b"]], [["a", "b"]] * 3, [np.array(["a", "b"])] * 4])
def test_ambiguous_rows_of_pairs_are_rejected(rows):
    for read in (input_adapters.to_pairs, lambda x: QuestionAnsweringSpec().make_examples(x, None)):
        assert_rejected(("x", len(rows), "x = [tuple(row) for row in x]"), read, rows)


@pytest.mark.parametrize("y", [
    [("cat", 4)], [["cat", 4]], np.array([["cat", 4]], object), pd.DataFrame({"text": ["cat"], "start": [4]}), ["cat"],
])  # fmt: skip
def test_answers_with_or_without_positions_are_accepted(y):
    (example,) = QuestionAnsweringSpec().make_examples((["who"], ["the cat, a cat"]), y)
    assert example.answers == (Answer("cat", 4),)


@pytest.mark.parametrize("y", [
    [[1], [0]], np.array([[1], [0]]), np.array([[1.0], [0.0]]), [["yes"], ["no"]], [[0, 1], [1, 0]],
    [[0.3, 0.6995], [1, 0]],  # adds up to almost 1
    np.eye(2)[[1, 0]], tf.constant([[1], [0]]), tf.one_hot([1, 0], 2), np.array([1.0, 0.0]), [True, False],
])  # fmt: skip
def test_column_vectors_and_one_hot_rows_of_labels_are_accepted(y):
    assert CLASSES.parse_labels(y) == [1, 0]
    assert RegressionSpec().parse_labels([[1.5], [2]]) == [1.5, 2.0]


def test_whole_floats_are_accepted_as_class_numbers():
    assert class_labels.class_name(3.0) == class_labels.class_name("3.00") == class_labels.class_name("3") == "3"
    for name in ("3.5", "a.0", "3.", ".0", "v1.0", "01", "1e0", ""):
        assert class_labels.class_name(name) == name
    assert class_labels.learn_label_names([10, "2", -1.0]) == ["-1", "2", "10"]


@pytest.mark.parametrize(("labels", "y", "numbers"), [
    (["True", "False"], [True, False], [0, 1]), (["False", "True"], [True, False], [1, 0]),
    (["False", "True"], [1, 0], [1, 0]), (["True", "False"], np.array([True, False]), [0, 1]),
    (["1", "2", "n/a"], [1, 2], [0, 1]), (["1", "2", "n/a"], np.array([2.0]), [1]),
    (["1.0", "1.5", "2.0"], [1.0, 2.0, 1.5], [0, 2, 1]), (["1.0", "0.5"], [1], [0]),
    (["3", "1"], [1, 3], [1, 0]), (["no", "yes"], [True, 0], [1, 0]), (["1", "0"], [1, 0], [0, 1]),
    (STARS, [1, 3.0, "2", np.int64(2), [1], [0, 0, 1]], [0, 2, 1, 1, 0, 2]), (["a", "b"], [1, 0, "b"], [1, 0, 1]),
    (["1", "3.0", "b", "-2"], ["1.0", b"3", "b", "-2.00"], [0, 1, 2, 3]),
])  # fmt: skip
def test_values_are_matched_with_numeric_and_boolean_class_names(labels, y, numbers: list[int]):
    assert class_labels.class_numbers(y, labels) == numbers


@pytest.mark.parametrize(("labels", "value"), [
    (["True", "False"], 1), (["1", "2", "n/a"], 0), (["1.0", "1.5"], 0), (["0.5", "no"], 1), (["2", "no"], True),
    (STARS, 0), (STARS, np.zeros([3, 4])), (["1", "3.0", "b", "-2"], "1.5"),
])  # fmt: skip
def test_numbers_that_are_not_class_names_are_rejected(labels, value):
    assert_rejected(("y[0]", ", ".join(labels)), class_labels.class_numbers, [value], labels)


@pytest.mark.parametrize(("head", "right", "names", "wrong"), [
    (CLASSES, 0, ("no", "yes", "0 to 1"),
     [None, NAN, 0.5, 2, -1, "maybe", [0, 2], [1, 1], [0.5, 0.5], [0, 1, 0], [], object(), np.array([[0, 1]])]),
    (SEVERAL, [], (), [np.array([1.0, NAN, 0.0]), np.array([0, 2, 1]), np.array([1, 0, -1]), [1, 0, 0], ["no", "no"]]),
    (RegressionSpec(), 0.5, ("-1e+18 to 1e+18",), [None, float("inf"), NAN, 1e39, "a", [1.0, 2.0]]),
])  # fmt: skip
def test_an_invalid_label_is_reported_in_one_line(head, right, names, wrong):
    for value in wrong:
        message = refusal(head.parse_labels, [right, value])
        assert_mentions(message, "y[1]", *names)
        assert "\n" not in message


@pytest.mark.parametrize(("labels", "wrong", "right", "expected"), [
    ("ab", [[1, 0], [0, 1]], [[0, 1], [0], []], [(0, 1), (0,), ()]), ("a", [[0], [0]], [[0], []], [(0,), ()]),
    ("01", [[False, 1.0]], [["0", "1"]], [(0, 1)]),
])  # fmt: skip
def test_lists_that_could_be_indices_or_indicators_are_rejected(labels, wrong, right, expected):
    head = MultiLabelSpec(labels=tuple(labels))
    assert_rejected(("y[0]", f"of {', '.join(labels)}", "np.array(y)"), head.parse_labels, wrong)
    assert head.parse_labels(right) == expected
    assert head.parse_labels(np.array(wrong)) == [tuple(np.flatnonzero(row)) for row in wrong]


@pytest.mark.parametrize(("values", "names"), [
    *[(value, ("x", repr(value))) for value in (None, 5, {"text": ["a"]}, {"a"}, "a text")],
    *[(["a \U0001f600", half], ("x[1]", "surrogate", ascii(half))) for half in ("a\ud800", "\udc80")],
    *[(["a", missing, "b", missing], ("x[1]", missing, 2, 4))
      for missing in (None, NAN, np.float32("nan"), pd.NA, pd.NaT)],
])  # fmt: skip
def test_values_that_are_not_texts_are_rejected(values, names):
    assert_rejected(names, input_adapters.to_texts, values)


@pytest.mark.parametrize("wrong", [NAN, -1.0, float("inf"), None, "a"])
def test_weights_must_be_finite_and_nonnegative(wrong):
    names = (repr(wrong), 0, 1e18)
    assert_rejected(("sample_weight[1]", *names), input_adapters.check_weights, [1.0, wrong], "sample_weight")
    weights = {"no": 1.0, "yes": wrong}
    assert_rejected(("class_weight['yes']", *names), class_labels.weights_by_class, weights, ["no", "yes"])
    np.testing.assert_array_equal(input_adapters.check_weights(np.array([2, 0]), "sample_weight"), [2.0, 0.0])


def test_class_weights_are_a_dict_or_in_the_order_of_the_labels():
    assert_rejected(("class_weight", [1.0] * 3, 2), class_labels.weights_by_class, [1.0] * 3, ["no", "yes"])
    y = np.array(["yes", "no", "no", "no"])
    weights = sklearn.utils.class_weight.compute_class_weight("balanced", classes=np.array(["no", "yes"]), y=y)
    np.testing.assert_allclose(class_labels.weights_by_class(weights, ["no", "yes"]), [4 / 6, 2.0])


def test_invalid_or_duplicate_class_names_are_rejected():
    for labels in [None, "a"], ["a", np.nan], [["a"], ["b"]], [b"a", b"b"], ["1", "1.0"], [1, 1.0], ["a", "a"]:
        assert_rejected(("labels", labels, "two"), class_labels.check_label_names, labels, 2, {})


def features(labels: list) -> Features:
    row = np.zeros(2, np.int32)
    return concatenate_rows([row] * len(labels), [row] * len(labels), {"labels": np.array(labels)}, {})


def test_balanced_weights_give_each_class_the_same_total_weight():
    weigh, rows = ClassificationSpec(labels=("0", "1")).apply_class_weights, features([0, 1, 1, 1, 1, 1])
    np.testing.assert_allclose(weigh(["balanced"], rows)[1], [3.0, 0.6, 0.6, 0.6, 0.6, 0.6])
    np.testing.assert_allclose(weigh(["2", "0.5"], rows)[1], [2, 0.5, 0.5, 0.5, 0.5, 0.5])
    np.testing.assert_allclose(weigh(["0", "1e18"], rows)[1], [0, *[1e18] * 5])
    assert weigh([], rows)[1] is None
    assert_rejected(("--class_weights", "regression"), RegressionSpec().apply_class_weights, ["1", "2"], rows)
    for wrong in ("3", "3,nan", "3,inf", "3,-1", "3,1e39"):
        assert_rejected(("--class_weights", wrong, 2, "0, 1"), weigh, wrong.split(","), rows)
    numbers = np.array([0, 0, 0, 2])  # without a row of class 1
    weights = class_labels.balanced_weights(numbers, classes=3)
    np.testing.assert_allclose(weights[[0, 2]], [2 / 3, 2.0])
    assert weights[numbers].mean() == pytest.approx(1.0)


def test_balanced_weights_of_multi_label_models_increase_rare_positive_examples():
    weigh, rows = MultiLabelSpec(labels=("a", "b")).apply_class_weights, features([[1, 0], [1, 1], [1, 0], [0, 0]])
    np.testing.assert_allclose(weigh(["balanced"], rows)[0].positive_weights, [1 / 3, 3.0])
    assert weigh(["2", "0.5"], rows)[0].positive_weights == (2.0, 0.5)
    assert weigh([], rows)[0].positive_weights == ()
    assert_rejected(("b", "balanced"), weigh, ["balanced"], features([[1, 0]]))
    assert_rejected(("--class_weights", 3, 2, "a, b"), weigh, ["3"], rows)


def test_weighted_binary_crossentropy_scales_the_positive_term():
    rng = np.random.default_rng(0)
    targets, logits = (rng.random((5, 2)) < 0.5).astype(np.float32), rng.normal(0, 2, (5, 2)).astype(np.float32)
    loss, chances = WeightedBinaryCrossentropy((3.0, 1.0)), 1 / (1 + np.exp(-logits))
    expected = -(targets * np.log(chances) * [3, 1] + (1 - targets) * np.log(1 - chances)).mean()
    for each in (loss, WeightedBinaryCrossentropy.from_config(loss.get_config())):
        np.testing.assert_allclose(each(targets, logits), expected, rtol=1e-5)
