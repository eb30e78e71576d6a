import dataclasses
import random

import numpy as np
import pytest

from official_bert.kinds.features import EXAMPLE
from official_bert.kinds.question_answering import candidates
from official_bert.kinds.question_answering import questions as head
from official_bert.kinds.question_answering.questions import Answer, Question
from official_bert.kinds.question_answering.spec import QuestionAnsweringSpec
from official_bert.tasks import squad
from official_bert.tokenization.exact import FullTokenizer
from tests.make import assert_rejected, list_rows
from tests.tasks.bad_rows import read_kept

Limits = tuple[int, int, int]  # max_seq_length, doc_stride and max_query_length
SMALL, LARGE = (12, 2, 3), (30, 2, 3)
CONTEXT = "the cat sat on the mat . the dog ran"
QUESTIONS = [Question("q0", "who ran ?", CONTEXT, (Answer("dog", 29), Answer("the dog", 25)))]
QUESTIONS += [Question("q1", "who sat ?", "", ()), Question("q2", "cat", CONTEXT, ())]
LENGTH = 13


@pytest.fixture
def tokenizer(vocab_file: str) -> FullTokenizer:
    return FullTokenizer(vocab_file)


def split(questions: list[Question], tokenizer: FullTokenizer, limits: Limits = SMALL):
    """Returns the windows of questions with their rows."""
    features = head.featurize(questions, tokenizer, *limits)
    return list_rows(features, head.list_windows(features))


def test_a_window_contains_question_and_context(tokenizer: FullTokenizer):
    question = Question("q", "cat dog mat sun", "The cat sat on the mat, un affable.", (Answer("mat", 19),))
    first, second, third, *_ = split([question], tokenizer)
    tokens = [tokenizer.convert_ids_to_tokens(window.input_ids) for window in (first, second, third)]
    assert tokens[0] == "[CLS] cat dog mat [SEP] the cat sat on the mat [SEP]".split()
    assert first.segment_ids == [0] * 5 + [1] * 7
    assert (first.start_logits, first.end_logits) == (10, 10)
    assert tokens[1][second.start_logits] == "mat"
    assert tokens[2][5:] == "the mat , un a ##f [SEP]".split()
    assert (third.start_logits, third.end_logits) == (6, 6)


def test_an_answer_outside_the_window_becomes_no_answer(tokenizer: FullTokenizer):
    question = Question("q", "cat", f"{CONTEXT} on the mat in the sun", (Answer("the", 0),))
    first, *others = split([question], tokenizer)
    assert first.start_logits > 0 == sum(window.start_logits for window in others)
    words = "mat . the dog".split()  # The first window ends before "dog".
    for window in split([dataclasses.replace(question, answers=(Answer(" ".join(words), 19),))], tokenizer):
        tokens = tokenizer.convert_ids_to_tokens(window.input_ids)
        target = tokens[window.start_logits : window.end_logits + 1]
        assert target == (words if " ".join(words) in " ".join(tokens) else ["[CLS]"])
    (no_answer,) = split([dataclasses.replace(question, answers=(), context="the cat")], tokenizer)
    assert (no_answer.start_logits, no_answer.end_logits) == (0, 0)
    unknown = dataclasses.replace(question, answers=None)
    assert not head.featurize([question, unknown], tokenizer, *SMALL).targets


def test_an_answer_inside_words_maps_to_the_exact_pieces(tokenizer: FullTokenizer):
    context = "(sunning-unaffable)."
    for text, pieces in (("sun", ["sun"]), ("aff", ["##aff"]), ("ning-un", ["##n", "##ing", "-", "un"])):
        (window,) = split([Question("q", "cat", context, (Answer(text, context.index(text)),))], tokenizer, LARGE)
        learnt = window.input_ids[window.start_logits : window.end_logits + 1]
        assert tokenizer.convert_ids_to_tokens(learnt) == [p if p in tokenizer.vocab else "[UNK]" for p in pieces]


@pytest.mark.parametrize(("context", "answer", "start", "expected"), [
    ("a sun.un b", "un", 3, (3, 3)),  # within the piece "sun"; the word after the dot is "un"
    ("a sun un b", "un", 3, (1, 1)),  # in another word, which may have another meaning
    ("a sun.un b", "un", 6, (3, 3)),  # the start is not inside a piece
    ("sun.un", "un", 1, (2, 2)),
])  # fmt: skip
def test_an_answer_that_splits_a_piece_maps_to_pieces_of_the_same_word(context, answer, start, expected, tokenizer):
    pieces = head.tokenize_context(context, tokenizer)
    question = Question("q", "cat", context, (Answer(answer, start),))
    assert head.find_answer_tokens(question, pieces, tokenizer) == expected


def test_limits_that_leave_no_room_for_context_are_rejected(tokenizer: FullTokenizer):
    names = ("max_seq_length=67", 64, "max_query_length")
    assert_rejected(names, QuestionAnsweringSpec().featurize, QUESTIONS, tokenizer, 67)
    assert len(QuestionAnsweringSpec().featurize(QUESTIONS, tokenizer, 68)) == 3
    assert_rejected(("doc_stride", 0, 1), QuestionAnsweringSpec(doc_stride=0).featurize, QUESTIONS, tokenizer, 384)


