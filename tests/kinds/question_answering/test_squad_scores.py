import pytest

from official_bert.kinds.question_answering import squad_scores
from official_bert.kinds.question_answering.questions import Answer, Question
from official_bert.tasks import squad
from official_bert.utils.bad_rows import BadRows
from tests.make import assert_rejected


def question(name: str, *answers: str) -> Question:
    return Question(name, "?", "", tuple(Answer(answer, 0) for answer in answers))


@pytest.mark.parametrize(("text", "normal"), [
    ("The Cat", "cat"), ("a  cat,\tan ant; the 'end'", "cat ant end"), ("U.S.A.", "usa"), ("the a an", ""),
    ("theory an-d band A", "theory and band"), ("“quoted”", "“quoted”"),  # only ASCII punctuation
    ("the-an", "thean"),  # punctuation is removed first, without leaving a space
])  # fmt: skip
def test_texts_are_compared_without_case_articles_and_punctuation(text: str, normal: str):
    assert squad_scores.normalize(text) == normal


@pytest.mark.parametrize(("prediction", "answer", "exact", "f1", "f1_version_2"), [
    ("the cat", "Cat!", 1, 1, 1), ("big cat", "cat", 0, 2 / 3, 2 / 3), ("cat cat", "cat", 0, 2 / 3, 2 / 3),
    ("cat cat dog", "cat cat cat", 0, 2 / 3, 2 / 3), ("dog", "cat", 0, 0, 0), ("", "cat", 0, 0, 0),
    ("", "", 1, 0, 1), ("the", "a", 1, 0, 1),
])  # fmt: skip
def test_scores_equal_hand_computed_values(prediction: str, answer: str, exact: float, f1: float, f1_version_2: float):
    assert squad_scores.exact_match(prediction, answer) == exact
    assert squad_scores.f1(prediction, answer) == pytest.approx(f1)
    assert squad_scores.f1_version_2(prediction, answer) == pytest.approx(f1_version_2)


def test_the_best_of_several_answers_counts_and_a_missing_prediction_is_wrong():
    questions = [question("1", "cat", "the big dog"), question("2", "sun"), question("3", "sun")]
    scores = squad_scores.score_version_1(questions, {"1": "big dog", "2": "hot sun"})
    assert scores == {"exact_match": pytest.approx(100 / 3), "f1": pytest.approx(100 * (1 + 2 / 3) / 3)}


def test_no_answer_is_correct_for_unanswerable_questions():
    questions = [question("has", "cat"), question("none"), question("both", "the", "cat"), question("wrong", "sun")]
    scores = squad_scores.score_version_2(questions, {"has": "a cat", "none": "the", "both": "", "wrong": ""})
    # "the" is empty after normalization. Of the answers "the" and "cat", only the second one counts.
    assert scores == {
        "exact": 50.0, "f1": 50.0, "total": 4,
        "HasAns_exact": pytest.approx(100 / 3), "HasAns_f1": pytest.approx(100 / 3), "HasAns_total": 3,
        "NoAns_exact": 100.0, "NoAns_f1": 100.0, "NoAns_total": 1,
    }  # fmt: skip


def test_the_best_threshold_maximizes_the_score():
    questions = [question("a", "cat"), question("b"), question("c", "sun"), question("d")]
    best = {"a": "cat", "b": "dog", "c": "hot sun", "d": "mat"}
    differences = {"a": -3.0, "b": 2.0, "c": 1.0, "d": 4.0}
    said = {name: "" if differences[name] > 0 else text for name, text in best.items()}
    extra = {"of another file": -9.0}
    scores = squad_scores.score_version_2(questions, said, differences | extra, best | dict.fromkeys(extra, "cat"))
    assert (scores["exact"], scores["f1"]) == (75.0, 75.0)
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (75.0, -3.0)
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (pytest.approx(100 * (1 + 2 / 3 + 2) / 4), 1.0)
    # The published script scores the answers that remain at the threshold 0.
    assert squad_scores.score_version_2(questions, said, differences)["best_f1"] == 75.0


@pytest.mark.parametrize(("answers", "differences", "best", "threshold"), [
    ({"a": "cat", "b": ""}, {"a": 1.0, "b": -5.0}, 100.0, 1.0),  # a question without an answer costs nothing
    ({"a": "x", "b": "y"}, {"a": 1, "b": 0}, 50.0, 0.0),  # a threshold that answers nothing is 0
])  # fmt: skip
def test_thresholds_at_the_edges_are_those_of_the_published_script(answers, differences, best: float, threshold: float):
    scores = squad_scores.score_version_2([question("a", "cat"), question("b")], answers, differences)
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (best, threshold)


def test_questions_without_known_answers_cannot_be_scored():
    for score in (squad_scores.score_version_1, squad_scores.score_version_2):
        assert_rejected(("q1", "answers"), score, [Question("q1", "?", "", None)], {"q1": "x"})


@pytest.mark.parametrize(("name", "version_2", "score"), [
    ("dev-v1.1.json", False, squad_scores.score_version_1), ("dev-v2.0-part.json", True, squad_scores.score_version_2),
])  # fmt: skip
def test_perfect_predictions_score_100(name: str, version_2: bool, score, test_data):
    questions = squad.read(str(test_data / "squad" / name), version_2, "dev", BadRows())[::4]
    scores = score(questions, {each.id: each.answers[0].text if each.answers else "" for each in questions})
    assert {value for key, value in scores.items() if "total" not in key} == {100.0}
