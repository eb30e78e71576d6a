import json
import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from official_bert.errors import UserError
from official_bert.finetuning_options import Options
from official_bert.tasks import tabular
from official_bert.tasks.bad_rows import BadRows
from official_bert.tasks.sequences import TextExample
from tests.bad_rows import KeptRows


def options(path, **more) -> Options:
    return Options(task="table", init="i", output_dir="o", train_file=str(path), **more)


def written(tmp_path, text, name="train.csv"):
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8"))
    return path


def read(path, bad_rows=None, split="train", **more):
    return tabular.make_task(options(path, **more)).read("", split, bad_rows or BadRows())


def test_quotes_commas_line_ends_and_a_byte_order_mark_in_csv(tmp_path):
    path = written(tmp_path, '\ufefftext,label\r\n"a, ""b""\nc",x\r\n\r\nd,y\r\n')
    assert read(path) == [TextExample("2", 'a, "b"\nc', None, 0), TextExample("5", "d", None, 1)]


def test_tsv_knows_no_quotes_and_jsonl_has_named_values(tmp_path):
    path = written(tmp_path, 'first\tsecond\tclass\n"a\tb"\tx\nc\td\ty\n', "train.tsv")
    columns = {"text_column": "first", "text_pair_column": "second", "label_column": "class"}
    assert read(path, **columns) == [TextExample("2", '"a', 'b"', 0), TextExample("3", "c", "d", 1)]
    rows = [{"text": "a\nb", "label": 3}, {"text": "ü", "label": 10}, {"text": "c", "label": 3}]
    path = written(tmp_path, "\n".join(map(json.dumps, rows)) + "\n", "train.jsonl")
    task = tabular.make_task(options(path))
    assert task.labels == ("3", "10")  # by value, not by the alphabet
    assert [example.label for example in task.read("", "train", BadRows())] == [0, 1, 0]


def test_several_labels_and_none(tmp_path):
    path = written(tmp_path, "text,label\na,x; y\nb,\nc,y\n")
    task = tabular.make_task(options(path, label_kind="multi_label"))
    assert task.labels == ("x", "y")
    examples = task.read("", "train", BadRows())
    assert [example.label for example in examples] == [(0, 1), (), (1,)]
    predictions = np.array([[0.9, 0.8], [0.1, 0.2], [0.7, 0.9]])
    assert task.metrics(predictions, examples) == {
        "f1_micro": pytest.approx(6 / 7),
        "f1_macro": pytest.approx((2 / 3 + 1) / 2),
        "exact_match": pytest.approx(2 / 3),
    }
    assert [each.predicted for each in task.outcomes(predictions, examples)] == ["x, y", "(none)", "x, y"]


def test_numbers_within_their_range(tmp_path):
    path = written(tmp_path, "text,label\na,1.5\nb,-2\n")
    task = tabular.make_task(options(path, label_kind="regression"))
    assert [example.label for example in task.read("", "train", BadRows())] == [1.5, -2.0]
    with pytest.raises(UserError, match="line 3: label '-2'; expected a number from 0 to 5"):
        read(path, label_kind="regression", label_min=0.0, label_max=5.0)


@pytest.mark.parametrize(("rows", "message"), [
    ("a,x\nb\nc,y\n", "line 3: 1 columns; expected 2: text, label"),
    ("a,x\n ,y\nc,y\n", "line 3: an empty text in text"),
    ('a,x\n"b,y\nc,y\n', "line 3: unexpected end of data"),
    ('a,x\n"b\n\nb",y\n,x\nc,y\n', "line 6: an empty text in text"),
])  # fmt: skip
def test_a_bad_row_is_named_by_its_first_line_or_skipped(rows, message, tmp_path):
    path = written(tmp_path, "text,label\n" + rows)
    labels = written(tmp_path, "text,label\na,x\nb,y\n", "labels.csv")
    more = {"eval_file": str(path)}
    with pytest.raises(UserError, match=message):
        read(labels, split="dev", **more)
    bad_rows = BadRows("skip")
    assert read(labels, bad_rows, split="dev", **more)
    assert bad_rows.counts == {str(path): 1}


