import bz2
import datetime
import gzip
import json
import lzma
import re

import numpy as np
import pyarrow.parquet
import pytest
import tensorflow_datasets as tfds
import zstandard

from official_bert.kinds.text_spec import TextExample
from official_bert.tasks.options import TableOptions
from official_bert.tasks.table import TableTask
from official_bert.utils import tables
from official_bert.utils.bad_rows import BadRows
from tests.make import assert_mentions, assert_rejected, refusal, write_rows, write_text
from tests.stored_texts import prepare_tfds_rows
from tests.tasks.bad_rows import KeptRows

AB = "text,label\na,x\nb,y\n"
GOOD = '{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n'
TITLES = {"columns": ["label", "title", "body"], "text_column": "title"}
MULTI, REGRESSION = ({"label_kind": kind} for kind in ("multi_label", "regression"))


def make_task(path, labels=None, needs_labels=True, **options) -> TableTask:
    return TableTask(TableOptions(train_file=str(path), **options), labels, needs_labels)


def read(path, split="train", bad_rows=None, **options) -> list[TextExample]:
    return make_task(path, **options).read(split, bad_rows or BadRows())


@pytest.mark.parametrize(("name", "content", "options", "labels", "examples"), [
    # A byte order mark, quotes, line ends in cells, and an empty line.
    ("a.csv", '\ufefftext,label\r\n"a, ""b""\r\nc",x\r\n\r\nd,y\r\n', {}, "x y",
     [('a, "b"\r\nc', None, 0), ("d", None, 1)]),
    *[(name, content, {}, "x y", [("a", None, 0), ("b", None, 1)]) for name, content in (
        ("a.csv.gz", gzip.compress(AB.encode(), mtime=0)), ("A.CSV.BZ2", bz2.compress(AB.encode())),
        ("a.csv.xz", lzma.compress(AB.encode())), ("a.csv.zst", zstandard.compress(AB.encode())),
    )],
    # Rows that would mean something else on the first line.
    ("a.csv", "text,label\nsep=,x\ntext,label\n", {}, "label x", [("sep=", None, 1), ("text", None, 0)]),
    ("a.tsv", 'first\ttext\tclass\n"a\tb"\tx\nc\td\ty\n',
     {"text_column": "first", "text_pair_column": "text", "label_column": "class"}, "x y",
     [('"a', 'b"', 0), ("c", "d", 1)]),
    # Classes are sorted by value, not alphabetically.
    ("a.jsonl", '{"text": "a\\nb", "label": 10}\n{"text": "ü\u2028\x85", "label": 3}\n', {}, "3 10",
     [("a\nb", None, 1), ("ü\u2028\x85", None, 0)]),
    # pandas writes whole numbers with a point if a value is missing.
    ("a.csv", "text,label\na,1\nb,0.0\nc,1.0\n", {}, "0 1", [("a", None, 1), ("b", None, 0), ("c", None, 1)]),
    ("a.jsonl", '{"text": "a", "label": 3.0}\n{"text": "b", "label": "3.0"}\n{"text": "c", "label": 5}\n', {}, "3 5",
     [("a", None, 0), ("b", None, 0), ("c", None, 1)]),
    ("a.csv", "text,label\na,1.0;2\nb,1;2.0\n", MULTI, "1 2", [("a", None, (0, 1)), ("b", None, (0, 1))]),
    ("a.csv", "text,label\na,x; y\nb,\nc,y\n", MULTI, "x y", [("a", None, (0, 1)), ("b", None, ()), ("c", None, (1,))]),
    ("a.csv", "text,label\na,1.5\nb,-1e18\n", REGRESSION, "", [("a", None, 1.5), ("b", None, -1e18)]),
    ("a.jsonl", '{"text": "a", "label": ["x"]}\n{"text": "b", "label": ["y"]}\n', MULTI, "x y",
     [("a", None, (0,)), ("b", None, (1,))]),
    ("a.csv", '"3","Wall St.","Stocks"\n"1","War","Peace"\n', {**TITLES, "text_column": "title,body"}, "1 3",
     [("Wall St. Stocks", None, 1), ("War Peace", None, 0)]),
    ("a.csv", '"a,b",label\nc,x\nd,y\n', {"text_column": "a,b"}, "x y", [("c", None, 0), ("d", None, 1)]),
    ("a.csv", "text,label\na,y;x;y\nb,x\n", MULTI, "x y", [("a", None, (0, 1)), ("b", None, (0,))]),
    # A label of the data is meant before a name that is given to another class.
    ("a.csv", AB, {"label_names": ["y", "z"]}, "y z", [("a", None, 0), ("b", None, 1)]),
])  # fmt: skip
def test_texts_and_labels_of_every_layout_are_read(name, content, options, labels, examples, tmp_path):
    task = make_task(write_text(tmp_path / name, content), **options)
    assert " ".join(task.spec.labels or ()) == labels
    found = task.read("train", BadRows())
    assert [(each.text_a, each.text_b, each.label) for each in found] == examples