def test_windows_are_restored_from_features(tokenizer: FullTokenizer):
    features = head.featurize(QUESTIONS, tokenizer, LENGTH, 3, 5)
    assert features.num_truncated == 0  # two questions have five tokens
    windows = head.list_windows(features)
    assert len(features) == len(windows) > 4
    assert [window.question for window in windows] == sorted(features.details[EXAMPLE])
    assert [len(window.starts) for window in windows if window.question == 1] == [0]  # its own context is empty
    pieces = tokenizer.tokenize_with_offsets(CONTEXT)
    token_at = {(piece.start, piece.end): piece.token for piece in pieces}
    for window, row in zip(windows, list_rows(features, windows), strict=True):
        expected = [token_at[place] for place in zip(window.starts, window.ends, strict=True)]
        assert tokenizer.convert_ids_to_tokens(row.input_ids)[window.offset : -1] == expected
    owned = [start for window in windows if not window.question for start in window.starts[window.has_most_context]]
    assert sorted(owned) == [piece.start for piece in pieces]  # each token has most context in one window


@pytest.mark.parametrize(("answer", "names"), [
    (5, (5, "tuple")), (("cat",), ("('cat',)", "tuple")), (("cat", None), ("('cat', None)", "context")),
    (None, ("no_answer=True",)), (("cat", 4.5), ("('cat', 4.5)", "context")), (("cat", 3), ("('cat', 3)", "context")),
])  # fmt: skip
def test_invalid_answers_are_reported(answer, names):
    examples = QuestionAnsweringSpec().make_examples
    assert_rejected(("y[0]", *names), examples, (["who sat"], ["the cat sat"]), [answer])
    assert examples((["who sat"], ["the cat sat"]), [("cat", 4)])[0].answers == (Answer("cat", 4),)


def make_scores(window, start: int, end: int, value: float = 9.0) -> tuple[np.ndarray, np.ndarray]:
    """Returns scores that are highest at two positions of the window."""
    scores = np.zeros((2, len(window.input_ids)), np.float32)
    scores[0, start] = scores[1, end] = value
    return scores[0], scores[1]


def predict(context: str, windows, scores, version_2: bool = False, **settings: int):
    """Returns the prediction for a question about a context."""
    (starts, ends), questions = zip(*scores, strict=True), [Question("q", "cat dog mat", context, None)]
    (prediction,) = candidates.predict(questions, windows, starts, ends, version_2, **settings)
    return prediction


def make_windows(context: str, tokenizer: FullTokenizer, limits: Limits = SMALL, answers=None):
    return split([Question("q", "cat dog mat", context, answers)], tokenizer, limits)


def test_an_answer_is_an_exact_substring_of_the_context(tokenizer: FullTokenizer):
    context = "the  Càt—sat\t on (the mat)"
    (window,) = make_windows(context, tokenizer, LARGE)
    prediction = predict(context, [window], [make_scores(window, window.offset + 1, window.offset + 4)])
    assert prediction.best.text == context[prediction.best.start : prediction.best.end] == "Càt—sat\t on"


def test_the_answer_comes_from_the_most_confident_window(tokenizer: FullTokenizer):
    first, second, *others = make_windows(CONTEXT, tokenizer)
    nothing = [make_scores(window, 0, 0) for window in others]
    scores = [make_scores(first, 6, 6, 3.0), make_scores(second, 7, 7, 5.0), *nothing]
    prediction = predict(CONTEXT, [first, second, *others], scores)
    assert (prediction.best.text, prediction.best.start) == ("the", 15)
    assert prediction.candidates[0] == prediction.best
    # An answer begins where its window has most context.
    elsewhere = first.offset + int(np.argmin(first.has_most_context))
    scores = [make_scores(first, elsewhere, elsewhere), make_scores(second, 0, 0), *nothing]
    prediction = predict(CONTEXT, [first, second, *others], scores)
    assert max(candidate.start_logit for candidate in prediction.candidates) == 0.0


def test_answers_are_valid_spans_of_the_context(tokenizer: FullTokenizer):
    words = "the cat sat on the mat".split()
    (window,) = make_windows(" ".join(words), tokenizer, LARGE)
    starts, ends = scores = np.random.default_rng(0).normal(size=(2, len(window.input_ids))).astype(np.float32)
    scores[:, : window.offset] = 50.0
    expected: dict[str, float] = {}
    for first in range(6):
        for last in range(first, min(first + 2, 6)):
            text, score = " ".join(words[first : last + 1]), starts[window.offset + first] + ends[window.offset + last]
            expected[text] = max(expected.get(text, -99.0), float(score))
    prediction = predict(" ".join(words), [window], [scores], n_best_size=100, max_answer_length=2)
    found = {candidate.text: candidate.start_logit + candidate.end_logit for candidate in prediction.candidates}
    assert found == pytest.approx(expected)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert sum(candidate.probability for candidate in prediction.candidates) == pytest.approx(1.0)
    assert len(predict(" ".join(words), [window], [scores], n_best_size=4).candidates) == 4
    scores = [make_scores(window, window.offset + 2, window.offset)]  # the original crashes with these scores
    assert predict(" ".join(words), [window], scores, n_best_size=1).best.text == ""


