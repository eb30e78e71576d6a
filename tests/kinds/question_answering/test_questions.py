import dataclasses
import functools
import pathlib
import random
from typing import Any

import keras
import numpy as np
import pytest

from official_bert.errors import UserError
from official_bert.kinds.features import EXAMPLE
from official_bert.kinds.model import create_model
from official_bert.kinds.question_answering import candidates
from official_bert.kinds.question_answering import questions as head
from official_bert.kinds.question_answering.questions import Answer, Limits, Question
from official_bert.kinds.question_answering.spec import QuestionAnsweringSpec
from official_bert.tasks import squad
from official_bert.tokenization.exact import FullTokenizer
from tests.make import list_rows, refusal
from tests.tasks.bad_rows import read_kept

SMALL = Limits(max_seq_length=12, doc_stride=2, max_query_length=3)


def split(questions: list[Question], tokenizer: FullTokenizer, limits: Limits) -> list[Any]:
    """Returns the windows of questions with their rows."""
    features = head.featurize(questions, tokenizer, limits)
    return list_rows(features, head.list_windows(features))


def test_a_window_is_question_and_context(tokenizer: FullTokenizer):
    question = Question("q", "cat dog mat sun", "The cat sat on the mat, un affable.", (Answer("mat", 19),))
    first, second, third, *_ = split([question], tokenizer, SMALL)
    tokens = tokenizer.convert_ids_to_tokens(first.input_ids)
    assert tokens == "[CLS] cat dog mat [SEP] the cat sat on the mat [SEP]".split()
    assert first.segment_ids == [0] * 5 + [1] * 7
    assert (first.start_logits, first.end_logits) == (10, 10)
    assert tokenizer.convert_ids_to_tokens(third.input_ids)[5:] == "the mat , un a ##f [SEP]".split()
    assert (third.start_logits, third.end_logits) == (6, 6)
    assert tokenizer.convert_ids_to_tokens(second.input_ids)[second.start_logits] == "mat"


def test_an_answer_outside_the_window_is_learnt_as_none(tokenizer: FullTokenizer):
    question = Question("q", "cat", "the cat sat on the mat . the dog ran on the mat in the sun", (Answer("the", 0),))
    cut = split([question], tokenizer, SMALL)
    assert [window.start_logits > 0 for window in cut] == [True] + [False] * (len(cut) - 1)
    (no_answer,) = split([dataclasses.replace(question, answers=(), context="the cat")], tokenizer, SMALL)
    assert (no_answer.start_logits, no_answer.end_logits) == (0, 0)


def test_an_answer_within_words_is_found_to_the_piece(tokenizer: FullTokenizer):
    context = "(sunning-unaffable)."
    for text, pieces in (("sun", ["sun"]), ("aff", ["##aff"]), ("ning-un", ["##n", "##ing", "-", "un"])):
        question = Question("q", "cat", context, (Answer(text, context.index(text)),))
        (window,) = split([question], tokenizer, Limits(30, 2, 3))
        learnt = window.input_ids[window.start_logits : window.end_logits + 1]
        assert tokenizer.convert_ids_to_tokens(learnt) == [p if p in tokenizer.vocab else "[UNK]" for p in pieces]


@pytest.mark.parametrize(("context", "answer", "start", "expected"), [
    ("a sun.un b", "un", 3, (3, 3)),  # within the piece "sun"; the word after the dot is "un"
    ("a sun un b", "un", 3, (1, 1)),  # in another word, which may have another meaning
    ("a sun.un b", "un", 6, (3, 3)),  # the start is not inside a piece
    ("sun.un", "un", 1, (2, 2)),
])  # fmt: skip
def test_an_answer_that_cuts_a_piece_is_learnt_from_the_same_word(
    context: str, answer: str, start: int, expected: tuple[int, int], tokenizer: FullTokenizer
):
    question = Question("q", "cat", context, (Answer(answer, start),))
    pieces = head.tokenize_context(context, tokenizer)
    assert head.find_answer_tokens(question, pieces, tokenizer) == expected


def test_limits_without_room_for_context_are_refused():
    assert "max_seq_length=67 leaves no room" in refusal(Limits, max_seq_length=67)
    assert "doc_stride 0; expected 1 or more" in refusal(Limits, doc_stride=0)


CONTEXT = "the cat sat on the mat . the dog ran"


QUESTIONS = [
    Question("q0", "who ran ?", CONTEXT, (Answer("dog", 29), Answer("the dog", 25))),
    Question("q1", "who sat ?", "", ()),
    Question("q2", "cat", CONTEXT, ()),
]


