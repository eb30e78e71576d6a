import functools
import json
import pathlib

import numpy as np
import pytest

from official_bert.kinds.question_answering.questions import Answer, Question
from official_bert.tasks import squad
from official_bert.tasks.options import SquadOptions, SquadV2Options
from official_bert.utils.bad_rows import BadRows
from tests.kinds.question_answering.test_questions import LENGTH, QUESTIONS
from tests.make import assert_mentions, assert_rejected, write_text
from tests.tasks.bad_rows import KeptRows, read_kept

read = functools.partial(read_kept, squad.read)


def write(path: pathlib.Path, *entries: dict) -> str:
    paragraphs = [{"context": "The cat sat on the mat.", "qas": list(entries)}]
    return write_text(path, json.dumps({"version": "x", "data": [{"title": "t", "paragraphs": paragraphs}]}))


def entry(name: str | int, *answers: tuple[str, int], **more: object) -> dict:
    given_answers = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": f"who {name} ?", "answers": given_answers, **more}


@pytest.mark.parametrize("name", ["q", 7])
def test_a_question_is_read_with_all_its_answers(name: str | int, tmp_path: pathlib.Path):
    answers = ("cat", 4), ("The cat", 5)  # only the position of the first one is needed
    path = write(tmp_path / "a.json", entry(name, *answers))
    expected = Question(str(name), f"who {name} ?", "The cat sat on the mat.", tuple(Answer(*each) for each in answers))
    assert read(path, version_2=False, split="train") == ([expected], [])


@pytest.mark.parametrize(("version_2", "split", "bad", "names"), [
    (False, "train", entry("bad", ("dog", 4)), ("'cat'", 4, "'dog'")),
    (False, "train", entry("bad", ("cat", -19)), ("'The'", -19, "'cat'")),
    (False, "train", entry("bad", ("mat.", 999)), (999, "'mat.'")),
    (False, "train", entry("bad", (" ", 3)), ("' '", "word")), (False, "train", entry("bad"), ("answers",)),
    (False, "train", entry("bad", is_impossible=True), ("is_impossible", "--task=squad_v2")),
    (False, "train", entry("good", ("cat", 4)), ("same", "id")), (False, "dev", entry("bad"), ("answers",)),
    (False, "dev", entry("bad", ("cat", 4), question=" \n"), ("empty",)),
    (False, "test", entry("bad", ("cat", "4")), ("'answer_start'", '"4"', "int")),
    (True, "train", entry("bad", is_impossible=False), ("answers", "is_impossible")),
    (True, "dev", {"id": "bad", "question": "who ?"}, ("answers", "is_impossible")),
    (True, "dev", entry("bad", ("cat", 4), is_impossible=True), ("is_impossible", "'cat'")),
    (True, "test", entry("bad", is_impossible="false"), ("'is_impossible'", '"false"', "bool")),
])  # fmt: skip
def test_invalid_questions_are_reported_and_the_rest_is_read(version_2, split, bad, names, tmp_path: pathlib.Path):
    path = write(tmp_path / "a.json", entry("good", ("cat", 4)), bad, entry("also", ("sat", 8)))
    questions, (problem,) = read(path, version_2=version_2, split=split)
    assert [question.id for question in questions] == ["good", "also"]
    assert_mentions(problem, path, f"question {bad['id']}", *names)


def test_unanswerable_unknown_and_misplaced_answers_are_distinguished(tmp_path: pathlib.Path):
    entries = entry("none", ("a", 0), is_impossible=True), entry("empty", question=""), entry("misplaced", ("dog", 4))
    entries += ({"id": "unknown", "question": "who ?"},)
    path, misplaced = write(tmp_path / "a.json", *entries), (Answer("dog", 4),)
    questions, problems = read(path, version_2=True, split="test")
    assert [question.answers for question in questions] == [(), (), misplaced, None]
    assert problems == []
    questions, (problem,) = read(path, version_2=False, split="test")
    assert [question.answers for question in questions] == [None, misplaced, None]
    assert_mentions(problem, "question none", "is_impossible")
    path = write(tmp_path / "dev.json", entry("empty"))
    assert [question.answers for question in read(path, version_2=True, split="dev")[0]] == [()]