def test_rows_of_parquet_and_csv_have_their_numbers_as_ids(tmp_path):
    columns = {"text": ["a", "b"], "label": [1, 0], "image": [b"\xff", None], "day": [datetime.date(2018, 10, 11)] * 2}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "train.parquet")
    assert read(tmp_path / "train.parquet") == [TextExample("1", "a", None, 1), TextExample("2", "b", None, 0)]
    assert_rejected(("row 1", "image"), read, tmp_path / "train.parquet", text_column="image")
    assert "line 1" not in refusal(read, tmp_path / "train.parquet", text_column="words")
    path = write_text(tmp_path / "train.csv", 'text,label\n"a\nb",x\n\nd,y\n')
    assert [each.id for each in read(path)] == ["2", "5"]
    assert "line 1" not in refusal(read, path, columns=["words", "label"])


def test_the_column_id_is_only_used_outside_of_the_training_data(tmp_path):
    path = write_text(tmp_path / "train.csv", "id,text,label\nq7,a,x\nq9,b,y\n")
    task = make_task(path, eval_file=path)
    assert (task.eval_splits, task.test_splits) == (("dev",), ())
    ids = {split: [each.id for each in task.read(split, BadRows())] for split in ("train", "dev")}
    assert ids == {"train": ["2", "3"], "dev": ["q7", "q9"]}
    by_text = make_task(path, eval_file=path, text_column="id").read("dev", BadRows())
    assert [each.id for each in by_text] == ["2", "3"]


def test_a_trained_model_keeps_its_class_names(tmp_path):
    task = make_task(write_text(tmp_path / "train.csv", "text,label\na,1.0\nb,2\n"), labels=["1.0", "2.0"])
    assert [example.label for example in task.read("train", BadRows())] == [0, 1]
    assert task.spec.labels == ("1.0", "2.0")


def test_several_labels_are_scored(tmp_path):
    task = make_task(write_text(tmp_path / "train.csv", "text,label\na,x; y\nb,\nc,y\n"), **MULTI)
    examples, predictions = task.read("train", BadRows()), np.array([[0.9, 0.8], [0.1, 0.2], [0.7, 0.9]])
    expected = {"f1_micro": 6 / 7, "f1_macro": (2 / 3 + 1) / 2, "exact_match": 2 / 3}
    assert task.metrics(predictions, examples) == pytest.approx(expected)
    assert {*task.score_names} <= {*expected}
    assert [each.predicted for each in task.spec.outcomes(predictions, examples)] == ["x, y", "(none)", "x, y"]


_TABLE = {"text": {"0": "a", "1": "b"}, "label": {"0": "x", "1": "y"}}
_SPLIT = {"columns": ["text", "label"], "index": [0], "data": [["a", "x"]]}
_SCHEMA = {"schema": {"fields": []}, "data": [{"text": "a", "label": "x"}]}
_RECORDS = "orient='records', lines=True"


