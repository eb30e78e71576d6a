"""The records of SQuAD, SWAG, CODAH and tagging: which files they read, what they keep, what they write."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest

from official_bert.errors import UserError
from official_bert.tasks import multiple_choice_task, squad, squad_task, tagging, tagging_task
from official_bert.tasks.options import MultipleChoiceOptions, SquadOptions, SquadV2Options, TaggingOptions
from official_bert.tasks.squad import Answer, Limits, Question
from official_bert.tasks.tagging import Sentence
from official_bert.tasks.task import DEV, EXAMPLE, LABELS, NO_LABEL, TEST, TRAIN
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils.bad_rows import SKIP, BadRows

CONTEXT = "the cat sat on the mat . the dog ran"
QUESTIONS = [
    Question("q0", "who ran ?", CONTEXT, (Answer("dog", 29), Answer("the dog", 25))),
    Question("q1", "who sat ?", "", ()),
    Question("q2", "cat", CONTEXT, ()),
]
LENGTH = 13


@pytest.fixture
def tokenizer(vocab_file: str) -> FastTokenizer:
    return FastTokenizer(vocab_file)


def outputs_for(features, wanted: dict[int, tuple[int, int]]):
    """Logits that are highest at one start and end of some rows, and at [CLS] of the others."""
    starts, ends = [], []
    for row, length in enumerate(np.diff(features.splits)):
        start, end = wanted.get(row, (0, 0))
        starts.append(5.0 * (np.arange(length) == start).astype(np.float32))
        ends.append(5.0 * (np.arange(length) == end).astype(np.float32))
    return {"start_logits": starts, "end_logits": ends}


def test_windows_come_back_from_features(tokenizer: FastTokenizer):
    cut = squad.cut_into_windows(QUESTIONS, tokenizer.exact, Limits(LENGTH, 3, 4))
    features = squad_task.features_of(cut, QUESTIONS)
    assert len(features) == len(cut) > 4
    for window, again in zip(cut, squad_task.windows_of(features), strict=True):
        for field in dataclasses.fields(window):
            if field.name not in ("start_position", "end_position"):
                np.testing.assert_array_equal(getattr(window, field.name), getattr(again, field.name), field.name)
    assert features.targets["start_logits"].tolist() == [window.start_position for window in cut]
    unknown = [dataclasses.replace(QUESTIONS[0], answers=None)]
    assert (
        squad_task.features_of(squad.cut_into_windows(unknown, tokenizer.exact, Limits(LENGTH, 3, 4)), unknown).targets
        == {}
    )


@pytest.mark.parametrize("version_2", [False, True])
def test_answers_are_scored_and_written_as_the_original_writes_them(
    version_2: bool, tokenizer: FastTokenizer, tmp_path: pathlib.Path
):
    options = SquadV2Options if version_2 else SquadOptions
    task = squad_task.SquadTask(options(doc_stride=3, max_query_length=4))
    questions = QUESTIONS if version_2 else QUESTIONS[:1]
    features = task.featurize(questions, tokenizer, LENGTH)
    starts, ends = (features.targets[name] for name in ("start_logits", "end_logits"))
    row = int(np.flatnonzero(starts)[-1])
    predictions = task.decode(outputs_for(features, {row: (starts[row], ends[row])}), features, questions)
    scores = task.metrics(predictions, questions)
    assert {scores[name] for name in (("exact", "f1", "best_f1") if version_2 else ("exact_match", "f1"))} == {100.0}
    assert task.best_metric in scores
    paths = task.write_predictions(str(tmp_path), DEV, predictions, questions)
    names = ["predictions.json", "nbest_predictions.json", *(["null_odds.json"] if version_2 else [])]
    assert [pathlib.Path(path).name for path in paths] == names
    said, n_best, *odds = (json.loads(pathlib.Path(path).read_text()) for path in paths)
    assert said == {question.id: "dog" if question.id == "q0" else "" for question in questions}
    assert n_best["q0"][0]["text"] == "dog"
    assert list(n_best["q0"][0]) == ["text", "probability", "start_logit", "end_logit"]
    if version_2:
        assert odds == [{"q0": -10.0, "q1": 0.0, "q2": 10.0}]
    paths = task.write_predictions(str(tmp_path), TEST, predictions, questions)
    assert pathlib.Path(paths[0]).name == "test_predictions.json"
    first, *rest = task.outcomes(predictions, questions)
    assert (first.expected, first.predicted, first.correct) == ("dog | the dog", "dog", True)
    assert [(each.expected, each.predicted, each.correct) for each in rest] == [("(no answer)",) * 2 + (True,)] * len(
        rest
    )


def test_a_bad_question_stops_reading_or_is_counted(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture):
    answer = {"text": "dog", "answer_start": 4}
    good = answer | {"answer_start": 29}
    qas = [{"id": name, "question": "?", "answers": [each]} for name, each in (("a", answer), ("b", good))]
    content = {"data": [{"paragraphs": [{"context": CONTEXT, "qas": qas}]}]}
    path = tmp_path / "train-v1.1-part.json"
    path.write_text(json.dumps(content))
    task = squad_task.SquadTask(SquadOptions(data_dir=str(tmp_path)))
    message = f"{path}, question a: the context has 'cat' at character 4, not the answer 'dog'"
    with pytest.raises(UserError, match=f"{message}; correct it, or pass --on_bad_row=skip"):
        task.read(TRAIN, BadRows())
    bad_rows = BadRows(SKIP)
    assert [question.id for question in task.read(TRAIN, bad_rows)] == ["b"]
    assert capsys.readouterr().err == f"skipped {message}\n"
    assert bad_rows.summary() == [f"1 bad rows of {path} were skipped"]


@pytest.mark.parametrize(("names", "message"), [
    ([], r"has no train part; expected a file named train-v1\.1\.json or train-v1\.1\*\.json"),
    (["train-v1.1-a.json", "train-v1.1-b.json"], "which one is the train part"),
])  # fmt: skip
def test_a_folder_without_the_one_file_is_refused(names: list[str], message: str, tmp_path: pathlib.Path):
    for name in names:
        (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match=message):
        squad_task.SquadTask(SquadOptions(data_dir=str(tmp_path))).read(TRAIN, BadRows())


def test_a_folder_that_is_not_there_is_refused(tmp_path: pathlib.Path):
    with pytest.raises(UserError, match="there is no folder"):
        multiple_choice_task.MultipleChoiceTask("swag", MultipleChoiceOptions(data_dir=str(tmp_path / "nowhere"))).read(
            TRAIN, BadRows()
        )


def test_choices_keep_their_four_sequences_together(tokenizer: FastTokenizer, tmp_path: pathlib.Path):
    task = multiple_choice_task.MultipleChoiceTask("codah", MultipleChoiceOptions(data_dir=str(tmp_path)))
    (tmp_path / "dev.tsv").write_text("o\tthe cat\tran\tsat\ton\tin\t2\no\tthe dog\tran\tsat\ton\tin the sun\t0\n")
    examples = task.read(DEV, BadRows())
    features = task.featurize(examples, tokenizer, 8)
    assert (len(features), features.choices) == (2, 4)
    assert features.targets[LABELS].tolist() == [2, 0]
    assert np.diff(features.splits).tolist() == [6] * 7 + [8]
    predictions = task.decode([np.eye(4)[2], np.eye(4)[1]], features, examples)
    assert task.metrics(predictions, examples) == {"accuracy": 0.5}
    (path,) = task.write_predictions(str(tmp_path), DEV, predictions, examples)
    assert pathlib.Path(path).read_text() == "2\n1\n"
    assert [each.correct for each in task.outcomes(predictions, examples)] == [True, False]
    with pytest.raises(UserError, match="max_seq_length is 3"):
        task.featurize(examples, tokenizer, 3)


def tagging_folder(folder: pathlib.Path) -> str:
    (folder / "eng.train").write_text("the O\ncat B-X\n\nsat O\n")
    (folder / "eng.testa").write_text("cat B-X\nran O\n\nunaffable O\n")
    (folder / "eng.testb").write_text("cat B-X\n")
    return str(folder)


def test_tags_are_learnt_scored_and_written_for_conlleval(tokenizer: FastTokenizer, tmp_path: pathlib.Path):
    folder = tagging_folder(tmp_path)
    task = tagging_task.FolderTaggingTask(TaggingOptions(data_dir=folder))
    assert (task.labels, task.best_metric, task.eval_splits) == (("B-X", "O"), "f1", (DEV, TEST))
    sentences = task.read(DEV, BadRows())
    features = task.featurize(sentences, tokenizer, 8)
    no = NO_LABEL
    assert features.targets[LABELS].tolist() == [no, 0, 1, no, no, 1, no, no, no]
    assert features.details[EXAMPLE].tolist() == [0, 1]
    right = [
        np.array([[9, 0], [9, 0], [0, 9], [9, 0]], np.float32),
        np.array([[9, 0], [0, 9]] + [[9, 0]] * 3, np.float32),
    ]
    predictions = task.decode(right, features, sentences)
    assert [tags for tags, _ in predictions] == [["B-X", "O"], ["O"]]
    assert task.metrics(predictions, sentences)["f1"] == 1.0
    (path,) = task.write_predictions(str(tmp_path), DEV, predictions, sentences)
    assert pathlib.Path(path).read_text() == "cat\tB-X\tB-X\nran\tO\tO\n\nunaffable\tO\tO\n\n"
    assert all(each.correct for each in task.outcomes(predictions, sentences))


def test_windows_of_tags_come_back_from_features(tokenizer: FastTokenizer):
    sentences = [Sentence(("the", "unaffable", "cat", "sat", "on"), None, 1), Sentence(("dog",), None, 7)]
    cut = tagging.cut_into_windows([each.words for each in sentences], tokenizer.exact, 6)
    features = tagging_task.features_of(cut, sentences, {})
    assert features.targets == {}
    assert tagging_task.windows_of(features) == cut
    assert len(cut) > 2


def test_words_without_tags_are_predicted_by_a_model_that_is_there(tmp_path: pathlib.Path):
    (tmp_path / "test.txt").write_text("the\ncat\n")
    task = tagging_task.FolderTaggingTask(TaggingOptions(data_dir=str(tmp_path), tag_column="none"), labels=["N", "V"])
    assert (task.labels, task.eval_splits, task.test_splits, task.best_metric) == (("N", "V"), (), (TEST,), "accuracy")
    sentences = task.read(TEST, BadRows())
    (path,) = task.write_predictions(str(tmp_path), TEST, [(["N", "V"], [1.0, 1.0])], sentences)
    assert pathlib.Path(path).read_text() == "the\tN\ncat\tV\n\n"
    with pytest.raises(UserError, match="has no train part"):
        tagging_task.FolderTaggingTask(TaggingOptions(data_dir=str(tmp_path)))
