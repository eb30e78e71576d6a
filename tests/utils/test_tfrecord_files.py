"""tf.train.Examples read without TensorFlow."""

import pathlib

import pytest
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.utils import row_files
from official_bert.utils.tfrecord_files import parse_example
from tests.stored_texts import example

VALUES = {
    "text": "naïve", "empty": "", "several": ["a", ""], "integers": [0, -1, 2**63 - 1, -(2**63), 300], "one": -7,
    "floats": [0.5, -2.0], "float": 1.5,
}  # fmt: skip


def test_examples_are_parsed_as_tensorflow_wrote_them():
    expected = {
        name: [each.encode() if isinstance(each, str) else each for each in value] if isinstance(value, list)
        else value.encode() if isinstance(value, str) else value
        for name, value in VALUES.items()
    }  # fmt: skip
    assert parse_example(example(**VALUES)) == expected
    assert parse_example(tf.train.Example().SerializeToString()) == {}
    empty = tf.train.Example(features=tf.train.Features(feature={"a": tf.train.Feature()}))
    assert parse_example(empty.SerializeToString()) == {"a": []}


def test_integers_that_are_not_packed_are_parsed():
    feature = b"\x1a\x04\x08\x05\x08\x06"  # int64_list with the values 5 and 6, a field each
    entry = b"\x0a\x01a\x12" + bytes([len(feature)]) + feature
    features = b"\x0a" + bytes([len(entry)]) + entry
    record = b"\x0a" + bytes([len(features)]) + features
    assert tf.train.Example.FromString(record).features.feature["a"].int64_list.value == [5, 6]
    assert parse_example(record) == {"a": [5, 6]}


def test_records_of_something_else_are_an_error(tmp_path: pathlib.Path):
    path = str(tmp_path / "other.tfrecord")
    for record in (b"some text, no protocol buffer", example(text="a")[:-1], b"\x0a\xff", b"\xff" * 12):
        with tf.io.TFRecordWriter(path) as writer:
            writer.write(record)
        with pytest.raises(UserError, match="record 1: no tf.train.Example: "):
            list(row_files.read_rows(path, "tfrecord"))


def test_several_texts_in_one_feature_are_refused(tmp_path: pathlib.Path):
    path = str(tmp_path / "several.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(example(text=["a", "b"]))
    with pytest.raises(UserError, match="record 1: the feature 'text' is not one text, but "):
        list(row_files.read_rows(path, "tfrecord", ["text"]))
