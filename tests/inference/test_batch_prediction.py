import dataclasses
import errno
import json
import os
import pathlib
import shutil
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from official_bert.checkpoints import checksums
from official_bert.inference import batch_prediction, exports
from official_bert.inference.batch_prediction import predict, read_rows
from official_bert.inference.options import BatchPredictionOptions
from official_bert.kinds.names import CLASSIFICATION, QUESTION_ANSWERING
from official_bert.runs.locks import lock_file
from official_bert.utils import files
from tests import stored_texts
from tests.inference.batch_models import export_batches, interrupt_at_group
from tests.make import assert_mentions, assert_rejected, refusal, write_rows, write_text


@pytest.fixture(scope="module")
def export_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("exports")
    for version in ("2", "10"):
        export_batches(folder / version)
    return str(folder)


def run(export_dir: str, folder: pathlib.Path, name: str, output: str = "out.jsonl", **options: Any) -> str:
    return predict(BatchPredictionOptions(export_dir, f"{folder}/{name}", f"{folder}/{output}", **options))


def read_answers(path: pathlib.Path) -> list[dict[str, Any]]:
    # Not splitlines, which splits at more characters than JSON Lines does.
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def test_answers_have_the_order_of_the_texts(export_dir: str, tmp_path: pathlib.Path, capsys):
    texts = ["é" * (number * 7 % 50) + "\u2028中" for number in range(100)]
    write_rows(tmp_path / "in.jsonl", ({"text": text, "id": number} for number, text in enumerate(texts)))
    told = run(export_dir, tmp_path, "in.jsonl", batch_size=3)
    answers = read_answers(tmp_path / "out.jsonl")
    assert told.startswith("Wrote 100 answers to ")
    assert told.endswith(f"max_seq_length of 50 tokens: {sum(len(text) > 50 for text in texts)}")
    for number, (text, answer) in enumerate(zip(texts, answers, strict=True)):
        assert answer.pop("longest") >= len(text)
        assert answer == {"id": number, "length": len(text), "text": text, "is_truncated": len(text) > 50}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]
    assert "exists" not in capsys.readouterr().out
    assert run(export_dir, tmp_path, "in.jsonl", batch_size=3) == told
    assert f"note: {tmp_path / 'out.jsonl'} exists" in capsys.readouterr().out


def test_the_summary_names_the_limit_that_texts_were_truncated_to():
    metadata = {"kind": QUESTION_ANSWERING, "max_seq_length": 8}
    changes: list[Any] = [{}, {"task_spec": {"max_query_length": 3}}]
    changes.append({"kind": CLASSIFICATION, "task_spec": {"max_seq_length": 9}})  # exported with a smaller limit
    limits = [batch_prediction._describe_limit(metadata | change).partition("export's ")[2] for change in changes]
    assert limits == ["max_query_length", "max_query_length of 3 tokens", "max_seq_length of 8 tokens"]


