import dataclasses
import datetime
import gzip
import json
import pathlib
import re

import numpy as np
import pyarrow.parquet
import pytest
import tensorflow_datasets as tfds

from official_bert.errors import UserError
from official_bert.kinds.text_spec import TextExample
from official_bert.tasks import table
from official_bert.tasks.options import TableOptions
from official_bert.utils import tables
from official_bert.utils.bad_rows import BadRows
from tests.make import refusal, write_rows, write_text
from tests.stored_texts import prepare_tfds_rows
from tests.tasks.bad_rows import KeptRows


def options(path, **more) -> TableOptions:
    return TableOptions(train_file=str(path), **more)


def written(tmp_path, text, name="train.csv"):
    return write_text(tmp_path / name, text)


def read(path, bad_rows=None, split="train", **more):
    return table.TableTask(options(path, **more)).read(split, bad_rows or BadRows())


def test_quotes_commas_line_ends_and_a_byte_order_mark_in_csv(tmp_path):
    path = written(tmp_path, '\ufefftext,label\r\n"a, ""b""\nc",x\r\n\r\nd,y\r\n')
    assert read(path) == [TextExample("2", 'a, "b"\nc', None, 0), TextExample("5", "d", None, 1)]


def test_tsv_knows_no_quotes_and_jsonl_has_named_values(tmp_path):
    path = written(tmp_path, 'first\tsecond\tclass\n"a\tb"\tx\nc\td\ty\n', "train.tsv")
    columns = {"text_column": "first", "text_pair_column": "second", "label_column": "class"}
    assert read(path, **columns) == [TextExample("2", '"a', 'b"', 0), TextExample("3", "c", "d", 1)]
    rows = [{"text": "a\nb", "label": 3}, {"text": "ü", "label": 10}, {"text": "c", "label": 3}]
    task = table.TableTask(options(write_rows(tmp_path / "train.jsonl", rows)))
    assert task.head.labels == ("3", "10")  # sorted by value, not alphabetically
    assert [example.label for example in task.read("train", BadRows())] == [0, 1, 0]


def test_parquet_and_compressed_tables_are_read(tmp_path):
    path = tmp_path / "train.parquet"
    columns = {"text": ["a", "b"], "label": [1, 0], "image": [b"\xff", None], "day": [datetime.date(2018, 10, 11)] * 2}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    assert read(path) == [TextExample("1", "a", None, 1), TextExample("2", "b", None, 0)]
    (tmp_path / "train.csv.gz").write_bytes(gzip.compress(b"text,label\na,1\nb,0\n"))
    assert read(tmp_path / "train.csv.gz") == [TextExample("2", "a", None, 1), TextExample("3", "b", None, 0)]


def test_a_whole_number_is_one_class_with_a_point_and_without(tmp_path):
    path = written(tmp_path, "text,label\na,1\nb,0.0\nc,1.0\nd,0\n")  # as pandas does if a value is missing
    task = table.TableTask(options(path))
    assert task.head.labels == ("0", "1")
    assert [example.label for example in task.read("train", BadRows())] == [1, 0, 1, 0]
    rows = ({"text": "a", "label": label} for label in (3, 3.0, "3.0", 5))
    task = table.TableTask(options(write_rows(tmp_path / "train.jsonl", rows)))
    assert task.head.labels == ("3", "5")
    path = written(tmp_path, "text,label\na,1.0;2\nb,1;2.0\n")
    assert [each.label for each in read(path, label_kind="multi_label")] == [(0, 1), (0, 1)]
    trained = table.TableTask(options(path), labels=["1.0", "2.0"])
    written(tmp_path, "text,label\na,1.0\nb,2\n")
    assert [example.label for example in trained.read("train", BadRows())] == [0, 1]
    assert trained.head.labels == ("1.0", "2.0")


