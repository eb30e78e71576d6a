import dataclasses
import json
import pathlib

import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from official_bert.errors import UserError
from official_bert.tasks import squad
from official_bert.tasks.squad import Answer, Limits, Question
from official_bert.tokenization.exact import FullTokenizer
from official_bert.utils.bad_rows import BadRows
from tests.tasks.bad_rows import KeptRows

SMALL = Limits(max_seq_length=12, doc_stride=2, max_query_length=3)


@pytest.fixture
def tokenizer(vocab_file: str) -> FullTokenizer:
    return FullTokenizer(vocab_file)


def written(path: pathlib.Path, *entries: dict, context: str = "The cat sat on the mat.") -> str:
    content = {"version": "x", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(entries)}]}]}
    path.write_text(json.dumps(content))
    return str(path)


def entry(name: str, *answers: tuple[str, int], **more: object) -> dict:
    given_answers = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": f"who {name} ?", "answers": given_answers, **more}


def read(path: str, version_2: bool, for_training: bool) -> tuple[list[Question], list[str]]:
    """The good questions, and the bad ones' problems."""
    bad_rows = KeptRows()
    return squad.read(path, version_2, for_training, bad_rows), bad_rows.problems


def test_a_question_is_read_with_all_its_answers(tmp_path: pathlib.Path):
    path = written(tmp_path / "a.json", entry("q", ("cat", 4), ("The cat", 0)))
    (question,), problems = read(path, version_2=False, for_training=True)
    assert question == Question("q", "who q ?", "The cat sat on the mat.", (Answer("cat", 4), Answer("The cat", 0)))
    assert problems == []


@pytest.mark.parametrize(("bad", "reason"), [
    (entry("bad", ("dog", 4)), "the context has 'cat' at character 4, not the answer 'dog'"),
    (entry("bad", ("cat", 5)), "not the answer 'cat'"),
    (entry("bad", ("cat", -19)), "not the answer 'cat'"),
    (entry("bad", ("mat.", 999)), "the context has '' at character 999"),
    (entry("bad", (" ", 3)), "its answer ' ' has no word"),
    (entry("bad"), "it has no answers"),
    (entry("bad", is_impossible=True), "use the task of v2.0"),
    (entry("good", ("cat", 4)), "its id was used before"),
])  # fmt: skip
def test_what_cannot_be_learnt_is_named_and_the_rest_is_read(bad: dict, reason: str, tmp_path: pathlib.Path):
    path = written(tmp_path / "a.json", entry("good", ("cat", 4)), bad, entry("also", ("sat", 8)))
    questions, (problem,) = read(path, version_2=False, for_training=True)
    assert [question.id for question in questions] == ["good", "also"]
    assert problem.startswith(f"{path}, question {bad['id']}: ")
    assert reason in problem


def test_unanswerable_unknown_and_misplaced_answers_are_told_apart(tmp_path: pathlib.Path):
    unknown = {"id": "unknown", "question": "?"}
    entries = entry("none", is_impossible=True), entry("empty"), entry("misplaced", ("dog", 4)), unknown
    path = written(tmp_path / "a.json", *entries)
    questions, problems = read(path, version_2=True, for_training=False)
    assert [question.answers for question in questions] == [(), (), (Answer("dog", 4),), None]
    assert problems == []


@pytest.mark.parametrize(("content", "message"), [
    ("[]", "expected a JSON object"),
    ("{", "not valid JSON"),
    ('{"version": 1}', "there is no 'data'"),
    ('{"data": {}}', "'data' is {}; expected list"),
    ('{"data": []}', "has no questions"),
    ('{"data": [{"paragraphs": [{"qas": []}]}]}', "article 0, paragraph 0: there is no 'context'"),
    ('{"data": [{"paragraphs": [{"context": "c", "qas": [{"id": 3}]}]}]}', "question 0: 'id' is 3; expected str"),
    ('{"data": [{"paragraphs": [{"context": "c", "qas": [{"id": "q", "question": "", "answers": [{"text": "c"}]}]}]}]}',
     "question q: there is no 'answer_start'"),
])  # fmt: skip
def test_files_of_another_layout_are_refused(content: str, message: str, tmp_path: pathlib.Path):
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(UserError, match=message.replace("[", r"\[")):
        read(str(path), version_2=True, for_training=True)


def test_a_window_is_question_and_context(tokenizer: FullTokenizer):
    question = Question("q", "cat dog mat sun", "The cat sat on the mat, un affable.", (Answer("mat", 19),))
    first, second, third, *_ = squad.cut_into_windows([question], tokenizer, SMALL)
    tokens = tokenizer.convert_ids_to_tokens(first.input_ids)
    assert tokens == "[CLS] cat dog mat [SEP] the cat sat on the mat [SEP]".split()
    assert first.segment_ids == [0] * 5 + [1] * 7
    assert (first.start_position, first.end_position) == (10, 10)
    assert tokenizer.convert_ids_to_tokens(third.input_ids)[5:] == "the mat , un a ##f [SEP]".split()
    assert (third.start_position, third.end_position) == (6, 6)
    assert tokenizer.convert_ids_to_tokens(second.input_ids)[second.start_position] == "mat"