@pytest.mark.parametrize(("name", "content", "options", "names"), [
    ("a.csv", "text,label\na,x\n", {}, ["'x'", 2]),
    ("a.csv", "text, Label\na,x\n", {}, ["line 1", "'label'", "'text', ' Label'", "blanks", "--text_column"]),
    ("a.csv", "sep=,\ntext,label\na,x\n", {}, ["line 1", "'sep=,'"]),
    ("a.tsv", "sep=\t\ntext\tlabel\na\tx\n", {}, ["line 1", r"'sep=\t'"]),
    ("a.csv", ",,text,label\n0,0,a,x\n", {}, ["'x'", 2]),  # columns without a name are ignored
    ("a.csv", "text,x,y\na,0,1\n", MULTI | {"label_column": "x,y"}, ["'x,y'", "0 and 1", "'a;b'", "--label_separator"]),
    ("a.json", "\n" + json.dumps({"data": [{"text": "a", "label": "x"}]}, indent=1), {}, ["array"]),
    ("a.csv", "text,label\na,\n", {}, ["'label'", "--label_column", "line 2", "no label"]),
    ("a.csv", "text,label\n", {}, ["rows", "header"]),
    ("a.csv", "text;label\na;x\nb;y\n", {}, ["line 1", "'text;label'", "semicolons"]),
    ("a.csv", "text\tlabel\na\tx\nb\ty\n", {}, ["line 1", r"'text\tlabel'", "tabs"]),
    ("a.csv", "text,label\na,NaN\nb,x\nc,y\n", {}, ["line 2", "'NaN'"]),
    ("a.csv", "a;b,label\na,x\nb,y\n", {}, ["line 1", "'text'", "'a;b', 'label'"]),
    ("a.csv", "text,text,label\na,b,x\n", {}, ["line 1", "'text'", "once"]), ("a.csv", "", {}, ["empty", "header"]),
    ("a.csv", AB, {"data_dir": "folder"}, ["--data_dir", "folder"]),
    *[("a.csv", AB, {name[2:]: "text,label"}, ["'label'", name]) for name in ("--text_column", "--text_pair_column")],
    ("a.csv", "text,label\na,b,c\nd\n", {}, ["rows", "2 bad", "line 2", "3 columns", "text, label"]),
    ("a.csv", "text,label\na,x\nb,nan\n", {}, ["'x'", 2, "1 bad", "line 3", "'nan'"]),
    ("a.csv", "3,War,Peace\n1,a,b\n", {}, ["line 1", "'label'", "'3', 'War', 'Peace'", "--text_column", "--columns"]),
    *[("a.csv", f"text,label\na,1.5\nb,{label}\n", REGRESSION, ["line 3", f"'{label}'", 1e18])
      for label in ("inf", "1e39", "-1e39")],
    ("a.jsonl", '{"text": "a", "label": true}\n', REGRESSION, ["line 1", True, 1e18]),
    ("a.csv", "text,label\nt,A|US\nt,A|UK\nt,\nt,A|US\n", MULTI, ["line 2", "'A|US'", "'|'", "--label_separator='|'"]),
    ("a.csv", "text,label\nt,a\tb\nt,c\n", MULTI, ["line 2", r"'a\tb'", r"--label_separator='\t'"]),
    ("a.csv", 'text,label\nt,a;b\nt,"b,c"\nt,c\n', MULTI, ["line 3", "'b,c'", "','", "';'"]),
    ("a.csv", "text,label\nt,a b\nt,b c\nt,c\n", MULTI, ["line 2", "'a b'", "--label_kind=classification"]),
    ("a.csv", "text,label\na,x\nü,y\n".encode("latin-1"), {}, ["line 3", "0xfc", "LATIN1"]),
    ("a.tsv", 'text\tlabel\na\tx\n"b\nc"\ty\n', {}, ["line 3", 1, 2, "text, label", "Quotes", ".csv"]),
    ("a.xls", "text,label\n", {}, [".xls", ".csv", ".tsv", ".jsonl", ".txt"]),
    ("a.xlsx", b"PK\x03\x04\x14\0\x06\0" + bytes(20), {}, [".xlsx", "CSV"]),
    ("a.jsonl", GOOD + '{"text": "c", "label": NaN}\n', {}, ["line 3", "NaN", "null"]),
    ("a.jsonl", GOOD + '{"text": "c", "label": "x", "text": "d"}\n', {}, ["line 3", "'text'", "twice"]),
    ("a.json", '[{"text": "c", "label": "x", "label": "d"}]', {}, ["'label'", "twice"]),
    ("a.jsonl", GOOD + '{"text": "c", "label": null}\n', {}, ["line 3", "no label"]),
    ("a.jsonl", GOOD + '{"text": "c", "label": ["x"]}\n', {}, ["line 3", "label", '["x"]']),
    ("a.jsonl", GOOD + "[" * 100_000, {}, ["line 3", "nested"]), ("a.jsonl", GOOD + "1" * 5000, {}, ["line 3", 5000]),
    ("a.jsonl", GOOD + '{"text": "a\\ud800", "label": "x"}\n', {}, ["line 3", "text", r"\ud800"]),
    ("a.jsonl", GOOD + "[1]\n", {}, ["line 3", "object", [1]]), ("a.jsonl", GOOD + '{"te\n', {}, ["line 3", '{"te']),
    ("a.jsonl", '{"text": 7, "label": "x"}\n{"text": "b", "label": "y"}\n', {}, ["line 1", "text", 7]),
    ("a.json", '[{"text": "a", "label": NaN}]', {}, ["NaN"]), ("a.jsonl", '[{"text": "a", "label": NaN}]', {}, ["NaN"]),
    *(("a.json", json.dumps(each) + "\n", {}, ["line 1", _RECORDS]) for each in (_TABLE, _SPLIT, _SCHEMA)),
    ("a.json", '[["a", "x"]]', {}, ["line 1", "object", _RECORDS]),
])  # fmt: skip
def test_an_invalid_file_is_named(name, content, options, names, tmp_path):
    path = write_text(tmp_path / name, content)
    assert_rejected((path, *names), read, path, **options)


