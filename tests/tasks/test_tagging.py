import json
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from official_bert.tasks import all_tasks, conll, tagging
from official_bert.tasks.heads.features import EXAMPLE, LABELS, NO_LABEL
from official_bert.tasks.heads.tagging import Sentence
from official_bert.tasks.options import TableOptions, TaggingOptions
from official_bert.tasks.task import DEV, TEST, Task
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils import tables
from official_bert.utils.bad_rows import BadRows
from tests.make import refusal, write_text
from tests.stored_texts import prepare_tfds_rows
from tests.tasks.bad_rows import KeptRows


def test_how_tags_are_scored_is_said(tmp_path: pathlib.Path):
    write_text(tmp_path / "train.txt", "a B\ncat L\nran O\n")
    task = tagging.FolderTaggingTask(TaggingOptions(data_dir=str(tmp_path)))
    assert task.best_metric == "f1"
    assert task.notes() == ["the tags are entities in BILOU without types, which are scored as conlleval counts them"]
    write_text(tmp_path / "train.txt", "a DET\ncat NOUN\n")
    task = tagging.FolderTaggingTask(TaggingOptions(data_dir=str(tmp_path)))
    assert task.best_metric == "accuracy"
    (note,) = task.notes()
    assert note.startswith("the tags (DET, NOUN) are of no scheme of entities")


def table_task(**more: Any) -> Task:
    return all_tasks.make_task("table", TableOptions(label_kind="tagging", **more))


def test_tags_come_from_a_table(tmp_path: pathlib.Path):
    csv, jsonl = tmp_path / "a.csv", tmp_path / "b.jsonl"
    csv.write_text('text,label\n"a cat, sat",DET NOUN VERB\na dog,DET NOUN\n')
    jsonl.write_text(json.dumps({"words": ["a", "hot dog"], "tags": ["DET", "NOUN"]}) + "\n")
    task = table_task(train_file=str(csv), eval_file=str(csv), predict_file=str(csv))
    assert task.head.labels == ("DET", "NOUN", "VERB")
    assert (task.eval_splits, task.test_splits) == (("dev",), ("test",))
    sentences = task.read("dev", BadRows())
    assert sentences[1] == Sentence(("a", "dog"), ("DET", "NOUN"), 3)
    assert [each.tags for each in task.read("test", BadRows())] == [None, None]
    task = table_task(train_file=str(jsonl), text_column="words", label_column="tags")
    assert task.read("train", BadRows()) == [Sentence(("a", "hot dog"), ("DET", "NOUN"), 1)]
    csv.write_text("text,label\na cat,DET NOUN\na dog,DET\nthe dog,DET X\n")
    task = table_task(train_file=str(jsonl), text_column="words", label_column="tags", eval_file=str(csv))
    assert "a.csv, line 2: no column words, tags among text, label" in refusal(task.read, "dev", BadRows())
    task = table_task(train_file=str(csv))
    bad_rows = KeptRows()
    conll.from_rows(tables.read_rows(str(csv), bad_rows), "a.csv", bad_rows, "text", "label", ["DET", "NOUN"])
    assert bad_rows.problems == [
        "a.csv, line 3: 2 words and 1 tags; expected a tag for each word",
        "a.csv, line 4: unknown tag X; expected one of DET, NOUN",
    ]


def test_tags_come_from_tensorflow_datasets(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    name = prepare_tfds_rows(
        tmp_path, [{"tokens": ["EU", "rejects"], "ner": [1, 0]}, {"tokens": ["it"], "ner": [0]}],
        tokens=tfds.features.Sequence(tfds.features.Text()),
        ner=tfds.features.Sequence(tfds.features.ClassLabel(names=["O", "B-ORG"])),
    )  # fmt: skip
    task = table_task(train_file=f"tfds:{name}", text_column="tokens", label_column="ner")
    assert task.head.labels == ("B-ORG", "O")
    assert [(each.words, each.tags) for each in task.read("train", BadRows())] == [
        (("EU", "rejects"), ("B-ORG", "O")), (("it",), ("O",))
    ]  # fmt: skip


def test_a_tag_that_training_lacks_counts_as_wrong(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "x-ud-train.conllu").write_text("1\ta\ta\tDET\n2\tcat\tcat\tNOUN\n")
    (tmp_path / "x-ud-train.txt").write_text("a cat")
    (tmp_path / "x-ud-dev.conllu").write_text("1\ta\ta\tDET\n2\tran\tran\tVERB\n")
    task = tagging.FolderTaggingTask(TaggingOptions(data_dir=str(tmp_path)))
    sentences = task.read("dev", BadRows())
    assert "1 words of the dev part have tags that the model does not know (VERB)" in capsys.readouterr().out
    assert task.metrics([(["DET", "NOUN"], [1.0, 1.0])], sentences) == {"accuracy": 0.5}


def tagging_folder(folder: pathlib.Path) -> str:
    (folder / "eng.train").write_text("the O\ncat B-X\n\nsat O\n")
    (folder / "eng.testa").write_text("cat B-X\nran O\n\nunaffable O\n")
    (folder / "eng.testb").write_text("cat B-X\n")
    return str(folder)


def test_tags_are_learnt_scored_and_written_for_conlleval(tokenizer: FastTokenizer, tmp_path: pathlib.Path):
    folder = tagging_folder(tmp_path)
    task = tagging.FolderTaggingTask(TaggingOptions(data_dir=folder))
    assert (task.head.labels, task.best_metric, task.eval_splits) == (("B-X", "O"), "f1", (DEV, TEST))
    sentences = task.read(DEV, BadRows())
    features = task.head.featurize(sentences, tokenizer, 8)
    no = NO_LABEL
    assert features.targets[LABELS].tolist() == [no, 0, 1, no, no, 1, no, no, no]
    assert features.details[EXAMPLE].tolist() == [0, 1]
    right = [
        np.array([[9, 0], [9, 0], [0, 9], [9, 0]], np.float32),
        np.array([[9, 0], [0, 9]] + [[9, 0]] * 3, np.float32),
    ]
    predictions = task.head.decode(right, features, sentences)
    assert [tags for tags, _ in predictions] == [["B-X", "O"], ["O"]]
    assert task.metrics(predictions, sentences)["f1"] == 1.0
    (path,) = task.write_predictions(str(tmp_path), DEV, predictions, sentences)
    assert pathlib.Path(path).read_text() == "cat\tB-X\tB-X\nran\tO\tO\n\nunaffable\tO\tO\n\n"
    assert all(each.correct for each in task.head.outcomes(predictions, sentences))


def test_words_without_tags_are_predicted_by_a_model_that_is_there(tmp_path: pathlib.Path):
    (tmp_path / "test.txt").write_text("the\ncat\n")
    task = tagging.FolderTaggingTask(TaggingOptions(data_dir=str(tmp_path), tag_column="none"), labels=["N", "V"])
    assert (task.head.labels, task.eval_splits, task.test_splits, task.best_metric) == (
        ("N", "V"),
        (),
        (TEST,),
        "accuracy",
    )
    sentences = task.read(TEST, BadRows())
    (path,) = task.write_predictions(str(tmp_path), TEST, [(["N", "V"], [1.0, 1.0])], sentences)
    assert pathlib.Path(path).read_text() == "the\tN\ncat\tV\n\n"
    assert "has no train part" in refusal(tagging.FolderTaggingTask, TaggingOptions(data_dir=str(tmp_path)))