def test_several_labels_and_none(tmp_path):
    path = written(tmp_path, "text,label\na,x; y\nb,\nc,y\n")
    task = table.TableTask(options(path, label_kind="multi_label"))
    assert task.head.labels == ("x", "y")
    examples = task.read("train", BadRows())
    assert [example.label for example in examples] == [(0, 1), (), (1,)]
    predictions = np.array([[0.9, 0.8], [0.1, 0.2], [0.7, 0.9]])
    assert task.metrics(predictions, examples) == {
        "f1_micro": pytest.approx(6 / 7),
        "f1_macro": pytest.approx((2 / 3 + 1) / 2),
        "exact_match": pytest.approx(2 / 3),
    }
    assert [each.predicted for each in task.head.outcomes(predictions, examples)] == ["x, y", "(none)", "x, y"]


def test_numbers_are_labels_too(tmp_path):
    path = written(tmp_path, "text,label\na,1.5\nb,-2\n")
    task = table.TableTask(options(path, label_kind="regression"))
    assert [example.label for example in task.read("train", BadRows())] == [1.5, -2.0]
    for wrong in ("inf", "1e39"):
        path = written(tmp_path, f"text,label\na,1.5\nb,{wrong}\n")
        with pytest.raises(UserError, match=rf"line 3: label '{wrong}'; expected a number, at most 1e\+18"):
            read(path, label_kind="regression")


def test_line_ends_in_the_cells_of_a_tsv_file_are_explained(tmp_path):
    path = written(tmp_path, 'text\tlabel\na\tx\n"b\nc"\ty\n', "train.tsv")  # as written by pandas
    told = refusal(read, path)
    assert "train.tsv, line 3: 1 column; expected 2: text, label. Quotes have no meaning in .tsv; save" in told
    assert "as .csv" in told


def test_some_of_several_columns_that_are_joined_may_be_empty(tmp_path):
    rows = [{"a": "x", "b": None}, {"a": "", "b": "y"}, {"a": None, "b": None}, {"a": "", "b": " "}, {"a": 1, "b": "z"}]
    path = write_rows(tmp_path / "train.jsonl", ({**row, "label": f"{i % 2}"} for i, row in enumerate(rows)))
    bad_rows = KeptRows()
    assert [each.text_a for each in read(path, bad_rows, text_column="a,b")] == ["x", "y"]
    assert [problem.partition("train.jsonl, ")[2] for problem in bad_rows.problems] == [
        "line 3: a is null; expected a text", "line 4: an empty text in a, b", "line 5: a is 1; expected a text",
    ]  # fmt: skip


@pytest.mark.parametrize(("rows", "message"), [
    ("a,x\nb\nc,y\n", "line 3: 1 column; expected 2: text, label"),
    ("a,x\n ,y\nc,y\n", "line 3: an empty text in text"),
    ('a,x\n"b,y\nc,y\n', "line 3: unexpected end of data"),
    ('a,x\n"b\n\nb",y\n,x\nc,y\n', "line 6: an empty text in text"),
])  # fmt: skip
def test_a_bad_row_is_named_by_its_first_line_or_skipped(rows, message, tmp_path):
    path = written(tmp_path, "text,label\n" + rows)
    labels = written(tmp_path, "text,label\na,x\nb,y\n", "labels.csv")
    more = {"eval_file": str(path)}
    assert re.search(message, refusal(read, labels, split="dev", **more))
    bad_rows = BadRows("skip")
    assert read(labels, bad_rows, split="dev", **more)
    assert bad_rows.counts == {str(path): 1}


def test_labels_that_training_does_not_have_and_missing_ones_are_named(tmp_path):
    path = written(tmp_path, "text,label\na,x\nb,y\n")
    other = written(tmp_path, "text,label\na,z\n", "eval.csv")
    told = refusal(read, path, split="dev", eval_file=other)
    assert "eval.csv, line 2: unknown label 'z'; the training data have 2: x, y" in told
    other = written(tmp_path, '{"text": "a"}\n', "eval.jsonl")
    assert "eval.jsonl, line 1: no key label" in refusal(read, path, split="dev", eval_file=other)
    other = written(tmp_path, "text\na\n", "predict.csv")  # rows to predict need no label
    assert read(path, split="test", predict_file=other) == [TextExample("2", "a", None, None)]


GOOD = '{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n'