@pytest.fixture
def stopped(export_dir: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> BatchPredictionOptions:
    """The options of a run that was stopped by Ctrl-C after 4 of 8 texts."""
    monkeypatch.setattr(batch_prediction, "BATCHES_AT_ONCE", 1)
    monkeypatch.setattr(batch_prediction, "_ROWS_A_DIGEST", 2)
    export = shutil.copytree(export_dir, tmp_path / "exports")
    path = write_rows(tmp_path / "in.jsonl", ({"text": "a" * number} for number in range(8)))
    options = BatchPredictionOptions(str(export), path, str(tmp_path / "out.jsonl"), batch_size=2)
    with monkeypatch.context() as patch:
        interrupt_at_group(3, patch)
        with pytest.raises(KeyboardInterrupt):  # utils/command_line.py turns it into a one-line message
            predict(options)
    return options


@pytest.mark.parametrize("tail", [
    "",
    '{"length": 4, "te',  # as after a power failure during a write
    '{"length": 4, "text": "aaaa"}\n{"length": 5, "te',  # the third group has one complete answer
])  # fmt: skip
def test_interrupted_run_is_resumed(tail: str, stopped: BatchPredictionOptions, tmp_path: pathlib.Path):
    part, rows = tmp_path / "out.jsonl.part", tmp_path / "in.jsonl"
    assert len(read_answers(part)) == 4
    with open(part, "a") as file:
        file.write(tail)
    # These rows have no answer.
    rows.write_text(rows.read_text().replace('"aaaaa"', '"mend"') + json.dumps({"text": "m" * 51}) + "\n")
    told = predict(stopped)
    assert told.startswith(f"Wrote 9 answers to {stopped.output_file}, 4 of them from an earlier run")
    assert told.endswith("max_seq_length of 50 tokens: 1 of the other 5")
    expected = ["", "a", "aa", "aaa", "aaaa", "mend", "a" * 6, "a" * 7, "m" * 51]
    assert [answer["text"] for answer in read_answers(tmp_path / "out.jsonl")] == expected
    assert not part.exists()


def test_a_resumed_run_names_a_rejected_row_correctly(stopped: BatchPredictionOptions, tmp_path: pathlib.Path):
    rows = tmp_path / "in.jsonl"
    rows.write_text(rows.read_text().replace('"aaaaa"', '"refused"'))
    assert_rejected((rows, "row 6"), predict, stopped)


def test_run_is_not_resumed_if_something_changed(stopped: BatchPredictionOptions, tmp_path: pathlib.Path):
    rows, version, part = tmp_path / "in.jsonl", tmp_path / "exports" / "10", tmp_path / "out.jsonl.part"
    before = part.read_bytes()
    with lock_file(f"{tmp_path}/./out.jsonl", "output_file"):
        assert_rejected(("--output_file", tmp_path / "out.jsonl", "use"), predict, stopped)
    checksums.write(str(version), ["saved_model.pb"], {})
    for path, old, new, *names in (
        (rows, b'"aaa"', b'"bbb"', part, 4),  # the last one
        (version / exports.METADATA_FILE, b"{", b"{ ", part, "model_sha256"),
        (version / "saved_model.pb", b"text", b"test", version / "saved_model.pb", version / "checksums.json"),
    ):
        content = path.read_bytes()
        path.write_bytes(content.replace(old, new))
        assert_rejected((*names,), predict, stopped)
        path.write_bytes(content)
    newest = version.rename(version.with_name("11"))
    assert_rejected((part, version, newest), predict, stopped)
    newest.rename(version)
    assert part.read_bytes() == before
    relative = dataclasses.replace(stopped, export_dir=os.path.relpath(stopped.export_dir))
    assert ", 4 of them from an earlier run" in predict(relative)
    part.write_text('{"text": "b"}\n')  # without a file that describes its run
    assert_rejected((part, "model_sha256"), predict, stopped)
    assert part.read_text() == '{"text": "b"}\n'


def test_each_file_of_an_export_is_hashed_once(export_dir: str, tmp_path: pathlib.Path, monkeypatch):
    folder = pathlib.Path(shutil.copytree(exports.find_newest_version(export_dir), tmp_path / "1"))
    model_files = exports.list_model_files(str(folder))
    checksums.write(str(folder), [os.path.relpath(path, folder) for path in model_files], {})
    hashed = mock.Mock(wraps=files.sha256)
    monkeypatch.setattr(files, "sha256", hashed)
    write_rows(tmp_path / "in.jsonl", [{"text": "a"}])
    run(str(folder), tmp_path, "in.jsonl")
    assert sorted(call.args[0] for call in hashed.call_args_list) == sorted(model_files)


def test_full_disk_is_reported_in_one_line(tmp_path: pathlib.Path):
    (tmp_path / "part").symlink_to("/dev/full")
    message = refusal(batch_prediction._append, f"{tmp_path}/part", [{}])
    assert_mentions(message, tmp_path / "part", os.strerror(errno.ENOSPC))
    assert "\n" not in message


@pytest.mark.parametrize(("name", "output"), [
    ("in.jsonl", "in.jsonl"),
    ("in.jsonl", "exports/10/saved_model.pb"),
    ("out.jsonl.part", "out.jsonl"),
    ("out.jsonl.part.json", "out.jsonl"),
    ("in.jsonl", ""),
    ("in.jsonl", "in.jsonl/out"),
])  # fmt: skip
def test_unwritable_output_is_rejected(name: str, output: str, export_dir: str, tmp_path: pathlib.Path):
    (tmp_path / "exports").symlink_to(export_dir)
    path = pathlib.Path(write_rows(tmp_path / name, [{"text": "a"}]))
    reason = {"": "a folder", "in.jsonl/out": "create"}.get(output, "input")
    assert_rejected((tmp_path, reason), run, f"{tmp_path}/exports", tmp_path, name, output)
    assert path.read_text() == '{"text": "a"}\n'


TRAINED = {"columns": ["label", "title", "body"], "text_column": "title,body", "text_pair_column": "label"}
NAMED = {**TRAINED, "columns": []}
ODD_NAMES = 'title,text,"a,b"\none,two,three\n'
ENDINGS = "\t".join(f"ending{number}" for number in (10, *range(10)))
NUMBERS = "\t".join(map(str, (10, *range(10))))


def titled(trained: str) -> dict[str, str]:
    return {"text_column": trained, "label_column": "label"}


@pytest.mark.parametrize(("name", "content", "table", "expected"), [
    # The columns that the model was trained on.
    ("in.csv", "1,a b,c\n2,d,e\n", TRAINED, [{"text": "a b c", "text_pair": "1"}, {"text": "d e", "text_pair": "2"}]),
    ("in.jsonl", '{"title": "a", "body": "b"}\n{"text": "c", "title": "d", "body": "e"}\n', NAMED,
     [{"text": "a b"}, {"text": "d e"}]),
    ("in.jsonl", '{"title": "", "body": "a"}\n{"title": null, "body": "b", "id": "q7"}\n{"title": "", "body": ""}\n',
     {"text_column": "title,body"}, [{"text": "a"}, {"text": "b", "id": "q7"}, {"text": ""}]),
    # Columns that are named like inputs.
    ("in.csv", ODD_NAMES, {"text_column": "title,text"}, [{"text": "one two"}]),
    ("in.csv", ODD_NAMES, {"text_column": "title", "text_pair_column": "text"}, [{"text": "one", "text_pair": "two"}]),
    ("in.csv", ODD_NAMES, {"text_column": "title", "text_pair_column": "a,b"}, [{"text_pair": "three"}]),
    ("in.csv", "headline,body,text\na,b,see appendix\n", titled("headline,body"), [{"text": "a b"}]),
    ("in.csv", "text,title\nsee appendix,a\n", titled("title"), [{"text": "a"}]),
    ("in.csv", "text,id\na,1\n", titled("title"), [{"text": "a", "id": "1"}]),
    ("in.csv", "text,label\na,x\n", titled("title"), [{"text": "a"}]),
    ("in.csv", "text,ending_date\na,b\n", {}, [{"text": "a"}]),
    # Endings are a list or numbered columns.
    ("in.tsv", "prompt\tending0\tending1\nwho\ta\tb\n", {}, [{"prompt": "who", "endings": ["a", "b"]}]),
    ("in.jsonl", '{"prompt": "who", "endings": ["a", "b"]}\n', {}, [{"prompt": "who", "endings": ["a", "b"]}]),
    ("in.tsv", f"prompt\t{ENDINGS}\nwho\t{NUMBERS}\n", {},
     [{"prompt": "who", "endings": [str(number) for number in range(11)]}]),
])  # fmt: skip
def test_rows_are_read_as_for_fine_tuning(name, content, table, expected, tmp_path):
    inputs = [column for column in expected[0] if column != "id"]
    assert list(read_rows(write_text(tmp_path / name, content), inputs, table)) == expected


@pytest.mark.parametrize(("name", "content", "table", "line", "expected"), [
    ("in.jsonl", '{"text": "a"}\n\n{"txt": "b"}\n', {}, 3, ["'text'", "'txt'"]),
    ("in.jsonl", '{"headline": 5}\n', titled("headline"), 1, ["headline", 5]),
    ("in.jsonl", '{"text": null}\n', {}, 1, ["text", "null"]),
    ("in.jsonl", '{"title": "a"}\n', TRAINED, 1, ["'body'", "'label'", "'title'"]),
    ("in.jsonl", '{"title": null, "body": null}\n', {"text_column": "title,body"}, 1, ["title", "null"]),
    ("in.csv", "headline,text\na,see appendix\n", titled("headline,body"), 2, ["headline, text", "headline, body"]),
    ("in.jsonl", '{"prompt": "who", "endings": ["a", null]}\n', {}, 1, ["endings[1]", "null"]),
    ("in.jsonl", '{"prompt": "who", "endings": "ab"}\n', {}, 1, ["endings", '"ab"']),
    ("in.jsonl", '{"prompt": "who", "endings": ["a", "b", "c"]}\n', {}, 1, ["endings", 3, 2]),
    ("in.csv", 'prompt,endings\nwho,"[""a"", ""b""]"\n', {}, 2, ["endings", "list", "ending0, ending1"]),
    ("in.csv", "prompt,ending0\nwho,a\n", {}, 2, ["are ending0", "ending0, ending1"]),
    ("in.tsv", "prompt 1\ta\tb\nwho\ta\tb\n", {}, 1, ["'prompt'", "'ending0'", "'ending1'"]),
    ("in.tsv", "prompt\tending0\tending00\nwho\ta\tb\n", {}, 2, ["are ending0, ending00", "ending0, ending1"]),
])  # fmt: skip
def test_rows_without_an_input_are_reported(name, content, table, line, expected, tmp_path):
    path, inputs = write_text(tmp_path / name, content), ["prompt", "endings"] if "prompt" in content else ["text"]
    metadata = {"inputs": inputs, "table": table, "task_spec": {"num_choices": 2}}
    prediction = batch_prediction.Prediction("", 1, metadata, "")
    assert_rejected((f"{path}, line {line}", *expected), lambda: list(prediction.read(path)))


def test_an_output_file_with_the_ending_of_another_format_is_refused():
    for name in ("out.csv", "out.TSV", "out.parquet", "out.jsonl.gz", "out.jsonl.zst"):
        assert_rejected(("--output_file", name, ".jsonl"), BatchPredictionOptions, "exports", "in.csv", name)


def test_notes_about_the_file_are_printed_once(export_dir: str, tmp_path: pathlib.Path, capsys):
    export = shutil.copytree(export_dir, tmp_path / "exports")
    table = {"columns": ["text", "label", "id"], "text_column": "text", "label_column": "label"}
    (export / "10" / exports.METADATA_FILE).write_text(json.dumps({"inputs": ["text"], "table": table}))
    (tmp_path / "in.csv").write_text("text,label,id\na,x,1\nb,y,2\n")
    run(str(export), tmp_path, "in.csv")
    assert [answer["text"] for answer in read_answers(tmp_path / "out.jsonl")] == ["a", "b"]
    printed = capsys.readouterr().out
    assert printed.count("in.csv, line 1 has the column names") == 1
    assert printed.count("columns that the model does not use: label\n") == 1
    endings = write_text(tmp_path / "endings.tsv", "prompt\tending0\tother\nwho\ta\tb\n")
    assert len(list(read_rows(endings, ["prompt", "endings"]))) == 1
    assert "does not use: other\n" in capsys.readouterr().out


@pytest.mark.parametrize("store", stored_texts.STORED)
def test_data_sets_are_answered_like_json_lines(store: str, export_dir: str, tmp_path: pathlib.Path):
    texts = ["é" * (number * 7 % 40) + "\n中" for number in range(20)]
    path = stored_texts.STORED[store](tmp_path, texts)
    predict(BatchPredictionOptions(export_dir, path, str(tmp_path / "out.jsonl"), batch_size=3))
    assert [answer["text"] for answer in read_answers(tmp_path / "out.jsonl")] == texts


def test_bad_row_of_a_data_set_is_reported_by_number(export_dir: str, tmp_path: pathlib.Path):
    path, output = stored_texts.parquet(tmp_path, ["a", None]), str(tmp_path / "out.jsonl")
    assert_rejected((path, "row 2", "null"), predict, BatchPredictionOptions(export_dir, path, output))
    assert not pathlib.Path(output).exists()
    folder = stored_texts.hugging_face(tmp_path, ["a", "b", "c", None])
    assert_rejected((folder, "data-00001-of-00002.arrow", "row 2", "null"), lambda: list(read_rows(folder, ["text"])))
    path = stored_texts.parquet(tmp_path, [b"a", b"\xff"], pa.binary())
    assert_rejected((path, "row 2", '{"bytes": "not UTF-8"}'), lambda: list(read_rows(path, ["text"])))
    options = BatchPredictionOptions(export_dir, folder, f"{folder}/data-00000-of-00002.arrow")
    assert_rejected(("--output_file", options.output_file, "input"), predict, options)


def test_rows_that_are_only_refused_together_are_answered_separately():
    class Alone:
        def run(self, columns: Any, batch_size: int) -> Any:
            if len(columns["text"]) > 1:
                raise exports.RefusedTextsError("too much memory")
            return columns

    rows = [{"text": "a"}, {"text": "b"}]
    assert list(batch_prediction.answer_groups(Alone(), iter(rows), 4, lambda index: ("", index))) == [rows]


@pytest.mark.parametrize("is_constant", [True, False])
def test_constant_answers_cause_a_warning(is_constant: bool, export_dir: str, tmp_path, monkeypatch, capsys):
    labels = np.array(["a"] + ["a" if is_constant else "b"] * 11)
    model = mock.Mock(**{"run.return_value": {"label": labels}})
    monkeypatch.setattr(batch_prediction.Prediction, "load", lambda _, verify: model)
    write_rows(tmp_path / "in.jsonl", ({"text": str(number)} for number in range(12)))
    run(export_dir, tmp_path, "in.jsonl")
    assert (f"warning: {tmp_path}/out.jsonl: all 12 answers are a: " in capsys.readouterr().out) == is_constant
