"""Input adapters: the accepted and rejected forms of labels, weights and columns passed to fit."""

import re

import numpy as np
import pandas as pd
import pytest
import sklearn.utils.class_weight
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.kinds import class_labels, input_adapters
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.multi_label.spec import MultiLabelSpec
from official_bert.kinds.question_answering.spec import QuestionAnsweringSpec
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.kinds.vectors.spec import VectorSpec
from tests.make import refusal


class Frame:
    """Like a pandas DataFrame: iterating yields the column names."""

    def __init__(self, **columns: list) -> None:
        self.columns = list(columns)
        self._rows = np.array(list(zip(*columns.values(), strict=True)))

    def __iter__(self):
        return iter(self.columns)

    def __getitem__(self, name: str) -> list:
        return self._rows[:, self.columns.index(name)].tolist()

    def to_numpy(self) -> np.ndarray:
        return self._rows


def test_a_frame_is_its_rows_and_of_one_column_its_values():
    assert input_adapters.to_texts(Frame(text=["a", "b"])) == ["a", "b"]
    assert input_adapters.to_pairs(Frame(text=["a", "b"], other=["c", "d"])) == (["a", "b"], ["c", "d"])
    head = ClassificationSpec(labels=("no", "yes"))
    assert head.parse_labels(Frame(label=["yes", "no"])) == [1, 0]
    assert head.parse_labels(Frame(no=[0, 1], yes=[1, 0])) == [1, 0]


def test_the_columns_of_a_frame_are_known_by_their_names():
    head, several = ClassificationSpec(labels=("no", "yes", "3")), MultiLabelSpec(labels=("no", "yes", "3"))
    y = {"yes": [0, 1], "3": [1, 0], "no": [0, 0]}
    assert head.parse_labels(Frame(**y)) == [2, 1]
    assert several.parse_labels(Frame(**y)) == [(2,), (1,)]
    without_names = Frame(**dict(zip("012", y.values(), strict=True)))
    without_names.columns = [0, 1, 2]
    assert several.parse_labels(without_names) == [(1,), (0,)]
    for either in (head, several):
        told = refusal(either.parse_labels, Frame(yes=[1], **{"3": [0]}))
        assert "y has the columns yes, 3; expected one for each of no, yes, 3" in told
    assert input_adapters.to_pairs(Frame(text_pair=["c", "d"], text=["a", "b"])) == (["a", "b"], ["c", "d"])


@pytest.mark.parametrize("number", [1, 2, 3])
def test_two_columns_are_a_pair_whatever_the_number_of_rows(number):
    first, second = ["a", "b", "c"][:number], ["d", "e", "f"][:number]
    rows = list(zip(first, second, strict=True))
    columns = [
        (first, second), [first, second], [np.array(first), np.array(second)], [tf.constant(first), second],
        {"text": first, "text_pair": second},
    ]  # fmt: skip
    for x in (*columns, rows, np.array(rows), Frame(one=first, other=second)):
        assert input_adapters.to_pairs(x) == (first, second)
        examples = ClassificationSpec(labels=("no", "yes"), pair=True).examples(x, None)
        assert [(each.text_a, each.text_b) for each in examples] == rows
    for x in columns[:4]:
        assert [each.texts for each in VectorSpec().training_examples(x, None)] == rows
    for x in columns[1:4]:  # for a model that was not built for pairs
        with pytest.raises(UserError, match=r"x\[0\] is .*; expected a text"):
            ClassificationSpec(labels=("no", "yes")).examples(x, None)


@pytest.mark.parametrize("rows", [[["a", "b"]], [["a", "b"]] * 3, [np.array(["a", "b"])] * 4])
def test_rows_of_pairs_that_might_be_columns_are_refused(rows):
    for read in (input_adapters.to_pairs, lambda x: QuestionAnsweringSpec().examples(x, None)):
        assert re.search(rf"x is a list of {len(rows)} lists, .*columns; give rows as tuples", refusal(read, rows))


@pytest.mark.parametrize("row", [
    np.array([1.0, np.nan, 0.0]), np.array([0, 2, 1]), np.array([1, 0, -1]), [1, 0, 0], ["no", "no"],
])  # fmt: skip
def test_what_is_no_row_of_several_classes_is_refused(row):
    with pytest.raises(UserError, match=r"y\[0\] is [^\n]*expected") as caught:
        MultiLabelSpec(labels=("no", "yes", "maybe")).parse_labels([row])
    assert "\n" not in str(caught.value)