LENGTH = 13


def test_windows_come_back_from_features(tokenizer: FullTokenizer):
    limits = Limits(LENGTH, 3, 4)
    features = head.featurize(QUESTIONS, tokenizer, limits)
    windows = head.list_windows(features)
    assert len(features) == len(windows) > 4
    assert [window.question for window in windows] == sorted(features.details[EXAMPLE])
    pieces = tokenizer.tokenize_with_offsets(CONTEXT)
    for window, row in zip(windows, list_rows(features, windows), strict=True):
        shown = [CONTEXT[start:end] for start, end in zip(window.starts, window.ends, strict=True)]
        tokens = tokenizer.convert_ids_to_tokens(row.input_ids)
        expected = [
            piece.token
            for piece in pieces
            if piece.start in window.starts and CONTEXT[piece.start : piece.end] in shown
        ]
        assert tokens[window.offset : -1] == expected
    of_first = [window for window in windows if not window.question]
    owned = sorted(start for window in of_first for start in window.starts[window.has_most_context].tolist())
    assert owned == [piece.start for piece in pieces]  # each token has most context in one window
    unknown = [dataclasses.replace(QUESTIONS[0], answers=None)]
    assert head.featurize(unknown, tokenizer, limits).targets == {}


def test_the_loss_of_questions_is_the_mean_of_starts_and_ends():
    names = ("start_logits", "end_logits")
    inputs = [keras.Input((3,)) for _ in names]
    outputs = {
        name: keras.layers.Activation("linear", name=name)(each) for name, each in zip(names, inputs, strict=True)
    }
    model = keras.Model(inputs, outputs)
    head = QuestionAnsweringSpec()
    model.compile("sgd", create_model(head).loss(), head.loss_weights())
    rng = np.random.default_rng(0)
    logits = {name: rng.normal(size=(2, 3)).astype(np.float32) for name in names}
    labels = {"start_logits": np.array([0, 2], np.int32), "end_logits": np.array([1, 2], np.int32)}
    expected = 0.0
    for name in names:
        losses = np.log(np.exp(logits[name]).sum(-1)) - logits[name][np.arange(2), labels[name]]
        expected += 0.5 * losses.mean()
    assert model.evaluate([logits[name] for name in names], labels, verbose=0, return_dict=True)[
        "loss"
    ] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("answer", "message"), [
    (5, r"y\[0\] is 5; expected the text of the answer, or a tuple"),
    (("cat",), r"y\[0\] is \('cat',\); expected the text of the answer, or a tuple"),
    (("cat", None), r"y\[0\] is \('cat', None\), which is not in the context at this position"),
    (None, r"y\[0\] is empty; to train on questions without an answer, pass no_answer=True"),
])  # fmt: skip
def test_what_is_no_answer_is_named(answer, message: str):
    head = QuestionAnsweringSpec()
    with pytest.raises(UserError, match=message):
        head.examples((["who sat"], ["the cat sat"]), [answer])
    assert head.examples((["who sat"], ["the cat sat"]), [("cat", 4)])[0].answers == (Answer("cat", 4),)


read = functools.partial(read_kept, squad.read)


def make_windows(
    context: str, tokenizer: FullTokenizer, limits: Limits = SMALL, text: str = "cat dog mat", answers=None
):
    """Returns a question about a context, and its windows."""
    question = Question("q", text, context, answers)
    return [question], split([question], tokenizer, limits)


def make_scores(window: Any, start: int, end: int, value: float = 9.0) -> tuple[np.ndarray, np.ndarray]:
    """Returns scores that are highest at two positions of the window."""
    starts, ends = np.zeros(len(window.input_ids), np.float32), np.zeros(len(window.input_ids), np.float32)
    starts[start], ends[end] = value, value
    return starts, ends


def predicted(questions: list[Question], windows: list[Any], scores: list[tuple], **more: object):
    starts, ends = zip(*scores, strict=True)
    return candidates.predict(questions, windows, starts, ends, **{"version_2": False, **more})


def test_an_answer_is_the_very_text_of_the_context(tokenizer: FullTokenizer):
    context = "the  Càt—sat\t on (the mat)"
    questions, (window,) = make_windows(context, tokenizer, Limits(30, 2, 3), "cat")
    (prediction,) = predicted(questions, [window], [make_scores(window, window.offset + 1, window.offset + 4)])
    assert prediction.best.text == "Càt—sat\t on"
    assert context[prediction.best.start : prediction.best.end] == prediction.best.text