@pytest.mark.parametrize(("text", "name", "message"), [
    ("text,label\na,x\n", "train.csv", "only the label 'x'"),
    ("text,class\na,x\n", "train.csv", "line 1: no column label among text, class; .*--text_column"),
    ("text,label\na,\n", "train.csv", "has no labels in 'label': see --label_column"),
    ("text,label\n", "train.csv", "train.csv has no rows; expected texts with labels below the header"),
    ("text;label\na;x\nb;y\n", "train.csv", "one column, 'text;label'. Are the columns separated by semicolons"),
    ("text\tlabel\na\tx\nb\ty\n", "train.csv", "Are the columns separated by tabs"),
    ("text,label\na,NaN\nb,x\nc,y\n", "train.csv", "line 2: label 'NaN' in label"),
    (GOOD + '{"text": "c", "label": NaN}\n', "train.jsonl", "line 3: not valid JSON: NaN is not a JSON value"),
    (GOOD + '{"text": "c", "label": null}\n', "train.jsonl", "line 3: no label in label"),
    (GOOD + '{"text": "c", "label": ["x"]}\n', "train.jsonl", r'line 3: label \["x"\] in label; expected the name'),
    (GOOD + "[" * 100_000, "train.jsonl", "line 3: not valid JSON: "),
    ("words,label\na,x\nb,y\n", "train.csv", "line 1: no column text among words, label"),
    ("text,text,label\na,b,x\n", "train.csv", "two columns are named text"),
    ("", "train.csv", "is empty; expected a header"),
    (GOOD + '{"text": "a\\ud800", "label": "x"}\n', "train.jsonl", "line 3: text contains the lone surrogate .ud800"),
    ("text,label\n", "train.xls", "has the extension .xls; expected .csv, .tsv, .jsonl or .txt"),
    (GOOD + "[1]\n", "train.jsonl", "line 3: expected a JSON object"),
    (GOOD + '{"te\n', "train.jsonl", "line 3: not valid JSON"),
    ('{"text": 1, "label": "x"}\n{"text": "b", "label": "y"}\n', "train.jsonl", "line 1: text is 1; expected a text"),
])  # fmt: skip
def test_a_broken_file_is_named(text, name, message, tmp_path):
    assert re.search(message, refusal(read, written(tmp_path, text, name)))