def test_a_gap_in_a_frame_of_several_classes_is_named():
    gap = Frame(no=[1, 0], yes=[0, None])  # NumPy converts it to an object array, like nullable pandas integers
    assert MultiLabelSpec(labels=("no", "yes")).parse_labels(Frame(no=[1, True], yes=[0, False])) == [(0,), (0,)]
    assert "y[1] is array([ 0., nan]); expected" in refusal(MultiLabelSpec(labels=("no", "yes")).parse_labels, gap)


@pytest.mark.parametrize("y", [
    [[1], [0]], np.array([[1], [0]]), np.array([[1.0], [0.0]]), [["yes"], ["no"]], [[0, 1], [1, 0]],
    np.eye(2)[[1, 0]], tf.constant([[1], [0]]), tf.one_hot([1, 0], 2), np.array([1.0, 0.0]), [True, False],
])  # fmt: skip
def test_labels_in_a_column_of_their_own_or_one_hot_are_classes(y):
    assert ClassificationSpec(labels=("no", "yes")).parse_labels(y) == [1, 0]
    assert RegressionSpec().parse_labels([[1.5], [2]]) == [1.5, 2.0]


def test_a_whole_number_with_a_point_is_the_class_of_the_number():
    assert class_labels.class_numbers(["1.0", "3", "-2.0"], ["1", "3.0", "-2"]) == [0, 1, 2]
    assert class_labels.class_name(3.0) == class_labels.class_name("3.00") == class_labels.class_name("3") == "3"
    for name in ("3.5", "a.0", "3.", ".0", "v1.0", "01", "1e0", ""):
        assert class_labels.class_name(name) == name


@pytest.mark.parametrize(("labels", "y", "numbers"), [
    (["True", "False"], [True, False], [0, 1]), (["False", "True"], [True, False], [1, 0]),
    (["False", "True"], [1, 0], [1, 0]), (["True", "False"], np.array([True, False]), [0, 1]),
    (["1", "2", "n/a"], [1, 2], [0, 1]), (["1", "2", "n/a"], np.array([2.0]), [1]),
    (["1.0", "1.5", "2.0"], [1.0, 2.0, 1.5], [0, 2, 1]), (["1.0", "0.5"], [1], [0]),
    (["3", "1"], [1, 3], [1, 0]), (["no", "yes"], [True, 0], [1, 0]),
])  # fmt: skip
def test_a_value_that_a_class_is_called_by_is_that_class(labels, y, numbers: list[int]):
    assert class_labels.class_numbers(y, labels) == numbers


@pytest.mark.parametrize(("labels", "value"), [
    (["True", "False"], 1), (["1", "2", "n/a"], 0), (["1.0", "1.5"], 0), (["0.5", "no"], 1), (["2", "no"], True),
])  # fmt: skip
def test_a_number_is_refused_where_classes_are_called_by_others(labels, value):
    with pytest.raises(UserError, match=rf"^y\[0\] is {value}; expected one of {', '.join(labels)}$"):
        class_labels.class_numbers([value], labels)


@pytest.mark.parametrize("value", [
    None, float("nan"), 0.5, 2, -1, "maybe", [0, 2], [1, 1], [0.5, 0.5], [0, 1, 0], [], object(), np.array([[0, 1]]),
])  # fmt: skip
def test_a_value_that_is_no_class_is_named(value):
    with pytest.raises(UserError, match=r"y\[1\] is .*; expected one of no, yes, or a number from 0 to 1"):
        ClassificationSpec(labels=("no", "yes")).parse_labels([0, value])


@pytest.mark.parametrize("text", ["a\ud800", "\udc80"])
def test_half_a_surrogate_is_no_text(text: str):
    with pytest.raises(UserError, match=r"^x\[1\] contains half of a surrogate pair: '.*'; remove it$"):
        input_adapters.to_texts(["a \U0001f600", text])


@pytest.mark.parametrize("value", [None, float("inf"), float("nan"), "a", [1.0, 2.0]])
def test_a_value_that_is_no_number_is_named(value):
    assert re.search(r"y\[1\] is .*; expected a finite number", refusal(RegressionSpec().parse_labels, [0.5, value]))