def test_the_answer_comes_from_the_window_that_is_surest(tokenizer: FullTokenizer):
    questions, windows = make_windows("the cat sat on the mat . the dog ran", tokenizer)
    first, second, *others = windows
    scores = [make_scores(first, 6, 6, 3.0), make_scores(second, 7, 7, 5.0), *[make_scores(w, 0, 0) for w in others]]
    (prediction,) = predicted(questions, windows, scores)
    assert prediction.best.text == "the"
    assert prediction.best.start == 15
    assert prediction.candidates[0] == prediction.best


def test_an_answer_begins_where_its_window_has_most_context(tokenizer: FullTokenizer):
    questions, windows = make_windows("the cat sat on the mat . the dog ran", tokenizer)
    elsewhere = windows[0].offset + int(np.flatnonzero(~np.asarray(windows[0].has_most_context))[0])
    scores = [make_scores(windows[0], elsewhere, elsewhere), *[make_scores(window, 0, 0) for window in windows[1:]]]
    (prediction,) = predicted(questions, windows, scores)
    assert max(candidate.start_logit for candidate in prediction.candidates) == 0.0


def test_no_answer_ends_before_it_begins_is_too_long_or_lies_in_the_question(tokenizer: FullTokenizer):
    questions, (window,) = make_windows("the cat sat on the mat", tokenizer, Limits(30, 2, 3), "cat")
    rng = np.random.default_rng(0)
    starts, ends = rng.normal(size=(2, len(window.input_ids))).astype(np.float32)
    starts[:3] = ends[:3] = 50.0
    (prediction,) = predicted(questions, [window], [(starts, ends)], n_best_size=100, max_answer_length=2)
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
    assert len(predicted(questions, [window], [(starts, ends)], n_best_size=4)[0].candidates) == 4


def test_no_answer_is_said_above_the_threshold_on_the_least_sure_window(tokenizer: FullTokenizer):
    questions, windows = make_windows("the cat sat on the mat .", tokenizer, answers=())
    assert len(windows) == 2
    scores = [make_scores(windows[0], 6, 6, 2.0), make_scores(windows[1], 0, 0, 4.0)]
    scores[0][0][0], scores[0][1][0] = 3.0, 2.5
    (prediction,) = predicted(questions, windows, scores, version_2=True)
    assert prediction.null_score_difference == pytest.approx(5.5 - 4.0)
    assert prediction.answer(True, 1.0).text == ""
    assert prediction.answer(True, prediction.null_score_difference).text == "cat"  # not greater than the threshold
    assert prediction.answer(True, 2.0).text == prediction.answer(False).text == "cat"
    assert [candidate.text for candidate in prediction.candidates][:2] == ["", "cat"]


@pytest.mark.parametrize("version_2", [True, False])
@pytest.mark.parametrize("context", ["", " \u200b "])
def test_a_context_without_a_word_is_answered_by_nothing(version_2: bool, context: str, tokenizer: FullTokenizer):
    questions, (window,) = make_windows(context, tokenizer, text="cat")
    (prediction,) = predicted(questions, [window], [make_scores(window, 1, 1)], version_2=version_2)
    assert prediction.answer(version_2).text == ""
    assert [candidate.text for candidate in prediction.candidates] == [""]
    assert prediction.null_score_difference == 0.0


def test_pairs_that_all_end_before_they_begin_give_no_answer(tokenizer: FullTokenizer):
    questions, (window,) = make_windows("the cat sat", tokenizer, text="cat")
    scores = [make_scores(window, 5, 3)]  # the original crashes with these scores
    (prediction,) = predicted(questions, [window], scores, n_best_size=1)
    assert prediction.best.text == ""


@pytest.mark.parametrize("limits", [Limits(), Limits(128, 32, 24)])
def test_what_is_learnt_of_real_questions_is_answered_to_the_character(limits: Limits, test_data: pathlib.Path):
    tokenizer = FullTokenizer(str(test_data / "vocab" / "bert-base-uncased-vocab.txt"))
    questions, _ = read(str(test_data / "squad" / "dev-v1.1.json"), version_2=False, for_training=True)
    questions = random.Random(0).sample(questions, 200)
    windows = split(questions, tokenizer, limits)
    scores = [make_scores(window, window.start_logits, window.end_logits) for window in windows]
    predictions = predicted(questions, windows, scores, max_answer_length=60)
    exact = 0
    for question, prediction in zip(questions, predictions, strict=True):
        answer, said = question.answers[0], prediction.best
        assert question.context[said.start : said.end] == said.text
        assert answer.text.strip() in said.text  # an answer that ends inside a piece is extended to the whole piece
        exact += answer.text.strip() == said.text
    assert exact >= 196
