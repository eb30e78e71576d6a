import json

import pytest

from official_bert.tasks.all_tasks import make_task
from official_bert.tasks.evaluation_files import read_evaluation_file
from official_bert.tasks.options import TASK_OPTIONS, TableOptions, TaggingOptions
from tests.make import assert_mentions, refusal, write_text


def read(task, path: str):
    """Reads a file for a model whose task.json describes the task."""
    return read_evaluation_file(json.loads(json.dumps(task.task_spec(16))), path)


def test_the_conll_training_file_can_be_evaluated(tmp_path):
    path = write_text(tmp_path / "train.txt", "DET a x\nNOUN cat y\n\nDET the x\n")
    options = TaggingOptions(data_dir=str(tmp_path), tag_column="0", word_column=1)
    task, sentences = read(make_task("tagging", options), path)
    assert [(each.words, each.tags) for each in sentences] == [(("a", "cat"), ("DET", "NOUN")), (("the",), ("DET",))]
    assert task.metrics([(["DET", "NOUN"], [1.0, 1.0]), (["NOUN"], [1.0])], sentences) == {"accuracy": 2 / 3}


def test_the_tag_table_of_the_training_can_be_evaluated(tmp_path):
    path = write_text(tmp_path / "train.jsonl", '{"words": ["a", "cat"], "ner": ["DET", "NOUN"]}\n')
    options = TableOptions(label_kind="tagging", train_file=path, text_column="words", label_column="ner")
    _, (sentence,) = read(make_task("table", options), path)
    assert (sentence.words, sentence.tags) == (("a", "cat"), ("DET", "NOUN"))


_XNLI = "language\tgold_label\tsentence1\tsentence2\nzh\tneutral\ta\tb\nde\tentailment\ta film\td\n"


@pytest.mark.parametrize(("task", "settings", "name", "content", "second"), [
    ("sst-2", {}, "dev.tsv", "sentence\tlabel\na film\t1\n", None),
    ("sst-2", {}, "a.tsv", "text\tlabel\na film\t1\n", None), ("sst-2", {}, "b.csv", "text,label\na film,1\n", None),
    ("rte", {"doc_stride": 3}, "dev.csv", "text,text_pair,label\na film,d,not_entailment\n", "d"),
    ("xnli", {"language": "de"}, "xnli.dev.tsv", _XNLI, "d"),
])  # fmt: skip
def test_files_of_glue_xnli_and_tables_are_read_for_their_tasks(task, settings, name, content, second, tmp_path):
    trained = make_task(task, TASK_OPTIONS[task](**settings))
    found, (example,) = read(trained, write_text(tmp_path / name, content))
    assert (found.name, found.spec) == (task, trained.spec)
    assert (example.text_a, example.text_b, example.label) == ("a film", second, 1)


def test_questions_are_read_for_both_versions_of_squad(tmp_path):
    answers = [{"text": "b", "answer_start": 2}]
    paragraph = {"context": "a b", "qas": [{"id": "1", "question": "what ?", "answers": answers}]}
    path = write_text(tmp_path / "dev.json", json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    for task, settings in (("squad", {"n_best_size": 3}), ("squad_v2", {"null_score_diff_threshold": 0.5})):
        trained = make_task(task, TASK_OPTIONS[task](**settings))
        found, (question,) = read(trained, path)
        assert (found.name, found.spec, question.text) == (trained.name, trained.spec, "what ?")


def test_errors_do_not_mention_flags_of_other_commands(tmp_path):
    training = write_text(tmp_path / "train.csv", "title,label\na,x\nb,y\n")
    task = make_task("table", TableOptions(train_file=training, text_column="title"))
    tags = make_task("tagging", TaggingOptions(data_dir=str(tmp_path)), ["DET"])
    for trained, name, content, names in (
        (task, "a.csv", "text,label\na,x\n", ("line 1", "'title'", "'text', 'label'")),
        (task, "b.csv", "title,label\na,z\n", ("line 2", "'z'")),
        (task, "c.csv", "title;label\na;x\n", ("line 1", "'title;label'")),
        (tags, "d.jsonl", '{"words": "a"}\n', ("line 1", "'text', 'label'", "'words'")),
        (tags, "e.txt", "cat\n", ("line 1", 0, "word", "tag")),
    ):
        told = refusal(read, trained, write_text(tmp_path / name, content))
        assert_mentions(told, tmp_path / name, *names)
        assert "--" not in told