def test_a_table_from_tensorflow_datasets(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    rows = [{"text": text, "label": label} for text, label in (("good", 1), ("bad", 0), ("fair", 1), ("", 0))]
    classes = tfds.features.ClassLabel(names=["neg", "pos"])
    name = prepare_tfds_rows(tmp_path, rows, text=tfds.features.Text(), label=classes)
    task = table.TableTask(options(f"tfds:{name}"))
    assert task.head.labels == ("neg", "pos")
    bad_rows = KeptRows()
    examples = task.read("train", bad_rows)
    assert [(each.text_a, each.label) for each in examples] == [("good", 1), ("bad", 0), ("fair", 1)]
    (problem,) = bad_rows.problems
    assert problem == f"tfds:{name}, prose-train.tfrecord-00001-of-00002, row 2: an empty text in text"
    assert "tfds:prose/small: no column words among" in refusal(read, f"tfds:{name}", text_column="words")
    assert "cannot get no_such_set from TensorFlow Datasets" in refusal(table.TableTask, options("tfds:no_such_set"))


def test_one_bad_quote_loses_one_row_and_long_documents_are_read(tmp_path):
    long = "word " * 40_000
    path = written(tmp_path, f'text,label\n"a" b,x\nc,x\nd,y\n{long},y\n')
    bad_rows = KeptRows()
    examples = read(path, bad_rows)
    assert [example.id for example in examples] == ["3", "4", "5"]
    assert examples[-1].text_a == long
    (problem,) = bad_rows.problems
    assert re.search("train.csv, line 2: .* a quote within quoted text must be doubled$", problem)
    bad_rows = KeptRows()
    read(written(tmp_path, 'text,label\na,x\nb,y\n"c,x\nd,y\n'), bad_rows)
    assert "line 4: " in bad_rows.problems[0]
    assert bad_rows.problems[0].endswith("; everything up to line 5 was read as one value")


def test_texts_for_a_teacher_may_have_empty_labels(tmp_path):
    path = written(tmp_path, "text,label\na,\nb,\n")
    task = table.TableTask(options(path), ("x", "y"), needs_labels=False)
    assert [example.label for example in task.read("train", BadRows())] == [None, None]
    assert "line 2: no label in label" in refusal(table.TableTask(options(path), ("x", "y")).read, "train", BadRows())


def test_missing_labels_make_no_classes(tmp_path):
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": 1}, {"text": "c", "label": None}, {"text": "d"}]
    rows.append({"text": "e", "label": float("nan")})
    task = table.TableTask(options(write_rows(tmp_path / "train.jsonl", rows)))
    assert task.head.labels == ("1", "x")
    bad_rows = KeptRows()
    assert [each.label for each in task.read("train", bad_rows)] == [1, 0]
    assert [re.sub(r"^.*train.jsonl, ", "", each) for each in bad_rows.problems] == [
        "line 3: no label in label",
        "line 4: no key label",
        (
            "line 5: not valid JSON: NaN is not a JSON value; use null for a missing value: "
            '{"text": "e", "label": NaN}; expected an object per line'
        ),
    ]
    several = [{"text": "a", "label": ["x", "y"]}, {"text": "b", "label": ["x", None]}, {"text": "c", "label": [["y"]]}]
    task = table.TableTask(options(write_rows(tmp_path / "several.jsonl", several), label_kind="multi_label"))
    assert task.head.labels == ("x", "y")
    bad_rows = KeptRows()
    assert [each.label for each in task.read("train", bad_rows)] == [(0, 1)]
    assert len(bad_rows.problems) == 2


def test_a_file_without_a_header_has_its_columns_named(tmp_path):
    path = written(tmp_path, '"3","Wall St.","Stocks fall"\n"1","War","Peace"\n')
    given = {"columns": ["label", "title", "description"], "text_column": "title,description"}
    task = table.TableTask(options(path, label_names=["World", "Business"], **given))
    assert task.head.labels == ("World", "Business")
    examples = task.read("train", BadRows())
    assert examples == [TextExample("1", "Wall St. Stocks fall", None, 1), TextExample("2", "War Peace", None, 0)]
    pair = table.TableTask(options(path, columns=given["columns"], text_column="title", text_pair_column="description"))
    assert pair.read("train", BadRows())[0] == TextExample("1", "Wall St.", "Stocks fall", 1)
    told = refusal(read, path)
    assert re.search("no column label among 3, Wall St., Stocks fall; .* without a header as --columns", told)
    told = refusal(table.TableTask, options(path, label_names=["World"], **given))
    assert "--label_names has 1 names; the training data have 2 labels: 1, 3" in told


def test_a_model_remembers_its_columns_and_what_the_data_call_its_classes(tmp_path):
    path = written(tmp_path, "1,War,Peace\n3,Wall St.,Stocks fall\n")
    given = {
        "columns": ["label", "title", "body"], "text_column": "title", "text_pair_column": "body",
        "label_names": ["World", "Business"],
    }  # fmt: skip
    spec = table.TableTask(options(path, **given)).task_spec(16)
    spec = json.loads(json.dumps(spec))
    later = TableOptions(eval_file=str(path)).merge_trained(spec)
    assert {name: getattr(later, name) for name in given} == given
    task = table.TableTask(later, spec["labels"])
    assert (task.head.labels, task.head.pair) == (("World", "Business"), True)
    assert [each.label for each in task.read("dev", BadRows())] == [0, 1]
    other = written(tmp_path, "World,War,Peace\n", "named.csv")  # a class name is also accepted
    task = table.TableTask(dataclasses.replace(later, eval_file=str(other)), spec["labels"])
    assert [each.label for each in task.read("dev", BadRows())] == [0]


def test_answers_go_by_the_id_of_the_row_and_a_text_file_has_a_text_a_line(tmp_path):
    path = written(tmp_path, "text,label\na,x\nb,y\n")
    table = written(tmp_path, "id,text\nq7,a\nq9,b\n", "predict.csv")
    assert [each.id for each in read(path, split="test", predict_file=str(table))] == ["q7", "q9"]
    lines = written(tmp_path, 'one, two\n"three\n', "predict.txt")
    found = read(path, split="test", predict_file=str(lines))
    assert found == [TextExample("1", "one, two"), TextExample("2", '"three')]


def test_an_empty_line_of_a_text_file_is_a_bad_row(tmp_path: pathlib.Path):
    path, lines = written(tmp_path, "text,label\na,x\nb,y\n"), written(tmp_path, "one\n\ntwo\n", "predict.txt")
    assert "predict.txt, line 2: an empty text in text" in refusal(read, path, split="test", predict_file=str(lines))


@pytest.mark.parametrize("name", ["train.csv", "train.tsv", "train.jsonl", "train.txt"])
def test_a_text_longer_than_any_book_is_a_bad_row(name: str, tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "MAX_CHARACTERS", 50)
    content = {"jsonl": '{"text": "%s"}\n{"text": "%s"}\n', "txt": "%s\n%s\n"}.get(name.split(".")[1], "text\n%s\n%s\n")
    bad_rows = KeptRows()
    path = written(tmp_path, content % ("a" * 51, "b" * 50), name)
    assert [row for _, row in tables.read_rows(str(path), bad_rows)] == [{"text": "b" * 50}]
    (problem,) = bad_rows.problems
    assert problem.endswith(": text has 51 characters; expected at most 50; split it into several texts")


def test_messages_name_few_columns_and_cut_long_names_and_quotations(tmp_path):
    path = written(tmp_path, f"text,label\na,x\nb,y\nc,{'z' * 100_000}\n")
    labels = written(tmp_path, "text,label\na,x\nb,y\n", "labels.csv")
    with pytest.raises(UserError, match="line 4: unknown label 'zzz") as caught:
        read(labels, split="dev", eval_file=str(path))
    assert len(str(caught.value)) < 1000
    assert tables.format_names(["a", "b" * 61]) == f"a, {'b' * 60}..."
    assert tables.format_names([str(number) for number in range(11)]) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ..."


def test_a_wide_table_is_read_in_linear_time(tmp_path):
    """Comparing all pairs of the 200,000 columns would take an hour."""
    count = 200_000
    header = ",".join(f"column{number}" for number in range(count))
    path = written(tmp_path, f"{header}\n{',' * (count - 1)}\n")
    (row,) = tables.read_rows(str(path), BadRows())
    assert (row[0], len(row[1])) == (2, count)
    with pytest.raises(UserError, match=r"no column label among column0, .*column9, \.\.\.;") as caught:
        read(path)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("header", ["text,label", " Text ,LABEL"])
def test_a_header_that_columns_repeats_is_no_row(header, tmp_path, capsys):
    path = written(tmp_path, f"{header}\na,x\nb,y\n")
    task = table.TableTask(options(path, columns=["text", "label"]))
    assert task.head.labels == ("x", "y")
    assert task.read("train", BadRows()) == [TextExample("2", "a", None, 0), TextExample("3", "b", None, 1)]
    assert capsys.readouterr().out == (
        f"note: {path}, line 1 has the column names, so it is read as a header, not as a row\n"
    )


@pytest.mark.parametrize(("labels", "problem"), [
    (["Business|US", "Business|Sport", ""], r"line 2: the label 'Business\|US' contains '\|'.*--label_separator='\|'"),
    (["a;b", "b,c", "c"], r"line 3: the label 'b,c' contains ','; expected ';' between labels"),
    (["a b", "b c", "c"], r"line 2: .*'a b'.*--label_separator.*--label_kind=class"),
    (["a;b", "Arts, Crafts", ""], None),
    (["a", "", "b"], None),
])  # fmt: skip
def test_a_wrong_separator_of_labels_is_found(labels, problem, tmp_path):
    path = written(tmp_path, "text,label\n" + "".join(f't,"{label}"\n' for label in labels))
    if problem is None:
        table.TableTask(options(path, label_kind="multi_label"))
        return
    assert re.search(rf"train\.csv, {problem}", refusal(table.TableTask, options(path, label_kind="multi_label")))


def test_doubtful_classes_are_listed(tmp_path):
    path = written(tmp_path, "text,label\n" + "".join(f"t,{label}\n" for label in ("Hot dog", "hotdog", "cat") * 2))
    assert table.TableTask(options(path)).notes() == [
        "3 classes: Hot dog, cat, hotdog",
        "classes differ only by case or blanks: 'Hot dog', 'hotdog'",
    ]
    path = written(tmp_path, "text,label\na,x\na,x\na,y\na,z\n")
    assert table.TableTask(options(path)).notes()[1:] == ["2 of the classes occur once each: 'y', 'z'"]
    assert table.TableTask(options(path), labels=["x", "y", "z"]).notes() == ["3 classes: x, y, z"]


@pytest.mark.parametrize(("content", "problem"), [
    ("text,label\na,b,c\nd\n", r"has no rows; .* \(2 bad rows; the first: .*line 2: 3 columns; expected 2"),
    ("text,label\na,nan\n", r"has no labels in 'label'.* \(1 bad row; the first: .*line 2: label 'nan'"),
])  # fmt: skip
def test_the_reason_of_the_first_bad_row_is_told_where_all_are_bad(content, problem, tmp_path):
    assert re.search(problem, refusal(table.TableTask, options(written(tmp_path, content))))


@pytest.mark.parametrize("name", ["train.json", "train.jsonl"])
@pytest.mark.parametrize("indent", [None, 2])
def test_arrays_of_objects_are_read(name, indent, tmp_path):
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}, {"text": "", "label": "x"}]
    path = written(tmp_path, json.dumps([*rows, 3], indent=indent), name)
    bad_rows = KeptRows()
    assert read(path, bad_rows) == [TextExample("1", "a", None, 0), TextExample("2", "b", None, 1)]
    assert [problem.partition(", ")[2].partition(";")[0] for problem in bad_rows.problems] == [
        "row 3: an empty text in text", "row 4: expected a JSON object, received int"
    ]  # fmt: skip
    told = refusal(table.TableTask, options(written(tmp_path, '[{"text": "a", "label": NaN}]', name)))
    assert f"{name} is not valid JSON: NaN is not a JSON value" in told


