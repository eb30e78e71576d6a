import dataclasses
import json
import pathlib
import random

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from hypothesis import given
from hypothesis import strategies as st

from official_bert.errors import UserError
from official_bert.tasks import squad, squad_answers, windows
from official_bert.tasks.squad import Answer, Limits, Question, Window
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


# Reading


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


# Windows


def test_windows_follow_the_stride_and_end_with_the_text():
    assert windows.starts(10, 6, 2) == [0, 2, 4]
    assert windows.starts(10, 6, 100) == [0, 6]
    assert windows.starts(6, 6, 2) == [0]
    assert windows.starts(0, 6, 2) == [0]


def test_a_token_belongs_to_the_window_that_sees_most_around_it():
    # The paper's repository explains it by windows such as these.
    assert windows.with_most_context([(0, 5), (3, 8), (6, 9)], 9).tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2]


def test_a_longer_window_outweighs_less_context_only_by_a_hundredth_for_each_token():
    # Token 27 has 2 tokens to its right in the first window, of 30 tokens, and 3 to its left in the second, of 10.
    assert windows.with_most_context([(0, 30), (24, 34)], 34)[27] == 1
    # Of equal contexts the longer window's counts: 2 tokens on one side in both.
    assert windows.with_most_context([(0, 30), (25, 35)], 35)[27] == 0


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 12))
def test_every_token_belongs_to_a_window_that_holds_it(count: int, room: int, stride: int):
    spans = [(start, min(start + room, count)) for start in windows.starts(count, room, stride)]
    for token, owner in enumerate(windows.with_most_context(spans, count)):
        start, end = spans[owner]
        assert start <= token < end
        best = max(min(token - s, e - 1 - token) for s, e in spans if s <= token < e)
        assert min(token - start, end - 1 - token) == best


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


# Answers


def scores_for(window: Window, start: int, end: int, value: float = 9.0) -> tuple[np.ndarray, np.ndarray]:
    """Scores that are highest at two of the window's positions."""
    starts, ends = np.zeros(len(window.input_ids), np.float32), np.zeros(len(window.input_ids), np.float32)
    starts[start], ends[end] = value, value
    return starts, ends


def predicted(
    questions: list[Question], cut: list[Window], scores: list[tuple[np.ndarray, np.ndarray]], **more: object
):
    starts, ends = zip(*scores, strict=True)
    return squad_answers.predict(questions, cut, starts, ends, **{"version_2": False, **more})


def test_an_answer_is_the_very_text_of_the_context(tokenizer: FullTokenizer):
    context = "the  Càt—sat\t on (the mat)"
    question = Question("q", "cat", context, None)
    (window,) = squad.cut_into_windows([question], tokenizer, Limits(30, 2, 3))
    (prediction,) = predicted([question], [window], [scores_for(window, window.offset + 1, window.offset + 4)])
    assert prediction.best.text == "Càt—sat\t on"
    assert context[prediction.best.start : prediction.best.end] == prediction.best.text


def test_the_answer_comes_from_the_window_that_is_surest(tokenizer: FullTokenizer):
    question = Question("q", "cat dog mat", "the cat sat on the mat . the dog ran", None)
    cut = squad.cut_into_windows([question], tokenizer, SMALL)
    scores = [scores_for(cut[0], 6, 6, 3.0), scores_for(cut[1], 7, 7, 5.0), *[scores_for(w, 0, 0) for w in cut[2:]]]
    (prediction,) = predicted([question], cut, scores)
    assert prediction.best.text == "the"
    assert prediction.best.start == 15
    assert prediction.candidates[0] == prediction.best


def test_an_answer_begins_where_its_window_has_most_context(tokenizer: FullTokenizer):
    question = Question("q", "cat dog mat", "the cat sat on the mat . the dog ran", None)
    cut = squad.cut_into_windows([question], tokenizer, SMALL)
    elsewhere = cut[0].offset + int(np.flatnonzero(~np.asarray(cut[0].has_most_context))[0])
    scores = [scores_for(cut[0], elsewhere, elsewhere), *[scores_for(window, 0, 0) for window in cut[1:]]]
    (prediction,) = predicted([question], cut, scores)
    assert max(candidate.start_logit for candidate in prediction.candidates) == 0.0


