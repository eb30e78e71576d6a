import numpy as np
import pytest

from official_bert.tasks.all_tasks import make_task
from official_bert.tasks.options import EMBEDDINGS, EmbeddingsOptions
from official_bert.utils.bad_rows import SKIP, BadRows
from tests.make import assert_mentions, assert_rejected, refusal, write_text

PAIRS = "text,text_pair\nthe cat,a cat\nthe dog,a dog\n"
GRADED = "text,text_pair,score\nthe cat,a cat,5\nthe dog,a mat,1.5\n"
TRIPLETS = "text,text_pair,negative\nthe cat,a cat,a dog\nthe dog,a dog,a cat\n"
MIXED = "text,text_pair,negative,score\nthe cat,a cat,a dog,5\nthe dog,a mat,a cat,1.5\n"
FIVE = {"score_range": ["0", "5"]}


def create_task(folder, train: str, dev: str | None = None, **options):
    options |= {"eval_file": write_text(folder / "dev.csv", dev)} if dev else {}
    return make_task(EMBEDDINGS, EmbeddingsOptions(train_file=write_text(folder / "train.csv", train), **options))


OBJECTIVES = [(PAIRS, {}, "ranking", 2), (TRIPLETS, {}, "ranking", 3)]
OBJECTIVES += [(GRADED, FIVE, "cosine", 2), (MIXED, FIVE, "cosine", 2)]
OBJECTIVES += [(TRIPLETS, {"objective": "triplet"}, "triplet", 3), (GRADED, {"objective": "ranking"}, "ranking", 2)]


@pytest.mark.parametrize(("text", "options", "objective", "texts"), OBJECTIVES)
def test_the_objective_follows_from_the_columns(text, options, objective, texts, tmp_path):
    task = create_task(tmp_path, text, **options)
    assert task.spec.objective == objective
    examples = task.read("train", BadRows())
    assert [len(example.texts) for example in examples] == [texts, texts]
    assert examples[0].texts[:2] == ("the cat", "a cat")
    assert [example.score for example in examples] == ([1.0, 0.3] if objective == "cosine" else [None, None])


def test_options_become_settings_of_the_model(tmp_path):
    settings = {"scale": 3.0, "margin": 2.0, "pooling": "max", "normalize": False}
    head = create_task(tmp_path, PAIRS, dimensions=["4", "2"], score_range=["0", "5"], **settings).spec
    assert {name: getattr(head, name) for name in settings} == settings
    assert (head.dimensions, head.score_range) == ((4, 2), (0.0, 5.0))


def test_evaluation_data_with_scores_are_evaluated_by_correlation(tmp_path):
    graded = create_task(tmp_path, PAIRS, MIXED, predict_file=write_text(tmp_path / "test.csv", "text\nx\n"), **FIVE)
    assert (graded.best_metric, graded.spec.objective) == ("spearman", "ranking")
    assert [(len(example.texts), example.score) for example in graded.read("dev", BadRows())] == [(2, 1.0), (2, 0.3)]
    assert graded.read("test", BadRows())[0].texts == ("x",)
    found = create_task(tmp_path, GRADED, TRIPLETS)
    assert (found.best_metric, found.spec.objective) == ("mrr", "cosine")
    assert found.read("dev", BadRows())[0].texts == ("the cat", "a cat", "a dog")


def test_custom_column_names_and_texts_to_predict(tmp_path):
    names = {"text_column": "title", "text_pair_column": "head,body"}
    predict_file = write_text(tmp_path / "p.csv", "title\nx\ny\n")
    task = create_task(tmp_path, "title,head,body\nt,h,b\nu,h,c\n", predict_file=predict_file, **names)
    assert task.read("train", BadRows())[0].texts == ("t", "h b")
    assert [example.texts for example in task.read("test", BadRows())] == [("x",), ("y",)]
    assert (task.eval_splits, task.test_splits) == ((), ("test",))
    (path,) = task.write_predictions(str(tmp_path), "test", np.eye(2), task.read("test", BadRows()))
    assert np.load(path).dtype == np.float32


REFUSED = [
    ("text,text_pair\nthe cat,\n", {}, ("train.csv", "line 2", "empty", "text_pair")),
    ("text,text_pair\n ,a cat\n", {}, ("train.csv", "line 2", "empty", "text")),
    (GRADED, {}, ("train.csv", "line 2", "'5'", "0 to 1", "score_range")),
    ("text,text_pair,score\na,b,\n", {}, ("train.csv", "line 2", "no score")),
    (PAIRS, {"objective": "triplet"}, ("train.csv", "'negative'", "'text', 'text_pair'")),
    (PAIRS, {"objective": "cosine"}, ("train.csv", "'score'", "'text', 'text_pair'")),
    ("text\na\n", {}, ("train.csv", "'text_pair'", "'text'")),
    ("text,text_pair\na,b\na,b\n", {}, ("train.csv", "same", "two")),
    ("text,text_pair\n", {}, ("train.csv", "rows", "header")),
    (PAIRS, {"head": "bilstm"}, ("--head=bilstm", "--pooling")),
]


@pytest.mark.parametrize(("text", "options", "names"), REFUSED)
def test_invalid_rows_and_options_are_reported_in_one_line(text, options, names, tmp_path):
    told = refusal(lambda: create_task(tmp_path, text, **options).read("train", BadRows()))
    assert_mentions(told, *names)
    assert "\n" not in told


def test_a_retrieval_file_without_answers_is_rejected(tmp_path):
    task = create_task(tmp_path, PAIRS, "text,text_pair\nthe cat,a cat\nthe dog,\n")
    path = str(tmp_path / "dev.csv")
    assert_rejected((path, "line 3", "empty", "text_pair"), task.read, "dev", BadRows())
    assert len(task.read("dev", BadRows(SKIP, silent=True))) == 1
    task = create_task(tmp_path, PAIRS, "text,text_pair\nthe dog,\n")
    assert_rejected((path, 1, "line 2"), task.read, "dev", BadRows(SKIP, silent=True))
    task = create_task(tmp_path, PAIRS, eval_file=write_text(tmp_path / "dev.jsonl", '{"text": "the cat"}\n'))
    assert_rejected(("dev.jsonl", "line 1", "'text_pair'"), task.read, "dev", BadRows())