@pytest.mark.parametrize(("values", "message"), [
    (None, "x is None; expected a list"),
    (5, "x is 5; expected a list"),
    ({"text": ["a"]}, "x is .*; expected a list"),
    ({"a", "b"}, "x is .*; expected a list"),
    ("a text", "x is a single text"),
])  # fmt: skip
def test_what_is_no_list_is_refused(values, message: str):
    assert re.search(message, refusal(input_adapters.to_texts, values))


@pytest.mark.parametrize("wrong", [float("nan"), -1.0, float("inf"), None, "a"])
def test_a_weight_is_a_finite_number_from_0_on(wrong):
    with pytest.raises(UserError, match=r"sample_weight\[1\] is .*; expected a finite number, 0 or more"):
        input_adapters.check_weights([1.0, wrong], "sample_weight")
    with pytest.raises(UserError, match=r"class_weight\['yes'\] is .*; expected a finite number, 0 or more"):
        class_labels.weights_by_class({"no": 1.0, "yes": wrong}, ["no", "yes"])
    np.testing.assert_array_equal(input_adapters.check_weights(np.array([2, 0]), "sample_weight"), [2.0, 0.0])


def test_class_weights_are_a_dict_or_in_the_order_of_the_labels():
    message = refusal(class_labels.weights_by_class, [1.0, 2.0, 3.0], ["no", "yes"])
    assert re.search("class_weight is .*; expected a dict .* an array of 2 weights in the order of the labels", message)
    y = np.array(["yes", "no", "no", "no"])
    weights = sklearn.utils.class_weight.compute_class_weight("balanced", classes=np.array(["no", "yes"]), y=y)
    np.testing.assert_allclose(class_labels.weights_by_class(weights, ["no", "yes"]), [4 / 6, 2.0])


def test_numbers_are_names_where_the_classes_are_called_by_numbers():
    stars = ("1", "2", "3")
    assert class_labels.class_numbers([1, 3.0, "2", np.int64(2), [1], [0, 0, 1]], stars) == [0, 2, 1, 1, 0, 2]
    assert re.search(r"y\[1\] is 0; expected one of 1, 2, 3$", refusal(class_labels.class_numbers, [1, 0], stars))
    with pytest.raises(UserError, match=r"y\[0\] is .*expected one of 1, 2, 3$"):
        class_labels.class_numbers(np.zeros([2, 3, 4]), stars)
    assert class_labels.class_numbers([1, 0], ("1", "0")) == [0, 1]
    assert class_labels.class_numbers([1, 0, "b"], ("a", "b")) == [1, 0, 1]


@pytest.mark.parametrize(
    "labels", [[None, "a"], ["a", np.nan], [["a"], ["b"]], [b"a", b"b"], ["1", "1.0"], [1, 1.0], ["a", "a"]]
)
def test_what_are_no_names_of_different_classes_is_refused(labels):
    with pytest.raises(UserError, match=r"labels is \[.*; expected the names of two or more different classes"):
        class_labels.check_label_names(labels, 2, {})


def test_names_may_be_numbers_with_points():
    head = ClassificationSpec(labels=("1", "3.0", "b", "-2"))
    assert head.parse_labels(["1.0", b"3", "b", "-2.00"]) == [0, 1, 2, 3]
    assert "expected one of 1, 3.0, b, -2" in refusal(head.parse_labels, ["1.5"])


@pytest.mark.parametrize("missing", [None, float("nan"), np.float32("nan"), pd.NA, pd.NaT])
def test_missing_texts_are_counted(missing):
    message = refusal(input_adapters.to_texts, ["a", missing, "b", missing])
    assert message.startswith("x[1] is ")
    assert "2 of 4 texts are missing: remove these rows, or replace the missing texts by ''" in message


@pytest.mark.parametrize("x", [
    (["a", "b"], ["c", "d"]), [("a", "b")], np.array([["a", "b"]]), pd.DataFrame({"one": ["a"], "two": ["b"]}),
    (pd.Series(["a"]), pd.Series(["b"])),
])  # fmt: skip
def test_pairs_for_a_model_of_single_texts_are_named(x):
    assert "expected a text; for pairs of texts, create the model with pair=True" in refusal(
        ClassificationSpec(labels=("a", "b")).examples, x, None
    )