@pytest.mark.parametrize(("content", "names"), [
    ("[]", ("list", "object")), ("{", ("valid", "line 1")), ('{"version": 1}', ("'data'", "missing")),
    ('{"data": {}}', ("'data'", "{}", "list")), ('{"data": []}', ("questions", "data", "paragraphs", "qas")),
    ('{"data": [{"paragraphs": [{"qas": []}]}]}', ("article 0", "paragraph 0", "'context'")),
    ('{"data": [{"paragraphs": [{"context": "c", "qas": [{"id": 3.5}]}]}]}', ("question 0", "'id'", 3.5, "str")),
    ('{"data": [{"paragraphs": [{"context": "c", "qas": [{"id": "q", "question": "", "answers": [{"text": "c"}]}]}]}]}',
     ("question q", "'answer_start'")),
])  # fmt: skip
def test_files_of_another_layout_are_refused(content: str, names, tmp_path: pathlib.Path):
    path = write_text(tmp_path / "a.json", content)
    assert_rejected((path, *names), squad.read, path, version_2=True, split="train", bad_rows=BadRows())


def test_every_real_question_is_read(test_data: pathlib.Path):
    for name, *expected in (("train-v1.1-part.json", 11_877, 0), ("dev-v2.0-part.json", 1_407, 702)):
        questions, problems = read(str(test_data / "squad" / name), version_2="v2.0" in name, split="train")
        assert [len(questions), sum(question.answers == () for question in questions)] == expected
        assert problems == []


@pytest.mark.parametrize("version_2", [False, True])
def test_answers_are_scored_and_written_as_the_original_writes_them(version_2: bool, tokenizer, tmp_path: pathlib.Path):
    options = SquadV2Options if version_2 else SquadOptions
    task = squad.SquadTask(options(doc_stride=3, max_query_length=4))
    questions = QUESTIONS if version_2 else QUESTIONS[:1]
    features = task.spec.featurize(questions, tokenizer, LENGTH)
    row = int(np.flatnonzero(features.targets["start_logits"])[-1])
    # The logits are highest at the answer in this row, and at [CLS] in the others.
    outputs = {}
    for name, targets in features.targets.items():
        outputs[name] = [np.float32(np.eye(length)[0]) * 5 for length in np.diff(features.splits)]
        outputs[name][row] = np.roll(outputs[name][row], targets[row])
    predictions = task.spec.decode(outputs, features, questions)
    scores = task.metrics(predictions, questions)
    assert {scores[name] for name in (("exact", "f1", "best_f1") if version_2 else ("exact_match", "f1"))} == {100.0}
    assert {task.best_metric} <= {*task.score_names} <= {*scores}
    for split in ("dev", "test"):
        paths = task.write_predictions(str(tmp_path), split, predictions, questions)
        names = ["predictions", "nbest_predictions", "null_odds"][: 2 + version_2]
        assert paths == [str(tmp_path / f"{name}_{split}.json") for name in names]
        said, n_best, *odds = (json.loads(pathlib.Path(path).read_text()) for path in paths)
        assert said == {question.id: "dog" if question.id == "q0" else "" for question in questions}
        assert n_best["q0"][0]["text"] == "dog"
        assert list(n_best["q0"][0]) == ["text", "probability", "start_logit", "end_logit"]
        assert odds == [{"q0": -10.0, "q1": 0.0, "q2": 10.0}] * version_2


def test_a_folder_without_exactly_one_file_is_rejected(tmp_path: pathlib.Path):
    task, names = squad.SquadTask(SquadOptions(data_dir=str(tmp_path))), ("train-v1.1-a.json", "train-v1.1-b.json")
    assert_rejected((tmp_path, "train-v1.1.json", "train-v1.1*.json"), task.read, "train", BadRows())
    for name in names:
        write_text(tmp_path / name, "{}")
    assert_rejected((tmp_path, *names), task.read, "train", BadRows())
    path, bad_rows = write(tmp_path / "train-v1.1.json", entry("a", ("cat", 4)), entry("b", ("dog", 4))), KeptRows()
    assert (len(task.read("train", bad_rows)), task.eval_splits, task.test_splits) == (1, ("dev",), ("test",))
    assert_mentions(*bad_rows.problems, path, "question b")
    assert_rejected((path, "question b", "--on_bad_row=skip"), task.read, "train", BadRows())