def test_the_first_of_equal_spans_is_the_answer(tokenizer: FullTokenizer):
    (window,) = make_windows("cat sat on", tokenizer, LARGE)
    scores = [make_scores(window, 0, 0)]  # 0 in the context
    for n_best_size in (1, 2, 20):
        prediction = predict("cat sat on", [window], scores, n_best_size=n_best_size)
        assert (prediction.best.text, len(prediction.candidates)) == ("cat", min(n_best_size, 6))


def test_no_answer_is_returned_if_its_lowest_score_exceeds_the_threshold(tokenizer: FullTokenizer):
    context = "the cat sat on the mat ."
    windows = make_windows(context, tokenizer, answers=())
    scores = [make_scores(windows[0], 6, 6, 2.0), make_scores(windows[1], 0, 0, 4.0)]
    scores[0][0][0], scores[0][1][0] = 3.0, 2.5
    prediction = predict(context, windows, scores, version_2=True)
    assert prediction.null_score_difference == pytest.approx(5.5 - 4.0)
    assert prediction.answer(True, 1.0).text == ""
    assert prediction.answer(True, prediction.null_score_difference).text == "cat"  # not greater than the threshold
    assert prediction.answer(True, 2.0).text == prediction.answer(False).text == "cat"
    assert [candidate.text for candidate in prediction.candidates][:2] == ["", "cat"]


@pytest.mark.parametrize("version_2", [True, False])
@pytest.mark.parametrize("context", ["", " \u200b "])
def test_a_context_without_words_has_no_answer(version_2: bool, context: str, tokenizer: FullTokenizer):
    (window,) = make_windows(context, tokenizer)
    prediction = predict(context, [window], [make_scores(window, 1, 1)], version_2)
    assert prediction.answer(version_2).text == ""
    assert [candidate.text for candidate in prediction.candidates] == [""]
    assert prediction.null_score_difference == 0.0


@pytest.mark.parametrize(("version_2", "probabilities", "difference", "expected"), [
    (False, [0.5, 0.4, 0.1], 0.95, 0.1), (True, [0.5, 0.4, 0.1], 0.95, 0.05), (True, [0.5, 0.4, 0.1], -5.0, 0.1),
    (False, [1.0], 0.0, 1.0),
])  # fmt: skip
def test_the_margin_of_an_answer_to_a_question(version_2: bool, probabilities, difference, expected, monkeypatch):
    some = [candidates.Candidate("a", 0, 1, 0.0, 0.0, probability) for probability in probabilities]
    prediction = candidates.Prediction(some, some[0], difference)
    monkeypatch.setattr(QuestionAnsweringSpec, "decode", lambda *_: [prediction])
    head = QuestionAnsweringSpec(version_2=version_2, null_score_diff_threshold=1.0)
    assert head.margins(None, None, []) == pytest.approx([expected])


def test_any_of_several_correct_answers_is_accepted():
    question = Question("q", "who?", "a dog and a cat", (Answer("a dog", 0), Answer("cat", 12), Answer("cat", 12)))
    for text, is_right in (("cat", True), ("a dog", True), ("dog and", False), ("", False)):
        candidate = candidates.Candidate(text, 0, len(text), 0.0, 0.0, 0.5)
        (outcome,) = QuestionAnsweringSpec().outcomes([candidates.Prediction([candidate], candidate, 0.0)], [question])
        shown = "who? ||| a dog and a cat", "a dog | cat", text or "(no answer)", is_right
        assert (outcome.text, outcome.expected, outcome.predicted, outcome.correct) == shown


@pytest.mark.parametrize("limits", [(384, 128, 64), (128, 32, 24)])
def test_targets_of_real_questions_decode_to_the_exact_answers(limits: Limits, test_data):
    tokenizer = FullTokenizer(str(test_data / "vocab" / "bert-base-uncased-vocab.txt"))
    path = str(test_data / "squad" / "dev-v1.1.json")
    questions, _ = read_kept(squad.read, path, version_2=False, split="train")
    questions = random.Random(0).sample(questions, 200)
    windows = split(questions, tokenizer, limits)
    scores = [make_scores(window, window.start_logits, window.end_logits) for window in windows]
    starts, ends = zip(*scores, strict=True)
    predictions = candidates.predict(questions, windows, starts, ends, False, max_answer_length=60)
    exact = 0
    for question, prediction in zip(questions, predictions, strict=True):
        answer, said = question.answers[0].text.strip(), prediction.best
        assert question.context[said.start : said.end] == said.text
        assert answer in said.text  # an answer that ends inside a piece is extended to the whole piece
        exact += answer == said.text
    assert exact >= 196