@pytest.mark.parametrize("labels", [["a;b", '"Arts, Crafts"', ""], ["a", "", "b"]])
def test_separators_that_are_not_needed_are_accepted(labels, tmp_path):
    path = write_text(tmp_path / "train.csv", "text,label\n" + "".join(f"t,{label}\n" for label in labels))
    assert len(read(path, **MULTI)) == 3


@pytest.mark.parametrize(("name", "content", "line", "names"), [
    ("dev.csv", "text,label\na,x\nb\nc,y\n", 3, (1, 2, "text, label")),
    ("dev.csv", "text,label\na,x\n ,y\nc,y\n", 3, ("empty", "text")),
    ("dev.csv", 'text,label\na,x\n"b,y\nc,y\n', 3, ("quote", "line 4")),
    ("dev.csv", 'text,label\na,x\n"b\n\nb",y\n,x\nc,y\n', 6, ("empty", "text")),
    ("dev.csv", "text,label\na,x\na,z\n", 3, ("'z'", 2, "x, y")),
    ("dev.csv", f"text,label\na,x\nc,{'z' * 100_000}\n", 3, ("unknown",)),
    ("dev.jsonl", '{"te\n' + GOOD, 1, ('{"te',)), ("dev.jsonl", '{"text": {}, "label": {}}\n' + GOOD, 1, ("text",)),
    ("dev.jsonl", GOOD + '{"text": "a"}\n', 3, ("'label'",)), ("dev.txt", "a\n\nb\n", 2, ("empty", "text")),
])  # fmt: skip
def test_a_bad_row_is_named_by_its_first_line_or_skipped(name, content, line, names, tmp_path):
    path, labels = write_text(tmp_path / name, content), write_text(tmp_path / "train.csv", AB)
    options = {"predict_file": path, "split": "test"} if name.endswith(".txt") else {"eval_file": path, "split": "dev"}
    assert_mentions(told := refusal(read, labels, **options), path, f"line {line}", *names)
    assert len(told) < 1000
    assert read(labels, bad_rows=(bad_rows := BadRows("skip")), **options)
    assert bad_rows.counts == {path: 1}


def test_the_first_five_skipped_rows_of_a_file_are_printed(capsys):
    bad_rows = BadRows("skip")
    for name, line in [*(("a.csv", line) for line in range(2, 9)), ("b.csv", 2)]:
        bad_rows.add(name, line, "empty")
    BadRows("skip", silent=True).add("a.csv", 2, "empty")
    shown = [*(f"skipped a.csv, line {line}: empty" for line in range(2, 7)), "skipped b.csv, line 2: empty"]
    assert capsys.readouterr().err.splitlines() == shown
    assert bad_rows.first_reason("a.csv") == " (7 bad rows; the first: a.csv, line 2: empty)"
    assert_mentions(" ".join(bad_rows.summary()), 7, "a.csv", 1, "b.csv")