def test_labels_that_training_does_not_have_and_missing_ones_are_named(tmp_path):
    path = written(tmp_path, "text,label\na,x\nb,y\n")
    other = str(written(tmp_path, "text,label\na,z\n", "eval.csv"))
    with pytest.raises(UserError, match="eval.csv, line 2: unknown label 'z'; the training data have 2: x, y"):
        read(path, split="dev", eval_file=other)
    other = str(written(tmp_path, '{"text": "a"}\n', "eval.jsonl"))
    with pytest.raises(UserError, match="eval.jsonl, line 1: no key label"):
        read(path, split="dev", eval_file=other)
    other = str(written(tmp_path, "text\na\n", "predict.csv"))  # what is to be predicted needs no label
    assert read(path, split="test", predict_file=other) == [TextExample("2", "a", None, None)]


@pytest.mark.parametrize(("text", "name", "message"), [
    ("text,label\na,x\n", "train.csv", "only the label 'x'"),
    ("text,class\na,x\n", "train.csv", "has no labels in a column 'label': see --label_column"),
    ("words,label\na,x\nb,y\n", "train.csv", "line 1: no column text among words, label"),
    ("text,text,label\na,b,x\n", "train.csv", "two columns are named text"),
    ("", "train.csv", "is empty; expected a header"),
    ("text,label\n", "train.txt", "ends in .txt; expected .csv, .tsv or .jsonl"),
    ('{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n[1]\n', "train.jsonl", "line 3: list; expected an obj"),
    ('{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n{"te\n', "train.jsonl", "line 3: not valid JSON"),
    ('{"text": 1, "label": "x"}\n{"text": "b", "label": "y"}\n', "train.jsonl", "line 1: text is int; expected a text"),
])  # fmt: skip
def test_a_broken_file_is_named(text, name, message, tmp_path):
    with pytest.raises(UserError, match=message):
        read(written(tmp_path, text, name))


def test_a_table_from_tensorflow_datasets(tmp_path):
    rows = [("good", 1), ("bad", 0), ("fair", 1)]

    def data(builder: tfds.core.DatasetBuilder, **_: object) -> tf.data.Dataset:
        texts, labels = zip(*rows, strict=True)
        return tf.data.Dataset.from_tensor_slices({"text": list(texts), "label": np.array(labels, np.int64)})

    given = options("train", source="tfds", tfds_name="imdb_reviews", data_dir=str(tmp_path))
    with tfds.testing.mock_data(as_dataset_fn=data, data_dir=str(tmp_path)):
        task = tabular.make_task(given)
        assert task.labels == ("neg", "pos")
        assert task.read_tfds(str(tmp_path), "train", BadRows()) == [
            TextExample("1", "good", None, 1), TextExample("2", "bad", None, 0), TextExample("3", "fair", None, 1)
        ]  # fmt: skip
        rows[1] = ("", 0)
        with pytest.raises(UserError, match="imdb_reviews, part train, row 2: an empty text in text"):
            task.read_tfds(str(tmp_path), "train", BadRows())
        with pytest.raises(UserError, match="no column words among"):
            read("train", source="tfds", tfds_name="imdb_reviews", data_dir=str(tmp_path), text_column="words")
    with pytest.raises(UserError, match="cannot get no_such_set from TensorFlow Datasets"):
        tabular.make_task(options("train", source="tfds", tfds_name="no_such_set"))
    with pytest.raises(UserError, match="needs --tfds_name"):
        tabular.make_task(options("train", source="tfds"))


def test_one_bad_quote_loses_one_row_and_long_documents_are_read(tmp_path):
    long = "word " * 40_000
    path = written(tmp_path, f'text,label\n"a" b,x\nc,x\nd,y\n{long},y\n')
    bad_rows = KeptRows()
    examples = read(path, bad_rows)
    assert [example.id for example in examples] == ["3", "4", "5"]
    assert examples[-1].text_a == long
    (problem,) = bad_rows.problems
    assert re.search("train.csv, line 2: .* a quote within a quoted text is written twice$", problem)
    bad_rows = KeptRows()
    read(written(tmp_path, 'text,label\na,x\nb,y\n"c,x\nd,y\n'), bad_rows)
    assert "line 4: " in bad_rows.problems[0]
    assert bad_rows.problems[0].endswith("; all up to line 5 was read as one text")


def test_texts_for_a_teacher_may_have_empty_labels(tmp_path):
    path = written(tmp_path, "text,label\na,\nb,\n")
    given = {"teacher": "t", "teacher_weight": 1.0}
    reader = tabular._Reader(options(path, **given), ("x", "y"))
    assert [example.label for example in reader("", "train", BadRows())] == [None, None]
