import dataclasses

import numpy as np
import pytest

from official_bert.tasks.heads import questions as head
from official_bert.tasks.heads.questions import Answer, Limits, Question
from official_bert.tokenization.exact import FullTokenizer
from tests.make import refusal

SMALL = Limits(max_seq_length=12, doc_stride=2, max_query_length=3)


def test_a_window_is_question_and_context(tokenizer: FullTokenizer):
    question = Question("q", "cat dog mat sun", "The cat sat on the mat, un affable.", (Answer("mat", 19),))
    first, second, third, *_ = head.cut_into_windows([question], tokenizer, SMALL)
    tokens = tokenizer.convert_ids_to_tokens(first.input_ids)
    assert tokens == "[CLS] cat dog mat [SEP] the cat sat on the mat [SEP]".split()
    assert first.segment_ids == [0] * 5 + [1] * 7
    assert (first.start_position, first.end_position) == (10, 10)
    assert tokenizer.convert_ids_to_tokens(third.input_ids)[5:] == "the mat , un a ##f [SEP]".split()
    assert (third.start_position, third.end_position) == (6, 6)
    assert tokenizer.convert_ids_to_tokens(second.input_ids)[second.start_position] == "mat"


def test_an_answer_outside_the_window_is_learnt_as_none(tokenizer: FullTokenizer):
    question = Question("q", "cat", "the cat sat on the mat . the dog ran on the mat in the sun", (Answer("the", 0),))
    cut = head.cut_into_windows([question], tokenizer, SMALL)
    assert [window.start_position > 0 for window in cut] == [True] + [False] * (len(cut) - 1)
    (no_answer,) = head.cut_into_windows(
        [dataclasses.replace(question, answers=(), context="the cat")], tokenizer, SMALL
    )
    assert (no_answer.start_position, no_answer.end_position) == (0, 0)


def test_an_answer_within_words_is_found_to_the_piece(tokenizer: FullTokenizer):
    context = "(sunning-unaffable)."
    for text, pieces in (("sun", ["sun"]), ("aff", ["##aff"]), ("ning-un", ["##n", "##ing", "-", "un"])):
        question = Question("q", "cat", context, (Answer(text, context.index(text)),))
        (window,) = head.cut_into_windows([question], tokenizer, Limits(30, 2, 3))
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
    pieces = head.tokenize_context(context, tokenizer)
    assert head.answer_tokens(question, pieces, tokenizer) == expected


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
    cut = head.cut_into_windows(QUESTIONS, tokenizer, Limits(LENGTH, 3, 4))
    features = head.features_of(cut, QUESTIONS)
    assert len(features) == len(cut) > 4
    for window, again in zip(cut, head.windows_of(features), strict=True):
        for field in dataclasses.fields(window):
            if field.name not in ("start_position", "end_position"):
                np.testing.assert_array_equal(getattr(window, field.name), getattr(again, field.name), field.name)
    assert features.targets["start_logits"].tolist() == [window.start_position for window in cut]
    unknown = [dataclasses.replace(QUESTIONS[0], answers=None)]
    assert head.features_of(head.cut_into_windows(unknown, tokenizer, Limits(LENGTH, 3, 4)), unknown).targets == {}