def test_no_answer_ends_before_it_begins_is_too_long_or_lies_in_the_question(tokenizer: FullTokenizer):
    question = Question("q", "cat", "the cat sat on the mat", None)
    (window,) = squad.cut_into_windows([question], tokenizer, Limits(30, 2, 3))
    rng = np.random.default_rng(0)
    starts, ends = rng.normal(size=(2, len(window.input_ids))).astype(np.float32)
    starts[:3] = ends[:3] = 50.0
    (prediction,) = predicted([question], [window], [(starts, ends)], n_best_size=100, max_answer_length=2)
    here, words = slice(3, 9), "the cat sat on the mat".split()
    expected = {}
    for first in range(6):
        for last in range(first, min(first + 2, 6)):
            text = " ".join(words[first : last + 1])
            expected[text] = max(expected.get(text, -99.0), float(starts[here][first]) + float(ends[here][last]))
    found = {candidate.text: candidate.start_logit + candidate.end_logit for candidate in prediction.candidates}
    assert found == pytest.approx(expected)
    totals = list(found.values())
    assert totals == sorted(totals, reverse=True)
    assert sum(candidate.probability for candidate in prediction.candidates) == pytest.approx(1.0)
    assert len(predicted([question], [window], [(starts, ends)], n_best_size=4)[0].candidates) == 4


def test_no_answer_is_said_above_the_threshold_on_the_least_sure_window(tokenizer: FullTokenizer):
    question = Question("q", "cat dog mat", "the cat sat on the mat .", ())
    cut = squad.cut_into_windows([question], tokenizer, SMALL)
    assert len(cut) == 2
    scores = [scores_for(cut[0], 6, 6, 2.0), scores_for(cut[1], 0, 0, 4.0)]
    scores[0][0][0], scores[0][1][0] = 3.0, 2.5
    (prediction,) = predicted([question], cut, scores, version_2=True)
    assert prediction.null_score_difference == pytest.approx(5.5 - 4.0)
    assert prediction.answer(True, 1.0).text == ""
    assert prediction.answer(True, 2.0).text == prediction.answer(False).text == "cat"
    assert [candidate.text for candidate in prediction.candidates][:2] == ["", "cat"]


@pytest.mark.parametrize("version_2", [True, False])
@pytest.mark.parametrize("context", ["", " \u200b "])
def test_a_context_without_a_word_is_answered_by_nothing(version_2: bool, context: str, tokenizer: FullTokenizer):
    question = Question("q", "cat", context, None)
    (window,) = squad.cut_into_windows([question], tokenizer, SMALL)
    (prediction,) = predicted([question], [window], [scores_for(window, 1, 1)], version_2=version_2)
    assert prediction.answer(version_2).text == ""
    assert [candidate.text for candidate in prediction.candidates] == [""]
    assert prediction.null_score_difference == 0.0


def test_pairs_that_all_end_before_they_begin_give_no_answer(tokenizer: FullTokenizer):
    question = Question("q", "cat", "the cat sat", None)
    (window,) = squad.cut_into_windows([question], tokenizer, SMALL)
    (prediction,) = predicted(
        [question], [window], [scores_for(window, 5, 3)], n_best_size=1
    )  # the original crashes on these
    assert prediction.best.text == ""


# Real data


@pytest.mark.parametrize(("name", "version_2", "count"), [
    ("train-v1.1-part.json", False, 11_877), ("dev-v2.0-part.json", True, 1_407),
])  # fmt: skip
def test_every_real_question_can_be_learnt(name: str, version_2: bool, count: int, test_data: pathlib.Path):
    questions, problems = read(str(test_data / "squad" / name), version_2, for_training=True)
    assert len(questions) == count
    assert problems == []
    impossible = sum(question.answers == () for question in questions)
    assert impossible == (702 if version_2 else 0)


@pytest.mark.parametrize("limits", [Limits(), Limits(128, 32, 24)])
def test_what_is_learnt_of_real_questions_is_answered_to_the_character(limits: Limits, test_data: pathlib.Path):
    tokenizer = FullTokenizer(str(test_data / "vocab" / "bert-base-uncased-vocab.txt"))
    questions, _ = read(str(test_data / "squad" / "dev-v1.1.json"), version_2=False, for_training=True)
    questions = random.Random(0).sample(questions, 200)
    cut = squad.cut_into_windows(questions, tokenizer, limits)
    scores = [scores_for(window, window.start_position, window.end_position) for window in cut]
    predictions = predicted(questions, cut, scores, max_answer_length=60)
    exact = 0
    for question, prediction in zip(questions, predictions, strict=True):
        answer, said = question.answers[0], prediction.best
        assert question.context[said.start : said.end] == said.text
        assert answer.text.strip() in said.text  # an answer that ends within a piece is widened to the piece
        exact += answer.text.strip() == said.text
    assert exact >= 196


# TensorFlow Datasets


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
