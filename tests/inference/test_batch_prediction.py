import json
import lzma
import os
import pathlib
import shutil
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from official_bert.checkpoints import checksums
from official_bert.errors import UserError
from official_bert.inference import batch_prediction, exports
from official_bert.inference.batch_prediction import predict, read_rows
from official_bert.inference.options import BatchPredictionOptions
from official_bert.runs.locks import lock_file
from official_bert.utils import files
from tests import stored_texts
from tests.make import refusal, write_rows, write_text


class Lengths(tf.Module):
    """A model that returns the length of each text, and fails for the text "fail"."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def lengths(self, text: Any) -> dict[str, Any]:
        tf.debugging.assert_none_equal(text, "fail")
        length = tf.strings.length(text, "UTF8_CHAR")
        return {"length": length, "text": text, "is_truncated": length > 50}


@pytest.fixture(scope="module")
def export_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("exports")
    for version in ("2", "10"):
        module = Lengths()
        tf.saved_model.save(module, str(folder / version), signatures=module.lengths)
        metadata = folder / version / exports.METADATA_FILE
        metadata.parent.mkdir()
        metadata.write_text('{"inputs": ["text"], "max_seq_length": 50}')
    return str(folder)


def run(export_dir: str, folder: pathlib.Path, name: str, output: str = "out.jsonl", **options: Any) -> str:
    return predict(BatchPredictionOptions(export_dir, f"{folder}/{name}", f"{folder}/{output}", **options))


def write_and_read_rows(
    path: pathlib.Path, content: str, columns: list[str], *table: dict[str, Any]
) -> list[dict[str, Any]]:
    return list(read_rows(write_text(path, content), columns, *table))


def read_answers(path: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_answers_have_the_order_of_the_texts(export_dir: str, tmp_path: pathlib.Path):
    texts = ["é" * (number * 7 % 50) + "\u2028中" for number in range(100)]
    write_rows(tmp_path / "in.jsonl", ({"text": text, "id": number} for number, text in enumerate(texts)))
    told = run(export_dir, tmp_path, "in.jsonl", batch_size=3)
    cut = sum(len(text) > 50 for text in texts)
    assert told.startswith("Wrote 100 answers to ")
    assert told.endswith(f"; truncated to the export's max_seq_length of 50 tokens: {cut}")
    # Not splitlines, which splits at more characters than JSON Lines does.
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").split("\n")
    assert [json.loads(line) for line in lines[:-1]] == [
        {"id": number, "length": len(text), "text": text, "is_truncated": len(text) > 50}
        for number, text in enumerate(texts)
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


@pytest.fixture
def stopped(export_dir: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> BatchPredictionOptions:
    """The options of a run that was stopped by Ctrl-C after 4 of 8 texts."""
    monkeypatch.setattr(batch_prediction, "BATCHES_AT_ONCE", 1)
    monkeypatch.setattr(batch_prediction, "_ROWS_A_DIGEST", 2)
    export = shutil.copytree(export_dir, tmp_path / "exports")
    path = write_rows(tmp_path / "in.jsonl", ({"text": "a" * number} for number in range(8)))
    options = BatchPredictionOptions(str(export), path, str(tmp_path / "out.jsonl"), batch_size=2)
    answers, batches = batch_prediction.answer_rows, []

    def interrupted(*given):
        batches.append(given)
        if len(batches) == 3:
            raise KeyboardInterrupt
        return answers(*given)

    with monkeypatch.context() as patch:
        patch.setattr(batch_prediction, "answer_rows", interrupted)
        with pytest.raises(KeyboardInterrupt):  # utils/command_line.py turns it into a one-line message
            predict(options)
    return options


def test_interrupted_run_is_resumed(stopped: BatchPredictionOptions, tmp_path: pathlib.Path):
    part = tmp_path / "out.jsonl.part"
    assert len(read_answers(part)) == 4
    with open(part, "a") as file:
        file.write('{"length": 4, "te')  # as after a power failure during a write
    assert predict(stopped) == f"Wrote 8 answers to {stopped.output_file}, 4 of them from an earlier run"
    assert [answer["length"] for answer in read_answers(tmp_path / "out.jsonl")] == list(range(8))
    assert not part.exists()


def test_an_incomplete_last_answer_does_not_complete_a_group_of_rows(
    stopped: BatchPredictionOptions, tmp_path: pathlib.Path
):
    with open(tmp_path / "out.jsonl.part", "a") as file:
        file.write('{"length": 4, "text": "aaaa"}\n{"length": 5, "te')  # the third group has one complete answer
    assert predict(stopped) == f"Wrote 8 answers to {stopped.output_file}, 4 of them from an earlier run"
    assert [answer["length"] for answer in read_answers(tmp_path / "out.jsonl")] == list(range(8))


def test_run_is_not_resumed_if_its_rows_changed(stopped: BatchPredictionOptions, tmp_path: pathlib.Path):
    text = (tmp_path / "in.jsonl").read_text()
    (tmp_path / "in.jsonl").write_text(text.replace('"aaa"', '"bbb"'))  # the last completed row
    assert "first 4 rows have changed" in refusal(predict, stopped)
    assert len(read_answers(tmp_path / "out.jsonl.part")) == 4


def test_unanswered_rows_may_be_corrected_before_resuming(stopped: BatchPredictionOptions, tmp_path: pathlib.Path):
    text = (tmp_path / "in.jsonl").read_text()
    (tmp_path / "in.jsonl").write_text(text.replace('"aaaa"', '"mend"') + '{"text": "more"}\n')
    assert predict(stopped) == f"Wrote 9 answers to {stopped.output_file}, 4 of them from an earlier run"
    texts = [answer["text"] for answer in read_answers(tmp_path / "out.jsonl")]
    assert texts == ["", "a", "aa", "aaa", "mend", "aaaaa", "a" * 6, "a" * 7, "more"]


def test_run_is_not_resumed_with_another_model(stopped: BatchPredictionOptions, tmp_path: pathlib.Path):
    with open(tmp_path / "exports" / "10" / exports.METADATA_FILE, "a") as file:
        file.write(" ")
    assert "the model_sha256 was " in refusal(predict, stopped)


def test_each_file_of_an_export_is_hashed_once(
    export_dir: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    folder = pathlib.Path(shutil.copytree(exports.find_newest_version(export_dir), tmp_path / "1"))
    model_files = exports.list_model_files(str(folder))
    checksums.write(str(folder), [os.path.relpath(path, folder) for path in model_files], {})
    hashed: list[str] = []
    sha256 = files.sha256
    monkeypatch.setattr(files, "sha256", lambda path: hashed.append(path) or sha256(path))
    write_rows(tmp_path / "in.jsonl", [{"text": "a"}])
    predict(BatchPredictionOptions(str(folder), str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl")))
    assert sorted(hashed) == sorted(model_files)


def test_full_disk_is_reported_in_one_line(tmp_path: pathlib.Path):
    (tmp_path / "part").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"Cannot write .*part: No space left on device"):
        batch_prediction._append(f"{tmp_path}/part", [{}])


def test_refused_row_is_reported_by_number(export_dir: str, tmp_path: pathlib.Path):
    texts = ["a", "long " * 9, "fail", "b"]
    write_rows(tmp_path / "in.jsonl", ({"text": text} for text in texts))
    assert "in.jsonl: the model cannot answer row 3 " in refusal(run, export_dir, tmp_path, "in.jsonl")


def test_output_file_is_locked(stopped: BatchPredictionOptions, tmp_path: pathlib.Path):
    before = (tmp_path / "out.jsonl.part").read_bytes()
    with lock_file(f"{tmp_path}/./out.jsonl", "output_file"), pytest.raises(UserError, match="is in use"):
        predict(stopped)
    assert (tmp_path / "out.jsonl.part").read_bytes() == before
    assert predict(stopped).endswith("4 of them from an earlier run")


def test_damaged_export_is_rejected(stopped: BatchPredictionOptions, tmp_path: pathlib.Path):
    version = tmp_path / "exports" / "10"
    checksums.write(str(version), ["saved_model.pb"], {})
    with open(version / "saved_model.pb", "ab") as file:
        file.write(b"x")
    assert "saved_model.pb does not match its checksum" in refusal(predict, stopped)


INPUT = "--output_file would write .*, which is an input"


@pytest.mark.parametrize(
    ("name", "output", "message"),
    [
        ("in.jsonl", "in.jsonl", INPUT),
        ("in.jsonl", "./folder/../in.jsonl", INPUT),
        ("in.jsonl", "link.jsonl", INPUT),
        ("in.jsonl", "hard.jsonl", INPUT),
        ("in.jsonl", "exports/10/saved_model.pb", INPUT),
        ("out.jsonl.part", "out.jsonl", INPUT),
        ("out.jsonl.part.json", "out.jsonl", INPUT),
        ("in.jsonl", "", "--output_file would write .*, which is a folder"),
        ("in.jsonl", "in.jsonl/out", "cannot create the folder"),
    ],
)
def test_unwritable_output_is_rejected(name: str, output: str, message: str, export_dir: str, tmp_path: pathlib.Path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "exports").symlink_to(export_dir)
    path = tmp_path / name
    path.write_text('{"text": "a"}\n')
    (tmp_path / "link.jsonl").symlink_to(name)
    (tmp_path / "hard.jsonl").hardlink_to(path)
    with pytest.raises(UserError, match=message):
        run(f"{tmp_path}/exports", tmp_path, name, output)
    assert path.read_text() == '{"text": "a"}\n'


def test_tables_are_read_as_for_fine_tuning(tmp_path: pathlib.Path):
    for name, content, expected in (
        ("in.csv", 'number,text\n1,"a, ""b""\nc"\n2,d\n', ['a, "b"\nc', "d"]),
        ("in.tsv", 'text\tnumber\n"a\t1\n', ['"a']),
        ("bom.csv", "\ufefftext\nb\n", ["b"]),
        ("long.csv", f"text\n{'c' * 140_000}\n", ["c" * 140_000]),
    ):
        assert write_and_read_rows(tmp_path / name, content, ["text"]) == [{"text": text} for text in expected]


def test_rows_are_read_by_the_columns_that_the_model_was_trained_on(tmp_path: pathlib.Path):
    table = {"columns": ["label", "title", "body"], "text_column": "title,body", "text_pair_column": "label"}
    rows = write_and_read_rows(tmp_path / "in.csv", "1,a b,c\n2,d,e\n", ["text", "text_pair"], table)
    assert rows == [{"text": "a b c", "text_pair": "1"}, {"text": "d e", "text_pair": "2"}]
    content, named = '{"title": "a", "body": "b"}\n{"text": "c", "title": "d", "body": "e"}\n', {**table, "columns": []}
    assert write_and_read_rows(tmp_path / "in.jsonl", content, ["text"], named) == [{"text": "a b"}, {"text": "d e"}]
    told = refusal(write_and_read_rows, tmp_path / "in.jsonl", '{"title": "a"}\n', ["text"], table)
    assert "line 1: no key body, label; the keys are title" in told


def test_empty_columns_are_skipped_as_in_training(tmp_path: pathlib.Path):
    table = {"text_column": "title,body"}
    content = '{"title": "", "body": "a"}\n{"title": null, "body": "b", "id": "q7"}\n{"title": "", "body": ""}\n'
    rows = write_and_read_rows(tmp_path / "in.jsonl", content, ["text"], table)
    assert rows == [{"text": "a"}, {"text": "b", "id": "q7"}, {"text": ""}]
    told = refusal(write_and_read_rows, tmp_path / "in.jsonl", '{"title": null, "body": null}\n', ["text"], table)
    assert "in.jsonl, line 1: title is null; expected a text" in told


def test_a_note_about_the_file_is_printed_once(
    export_dir: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    export = shutil.copytree(export_dir, tmp_path / "exports")
    for version in ("2", "10"):
        table = {"columns": ["text", "label"], "text_column": "text", "label_column": "label"}
        (export / version / exports.METADATA_FILE).write_text(json.dumps({"inputs": ["text"], "table": table}))
    (tmp_path / "in.csv").write_text("text,label\na,x\nb,y\n")
    run(str(export), tmp_path, "in.csv")
    assert [answer["text"] for answer in read_answers(tmp_path / "out.jsonl")] == ["a", "b"]
    assert capsys.readouterr().out.count("in.csv, line 1 has the column names") == 1


def test_columns_named_like_inputs_are_read_as_in_training(tmp_path: pathlib.Path):
    content = 'title,text,"a,b"\none,two,three\n'
    for columns, expected in (
        ({"text_column": "title,text"}, {"text": "one two"}),
        ({"text_column": "title", "text_pair_column": "text"}, {"text": "one", "text_pair": "two"}),
        ({"text_column": "text", "text_pair_column": "title"}, {"text": "two", "text_pair": "one"}),
        ({"text_column": "title", "text_pair_column": "a,b"}, {"text_pair": "three"}),
    ):
        assert write_and_read_rows(tmp_path / "in.csv", content, list(expected), columns) == [expected], columns


@pytest.mark.parametrize(("trained", "content", "expected"), [
    ("headline,body", "headline,body,text\na,b,see appendix\n", "a b"),
    ("title", "text,title\nsee appendix,a\n", "a"),
    ("title", "text,id\na,1\n", "a"),
    ("title", "text,label\na,x\n", "a"),
    ("headline,body", "headline,text\na,see appendix\n", "headline, text; the model was trained on headline, body"),
    ("title", "Title,text\na,see appendix\n", "Title, text; the model was trained on title"),
])  # fmt: skip
def test_training_columns_take_precedence_over_a_column_text(
    trained: str, content: str, expected: str, tmp_path: pathlib.Path
):
    (tmp_path / "in.csv").write_text(content)
    table = {"text_column": trained, "label_column": "label"}
    if "trained on" not in expected:
        assert [row["text"] for row in read_rows(str(tmp_path / "in.csv"), ["text"], table)] == [expected]
        return
    with pytest.raises(UserError, match=f"in.csv, line 2: the columns are {expected}"):
        list(read_rows(str(tmp_path / "in.csv"), ["text"], table))


def test_run_is_not_resumed_from_answers_of_another_run(export_dir: str, tmp_path: pathlib.Path):
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "out.jsonl.part").write_text('{"text": "b"}\n')
    assert "out.jsonl.part holds a different run" in refusal(run, export_dir, tmp_path, "in.jsonl")
    assert (tmp_path / "out.jsonl.part").read_text() == '{"text": "b"}\n'


@pytest.mark.parametrize(("name", "content", "message"), [
    ("in.jsonl", '{"text": "a"}\n\n{"txt": "b"}\n', "line 3: no key text; the keys are txt"),
    ("in.jsonl", '{"text": 5}\n', "line 1: text is 5; expected a text"),
    ("in.jsonl", '{"text": "a"\n', "line 1: not valid JSON"),
    ("in.jsonl", '{"text": null}\n', "line 1: text is null; expected a text"),
    ("in.csv", "txt,Text\na,b\n", "line 1: no column text among txt, Text; rename the columns$"),
    ("in.csv", "text;id\na;1\n", "line 1: there is only one column, 'text;id'. Are the columns separated by"),
    ("in.csv", "text,id\na\n", "line 2: 1 column; expected 2: text, id$"),
    ("in.csv", "text,text\na,b\n", "two columns are named text"),
    ("in.csv", 'text\n"a\n', "line 2: .* quote"),
    ("in.jsonl", '{"text": "a\\ud800"}\n', r"line 1: text contains the lone surrogate .ud800"),
])  # fmt: skip
def test_rows_without_an_input_are_reported_before_writing(
    name: str, content: str, message: str, export_dir: str, tmp_path: pathlib.Path
):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        run(export_dir, tmp_path, name)
    assert not (tmp_path / "out.jsonl").exists()


def test_endings_are_a_list_or_separate_columns(tmp_path: pathlib.Path):
    for name, content in (
        ("in.tsv", "prompt\tending0\tending1\nwho\ta\tb\n"),
        ("in.jsonl", '{"prompt": "who", "endings": ["a", "b"]}\n'),
    ):
        rows = write_and_read_rows(tmp_path / name, content, ["prompt", "endings"])
        assert rows == [{"prompt": "who", "endings": ["a", "b"]}]


@pytest.mark.parametrize(("endings", "problem"), [
    ('["a", null]', r"endings\[1\] is null"), ('"ab"', 'endings is "ab"; expected a list'), ("null", "endings is null"),
])  # fmt: skip
def test_invalid_endings_are_reported(endings: str, problem: str, tmp_path: pathlib.Path):
    with pytest.raises(UserError, match=f"in.jsonl, line 1: {problem}"):
        write_and_read_rows(
            tmp_path / "in.jsonl", f'{{"prompt": "who", "endings": {endings}}}\n', ["prompt", "endings"]
        )


def test_columns_of_endings_are_ordered_by_their_numbers(tmp_path: pathlib.Path):
    numbers = [10, *range(10)]
    header = "\t".join(f"ending{number}" for number in numbers)
    content = f"prompt\t{header}\nwho\t" + "\t".join(map(str, numbers)) + "\n"
    (row,) = write_and_read_rows(tmp_path / "in.tsv", content, ["prompt", "endings"])
    assert row["endings"] == [str(number) for number in range(11)]


@pytest.mark.parametrize("header", ["ending1\tending2", "ending0\tending_b", "ending0\tending00"])
def test_columns_of_endings_with_other_names_are_rejected(header: str, tmp_path: pathlib.Path):
    (tmp_path / "in.tsv").write_text(f"prompt\t{header}\nwho\ta\tb\n")
    with pytest.raises(UserError, match=r"in.tsv, line 2: .*expected ending0, ending1"):
        list(read_rows(str(tmp_path / "in.tsv"), ["prompt", "endings"]))


@pytest.mark.parametrize("content", ["a\n\nb\n", "a\n\nb", "a\r\n\r\nb\r\n"])
def test_each_line_of_a_text_file_is_answered(content: str, export_dir: str, tmp_path: pathlib.Path):
    (tmp_path / "in.txt").write_bytes(content.encode())
    predict(BatchPredictionOptions(export_dir, str(tmp_path / "in.txt"), str(tmp_path / "out.jsonl")))
    assert [answer["text"] for answer in read_answers(tmp_path / "out.jsonl")] == ["a", "", "b"]


@pytest.mark.parametrize("store", ["xz", "tfds", *stored_texts.STORED])
def test_data_sets_are_answered_like_json_lines(
    store: str, export_dir: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    texts = ["é" * (number * 7 % 40) + "\n中" for number in range(20)]
    if store == "xz":
        rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        path = write_text(tmp_path / "in.jsonl.xz", lzma.compress(rows.encode()))
    elif store == "tfds":
        monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
        path = f"tfds:{stored_texts.prepare_tfds(tmp_path, texts)}"
    else:
        path = stored_texts.STORED[store](tmp_path, texts)
    predict(BatchPredictionOptions(export_dir, path, str(tmp_path / "out.jsonl"), batch_size=3))
    assert [answer["text"] for answer in read_answers(tmp_path / "out.jsonl")] == texts


def test_bad_row_of_a_data_set_is_reported_by_number(export_dir: str, tmp_path: pathlib.Path):
    path = stored_texts.parquet(tmp_path, ["a", None])
    with pytest.raises(UserError, match=r"texts.parquet, row 2: text is null; expected a text"):
        predict(BatchPredictionOptions(export_dir, path, str(tmp_path / "out.jsonl")))
    folder = stored_texts.hugging_face(tmp_path, ["a", "b", "c", None])
    with pytest.raises(UserError, match=r"dataset, data-00001-of-00002.arrow, row 2: text is null"):
        list(read_rows(folder, ["text"]))
    path = stored_texts.parquet(tmp_path, [b"a", b"\xff"], pa.binary())
    with pytest.raises(UserError, match=r"row 2: text is {\"bytes\": \"not UTF-8\"}; expected a text"):
        list(read_rows(path, ["text"]))
    with pytest.raises(UserError, match=r"output_file would write .*data-00000-of-00002.arrow, which is an input"):
        predict(BatchPredictionOptions(export_dir, folder, f"{folder}/data-00000-of-00002.arrow"))
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("is_constant", [True, False])
def test_constant_answers_cause_a_warning(
    is_constant: bool, export_dir: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    class Constant:
        def run(self, columns: Any, batch_size: int) -> Any:
            return {"label": np.array(["a" if is_constant or text == "0" else "b" for text in columns["text"]])}

    monkeypatch.setattr(batch_prediction, "load_model", lambda folder, verify: Constant())
    (tmp_path / "texts.csv").write_text("text\n" + "".join(f"{number}\n" for number in range(12)))
    output = str(tmp_path / "answers.jsonl")
    batch_prediction.predict(BatchPredictionOptions(export_dir, str(tmp_path / "texts.csv"), output))
    warning = f"warning: {output}: all 12 answers are a: the model may have learned nothing"
    assert (warning in capsys.readouterr().out) == is_constant