@pytest.mark.parametrize("content", [
    {"text": {"0": "a", "1": "b"}, "label": {"0": "x", "1": "y"}},
    {"columns": ["text", "label"], "index": [0], "data": [["a", "x"]]},
    {"schema": {"fields": []}, "data": [{"text": "a", "label": "x"}]},
])  # fmt: skip
def test_other_layouts_of_json_tables_are_named(content, tmp_path):
    path = written(tmp_path, json.dumps(content), "train.json")
    with pytest.raises(UserError, match=r"train\.json, line 1: this is a whole table, .* orient='records', lines=True"):
        table.TableTask(options(path))
    path = written(tmp_path, '[["a", "x"]]', "train.json")
    with pytest.raises(UserError, match=r"line 1: expected a JSON object, received .* orient='records', lines=True"):
        table.TableTask(options(path))


def test_spreadsheets_and_latin_1_are_told_how_to_convert(tmp_path):
    (tmp_path / "train.xlsx").write_bytes(b"PK\x03\x04\x14\0\x06\0" + bytes(20))
    with pytest.raises(
        UserError, match=r"train\.xlsx has the extension \.xlsx; .* Save a spreadsheet \(\.xlsx\) as CSV"
    ):
        table.TableTask(options(tmp_path / "train.xlsx"))
    (tmp_path / "train.csv").write_bytes("text,label\na,x\nü,y\n".encode("latin-1"))
    with pytest.raises(
        UserError, match=r"train\.csv, line 3: byte 0xfc .* iconv -f LATIN1 -t UTF-8 .*train\.csv > NEW"
    ):
        table.TableTask(options(tmp_path / "train.csv"))


def test_the_training_file_is_read_once_and_its_bad_rows_are_reported_when_it_is_used(tmp_path, monkeypatch):
    path = written(tmp_path, "text,label\na,x\nb\nc,y\n")
    opened = []
    read_rows = tables.read_rows
    monkeypatch.setattr(tables, "read_rows", lambda path, *rest: opened.append(path) or read_rows(path, *rest))
    task = table.TableTask(options(path))
    bad_rows = KeptRows()
    assert [each.text_a for each in task.read("train", bad_rows)] == ["a", "c"]
    assert opened == [str(path)]
    assert bad_rows.problems == [f"{path}, line 3: 1 column; expected 2: text, label"]
    assert len(task.read("train", KeptRows())) == 2  # read again