def test_rows_to_predict_need_no_label_and_may_have_an_id(tmp_path):
    path = write_text(tmp_path / "train.csv", AB.replace("text", "body"))
    for name, content, expected in (
        ("a.csv", "body\na\n", [TextExample("2", "a")]),
        ("b.csv", "id,body\nq7,a\nq9,b\n", [TextExample("q7", "a"), TextExample("q9", "b")]),
        ("d.csv", "id,body\n,b\n", [TextExample("", "b")]),
        ("g.jsonl", '{"body": "a", "more": {}}\n', [TextExample("1", "a")]),
        ("c.txt", 'one, two \r\n"three\n', [TextExample("1", "one, two "), TextExample("2", '"three')]),
        ("e.csv", "body,label\na,y\nb,x\n", [TextExample("2", "a", None, 1), TextExample("3", "b", None, 0)]),
        ("f.csv", "body,label\na,y\nb,\n", [TextExample("2", "a"), TextExample("3", "b")]),  # not all have labels
    ):
        assert read(path, "test", predict_file=write_text(tmp_path / name, content), text_column="body") == expected


def test_some_of_several_columns_that_are_joined_may_be_empty(tmp_path):
    rows = [{"u": "x", "v": None}, {"u": "", "v": "y"}, {"u": None, "v": None}, {"u": "", "v": " "}, {"u": 1, "v": "z"}]
    path = write_rows(tmp_path / "train.jsonl", ({**row, "label": f"{i % 2}"} for i, row in enumerate(rows)))
    bad_rows = KeptRows()
    assert [each.text_a for each in read(path, bad_rows=bad_rows, text_column="u,v")] == ["x", "y"]
    expected = [("line 3", "u", "null"), ("line 4", "empty", "u, v"), ("line 5", "u", 1)]
    for problem, names in zip(bad_rows.problems, expected, strict=True):
        assert_mentions(problem, path, *names)