def test_an_answer_outside_the_window_is_learnt_as_none(tokenizer: FullTokenizer):
    question = Question("q", "cat", "the cat sat on the mat . the dog ran on the mat in the sun", (Answer("the", 0),))
    cut = squad.cut_into_windows([question], tokenizer, SMALL)
    assert [window.start_position > 0 for window in cut] == [True] + [False] * (len(cut) - 1)
    (no_answer,) = squad.cut_into_windows(
        [dataclasses.replace(question, answers=(), context="the cat")], tokenizer, SMALL
    )
    assert (no_answer.start_position, no_answer.end_position) == (0, 0)


def test_an_answer_within_words_is_found_to_the_piece(tokenizer: FullTokenizer):
    context = "(sunning-unaffable)."
    for text, pieces in (("sun", ["sun"]), ("aff", ["##aff"]), ("ning-un", ["##n", "##ing", "-", "un"])):
        question = Question("q", "cat", context, (Answer(text, context.index(text)),))
        (window,) = squad.cut_into_windows([question], tokenizer, Limits(30, 2, 3))
        learnt = window.input_ids[window.start_position : window.end_position + 1]
        assert tokenizer.convert_ids_to_tokens(learnt) == [p if p in tokenizer.vocab else "[UNK]" for p in pieces]


@pytest.mark.parametrize(("context", "answer", "start", "expected"), [
    ("a sun.un b", "un", 3, (3, 3)),  # within "sun", which is one piece; "un" stands after the dot, in the same word
    ("a sun un b", "un", 3, (1, 1)),  # in another word, which may say another thing
    ("a sun.un b", "un", 6, (3, 3)),  # where it stands is no piece's middle
    ("sun.un", "un", 1, (2, 2)),
])  # fmt: skip
def test_an_answer_that_cuts_a_piece_is_learnt_from_the_same_word(
    context: str, answer: str, start: int, expected: tuple[int, int], tokenizer: FullTokenizer
):
    question = Question("q", "cat", context, (Answer(answer, start),))
    pieces = squad.tokenize_context(context, tokenizer)
    assert squad.answer_tokens(question, pieces, tokenizer) == expected


def test_limits_without_room_for_context_are_refused():
    with pytest.raises(UserError, match="--max_seq_length=67 leaves no room"):
        Limits(max_seq_length=67)
    with pytest.raises(UserError, match="--doc_stride=0"):
        Limits(doc_stride=0)


@pytest.mark.parametrize(("name", "version_2", "count"), [
    ("train-v1.1-part.json", False, 11_877), ("dev-v2.0-part.json", True, 1_407),
])  # fmt: skip
def test_every_real_question_can_be_learnt(name: str, version_2: bool, count: int, test_data: pathlib.Path):
    questions, problems = read(str(test_data / "squad" / name), version_2, for_training=True)
    assert len(questions) == count
    assert problems == []
    impossible = sum(question.answers == () for question in questions)
    assert impossible == (702 if version_2 else 0)


@pytest.mark.parametrize("version_2", [False, True])
def test_questions_come_from_tensorflow_datasets(version_2: bool, tmp_path: pathlib.Path):
    context = "The cat sat on the mat."
    second_row = ([], [], True) if version_2 else (["sat"], [8], False)
    rows = [("1", "who?", ["cat", "The cat"], [4, 0], False), ("2", "what?", *second_row)]

    def data(builder: tfds.core.DatasetBuilder, **_: object) -> tf.data.Dataset:
        def examples():
            for name, question, texts, starts, impossible in rows:
                answers = {"text": texts, "answer_start": starts}
                row = {"id": name, "title": "t", "question": question, "context": context, "answers": answers}
                yield row | ({"is_impossible": impossible, "plausible_answers": answers} if version_2 else {})

        signature = {
            name: {inner: tf.TensorSpec([None], kind.dtype) for inner, kind in feature.feature.items()}
            if isinstance(feature, tfds.features.Sequence) else tf.TensorSpec([], feature.dtype)
            for name, feature in builder.info.features.items()
        }  # fmt: skip
        return tf.data.Dataset.from_generator(examples, output_signature=signature)

    with tfds.testing.mock_data(as_dataset_fn=data, data_dir=str(tmp_path)):
        for split in ("train", "dev"):
            first, second = squad.read_tfds(None, split, version_2, BadRows())
            assert first == Question("1", "who?", context, (Answer("cat", 4), Answer("The cat", 0)))
            assert second.answers == (() if version_2 else (Answer("sat", 8),))
        rows[0][3][0] = 5
        with pytest.raises(UserError, match=r"squad/v\d.*, question 1: the context has 'at ' at character 5"):
            squad.read_tfds(None, "train", version_2, BadRows())
