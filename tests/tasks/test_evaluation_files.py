import json
import pathlib
from typing import Any

import pytest

from official_bert.tasks.evaluation_files import read_evaluation_file
from official_bert.tasks.glue import GlueTask
from official_bert.tasks.options import GlueOptions, TableOptions, TaggingOptions, XnliOptions
from official_bert.tasks.table import TableTask
from official_bert.tasks.tagging import FolderTaggingTask, TableTaggingTask
from official_bert.tasks.task import Task
from official_bert.tasks.xnli import XnliTask
from tests.make import refusal, write_rows, write_text


def make_spec(task: Task) -> dict[str, Any]:
    """Returns the content of task.json."""
    return json.loads(json.dumps(task.task_spec(16)))


def test_the_conll_file_of_the_training_is_read(tmp_path: pathlib.Path):
    path = write_text(tmp_path / "train.txt", "DET a x\nNOUN cat y\n\nDET the x\n")
    options = TaggingOptions(data_dir=str(tmp_path), tag_column="0", word_column=1)
    task, sentences = read_evaluation_file(make_spec(FolderTaggingTask(options)), path)
    assert [(each.words, each.tags) for each in sentences] == [(("a", "cat"), ("DET", "NOUN")), (("the",), ("DET",))]
    assert task.metrics([(["DET", "NOUN"], [1.0, 1.0]), (["NOUN"], [1.0])], sentences) == {"accuracy": 2 / 3}


def test_the_table_of_tags_of_the_training_is_read(tmp_path: pathlib.Path):
    path = write_rows(tmp_path / "train.jsonl", [{"words": ["a", "cat"], "ner": ["DET", "NOUN"]}])
    task = TableTaggingTask(TableOptions(train_file=path, text_column="words", label_column="ner"))
    _, (sentence,) = read_evaluation_file(make_spec(task), path)
    assert (sentence.words, sentence.tags) == (("a", "cat"), ("DET", "NOUN"))


@pytest.mark.parametrize(("name", "content"), [
    ("dev.tsv", "sentence\tlabel\na film\t1\n"), ("a.tsv", "text\tlabel\na film\t1\n"),
    ("dev.csv", "text,label\na film,1\n"),
])  # fmt: skip
def test_files_of_glue_and_tables_are_read_for_its_tasks(name: str, content: str, tmp_path: pathlib.Path):
    path = write_text(tmp_path / name, content)
    task, (example,) = read_evaluation_file(make_spec(GlueTask("sst-2", GlueOptions())), path)
    assert (task.name, example.text_a, example.label) == ("sst-2", "a film", 1)


def test_the_rows_of_its_language_are_read_from_the_file_of_xnli(tmp_path: pathlib.Path):
    lines = ["language\tgold_label\tsentence1\tsentence2", "zh\tneutral\ta\tb", "de\tentailment\tc\td"]
    path = write_text(tmp_path / "xnli.dev.tsv", "\n".join(lines) + "\n")
    task, (example,) = read_evaluation_file(make_spec(XnliTask(XnliOptions(language="de"))), path)
    assert (task.name, example.text_a, example.text_b, example.label) == ("xnli", "c", "d", 1)


def test_errors_name_no_flags_of_other_commands(tmp_path: pathlib.Path):
    training = write_text(tmp_path / "train.csv", "title,label\na,x\nb,y\n")
    task = TableTask(TableOptions(train_file=training, text_column="title"))
    tags = FolderTaggingTask(TaggingOptions(data_dir=str(tmp_path)), ["DET"])
    for spec, name, content, message in (
        (make_spec(task), "a.csv", "text,label\na,x\n", "a.csv, line 1: no column title among text, label"),
        (make_spec(task), "b.csv", "title,label\na,z\n", "b.csv, line 2: unknown label 'z'"),
        (make_spec(task), "c.csv", "title;label\na;x\n", "c.csv, line 1: there is only one column, 'title;label'"),
        (make_spec(tags), "d.jsonl", '{"words": "a"}\n', "d.jsonl, line 1: no column text, label among words"),
        (make_spec(tags), "e.txt", "cat\n", "e.txt, line 1: column 0 of 1 is both the word and the tag"),
    ):
        told = refusal(read_evaluation_file, spec, write_text(tmp_path / name, content))
        assert message in told
        assert "--" not in told