def test_a_table_from_tensorflow_datasets(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    rows = [{"text": text, "label": label} for text, label in (("good", 1), ("bad", 0), ("fair", 1), ("", 0))]
    classes = tfds.features.ClassLabel(names=["neg", "pos"])
    name = prepare_tfds_rows(tmp_path, rows, text=tfds.features.Text(), label=classes)
    task, bad_rows = make_task(f"tfds:{name}"), KeptRows()
    assert task.spec.labels == ("neg", "pos")
    assert [(e.text_a, e.label) for e in task.read("train", bad_rows)] == [("good", 1), ("bad", 0), ("fair", 1)]
    assert_mentions(*bad_rows.problems, f"tfds:{name}", "prose-train.tfrecord-00001-of-00002", "row 2", "empty")
    assert_rejected((f"tfds:{name}", "'words'", "'label', 'text'"), read, f"tfds:{name}", text_column="words")
    assert_rejected("no_such_set", make_task, "tfds:no_such_set")


def test_one_bad_quote_loses_one_row_and_long_documents_are_read(tmp_path):
    long, bad_rows = "word " * 40_000, KeptRows()
    examples = read(write_text(tmp_path / "a.csv", f'text,label\n"a" b,x\nc,x\nd,y\n{long},y\n'), bad_rows=bad_rows)
    assert [example.id for example in examples] == ["3", "4", "5"]
    assert examples[-1].text_a == long
    (problem,) = bad_rows.problems
    assert_mentions(problem, "a.csv", "line 2", "quote")
    assert problem.count("line") == 1


def test_texts_for_a_teacher_may_have_empty_labels(tmp_path):
    path = write_text(tmp_path / "train.csv", "text,label\na,\nb,\n")
    task = make_task(path, ("x", "y"), needs_labels=False)
    assert [example.label for example in task.read("train", BadRows())] == [None, None]
    assert_rejected((path, "line 2", "label"), make_task(path, ("x", "y")).read, "train", BadRows())


@pytest.mark.parametrize(("options", "values", "classes", "labels", "lines"), [
    ({}, ["x", 1, None, ..., float("nan")], ("1", "x"), [1, 0], [3, 4, 5]),
    (MULTI, [["x", "y"], ["x", None], [["y"]], None, [], ""], ("x", "y"), [(0, 1), (), ()], [2, 3, 4]),
])  # fmt: skip
def test_missing_labels_are_not_classes(options, values, classes, labels, lines, tmp_path):
    rows = [{"text": "a", **({} if value is ... else {"label": value})} for value in values]
    task, bad_rows = make_task(write_rows(tmp_path / "train.jsonl", rows), **options), KeptRows()
    assert task.spec.labels == classes
    assert [each.label for each in task.read("train", bad_rows)] == labels
    assert [int(re.findall(r"train.jsonl, line (\d+)", each)[0]) for each in bad_rows.problems] == lines


def test_the_model_stores_column_names_and_label_names(tmp_path):
    path = write_text(tmp_path / "train.csv", "1,War,Peace\n3,Wall St.,Stocks fall\n")
    given = {**TITLES, "text_pair_column": "body", "label_names": ["World", "Business"]}
    task = make_task(path, **given)
    assert task.title == "Predicting label from title and body"
    assert task.read("train", BadRows())[0] == TextExample("1", "War", "Peace", 0)
    assert_mentions(task.notes()[0], "World (1", "Business (3")
    for names in (["World"], ["World", "World"], ["3", "1"]):
        assert_rejected(("--label_names", ",".join(names), 2, "1, 3"), read, path, **TITLES, label_names=names)
    refused = ("--label_names", "A,B", "World, Business")
    assert_rejected(refused, make_task, path, task.spec.labels, label_names=["A", "B"])
    assert_rejected(("--label_names", "A,B"), make_task, path, **REGRESSION, label_names=["A", "B"])
    spec = json.loads(json.dumps(task.task_spec(16)))
    later = TableOptions(eval_file=path).merge_trained(spec)
    assert {name: getattr(later, name) for name in given} == given
    explicit = TableOptions(text_column="other", label_names=["A", "B"]).merge_trained(spec)
    assert (explicit.text_column, explicit.label_names, explicit.label_column) == ("other", ["A", "B"], "label")
    task = TableTask(later, spec["labels"])
    assert (task.spec.labels, task.spec.pair) == (("World", "Business"), True)
    assert [each.label for each in task.read("dev", BadRows())] == [0, 1]
    named = write_text(tmp_path / "named.csv", "World,War,Peace\n2,a,b\n")  # a class name is also accepted
    task, bad_rows = TableTask(TableOptions(eval_file=named).merge_trained(spec), spec["labels"]), KeptRows()
    assert [each.label for each in task.read("dev", bad_rows)] == [0]
    assert bad_rows.problems[0].endswith("unknown label '2'; the training data have 2: World, Business")


@pytest.mark.parametrize(("name", "content"), [
    ("a.csv", "id,text\n,%s\n,%s\n"), ("a.tsv", "id\ttext\n\t%s\n\t%s\n"), ("a.txt", "%s\n%s\n"),
    ("a.jsonl", '{"id": 1, "text": "%s"}\n{"text": "%s"}\n'),
])  # fmt: skip
def test_an_extremely_long_text_is_a_bad_row(name: str, content: str, tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "MAX_CHARACTERS", 50)
    path, bad_rows = write_text(tmp_path / name, content % ("a" * 51, "b" * 50)), KeptRows()
    assert [row["text"] for _, row in tables.read_rows(path, bad_rows)] == ["b" * 50]
    assert_mentions(*bad_rows.problems, path, "text", 51, 50)


def test_a_wide_table_is_read_in_linear_time_and_messages_list_few_columns(tmp_path):
    """Comparing all pairs of the 50,000 columns would take minutes."""
    count = 50_000
    header = ",".join(["a" * 59, "b" * 58, *(f"column{number}" for number in range(2, count))])
    path = write_text(tmp_path / "train.csv", f"{header}\n{',' * (count - 1)}\n")
    ((line, values),) = tables.read_rows(path, BadRows())
    assert (line, len(values)) == (2, count)
    shown = f"'{'a' * 59}..., '{'b' * 58}', 'column2', "
    assert_mentions(told := refusal(read, path), "'label'", shown, "'column9', ...")
    assert len(told) < 600


def test_csv_quotes_in_tsv_files_are_counted(tmp_path, capsys):
    quoted = 'text\tlabel\na ""b""\tx\n"a ""b"""\tx\n"a" "b"\ty\n"a"\ty\n""""\t""\n"c"",""d"\tx\n'
    path = write_text(tmp_path / "train.tsv", quoted)
    assert [values["text"] for _, values in tables.read_rows(path, BadRows())][1:3] == ['"a ""b"""', '"a" "b"']
    assert re.search(rf"note: {path} .*\(number: 3, first in line 3\)", capsys.readouterr().out)
    assert list(tables.read_rows(path, BadRows(silent=True)))
    assert not capsys.readouterr().out


@pytest.mark.parametrize("name", ["train.csv", "train.tsv"])
def test_blank_lines_between_rows_are_counted(name, tmp_path, capsys):
    path = write_text(tmp_path / name, "text\na\n\n\r\nb\n\n\n")
    assert list(tables.read_rows(path, BadRows())) == [(2, {"text": "a"}), (5, {"text": "b"})]
    assert re.search(rf"note: {path} .*\(number: 2, first: line 3\)", capsys.readouterr().out)
    assert list(tables.read_rows(path, BadRows(silent=True)))
    list(tables.read_rows(write_text(tmp_path / name, "text\na\n\n"), BadRows()))
    assert not capsys.readouterr().out


@pytest.mark.parametrize("header", ["text,label", " Text ,LABEL"])
def test_a_header_that_repeats_columns_is_not_a_row(header, tmp_path, capsys):
    path = write_text(tmp_path / "train.csv", f"{header}\na,x\nb,y\n")
    examples = read(path, columns=["text", "label"])
    assert examples == [TextExample("2", "a", None, 0), TextExample("3", "b", None, 1)]
    assert f"note: {path}, line 1 has the column names" in capsys.readouterr().out
    assert len(list(tables.read_rows(path, BadRows(silent=True), ["text", "label"]))) == 2
    assert not capsys.readouterr().out


def test_suspicious_classes_are_listed(tmp_path):
    def list_notes(values, labels=None):
        path = write_text(tmp_path / "train.csv", "text,label\n" + "".join(f"t,{value}\n" for value in values))
        return make_task(path, labels).notes()

    note = "classes differ only by case, blanks or Unicode normalization: 'Hot dog', 'hotdog'"
    once = "classes with a single row (3): 'Hot dog', 'hotdog', 'x'"
    assert list_notes(["Hot dog", "hotdog", "x"]) == ["3 classes: Hot dog, hotdog, x", note, once]
    assert list_notes(["Hot dog", "hotdog", "x"], ["hotdog", "x"]) == ["2 classes: hotdog, x"]
    assert list_notes("xxy")[1:] == ["classes with a single row (1): 'y'"]
    spelled, missing = list_notes(["é", "e\u0301", "N/A"] * 2)[1:]
    assert spelled.endswith(r": 'e\u0301', 'é'")
    assert missing.endswith(": 'N/A'")
    for values, has_hint in ((range(11), True), (range(10), False), ("abcdefghijk", False)):
        assert ("--label_kind=regression" in list_notes(values)[-1]) == has_hint


@pytest.mark.parametrize(("name", "indent"), [("train.json", None), ("train.jsonl", 2)])
def test_arrays_of_objects_are_read(name, indent, tmp_path):
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}, {"text": "", "label": "x"}, 3]
    path, bad_rows = write_text(tmp_path / name, "\n " + json.dumps(rows, indent=indent)), KeptRows()
    assert read(path, bad_rows=bad_rows) == [TextExample("1", "a", None, 0), TextExample("2", "b", None, 1)]
    first, second = bad_rows.problems
    assert_mentions(first, path, "row 3", "empty", "text")
    assert f"{path}, row 3" in refusal(read, path)
    assert_mentions(second, path, "row 4", "object", "int")


def test_the_training_file_is_read_once_and_its_bad_rows_are_reported_when_it_is_used(tmp_path, monkeypatch):
    path = write_text(tmp_path / "train.csv", "text,label\na,x\nb\nc,y\n")
    opened, read_rows = [], tables.read_rows
    monkeypatch.setattr(tables, "read_rows", lambda path, *rest: opened.append(path) or read_rows(path, *rest))
    task, bad_rows = make_task(path), KeptRows()
    assert [each.text_a for each in task.read("train", bad_rows)] == ["a", "c"]
    assert opened == [path]
    assert_mentions(*bad_rows.problems, path, "line 3", 1, 2, "text, label")
    assert len(task.read("train", KeptRows())) == 2  # read again
