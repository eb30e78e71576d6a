"""Retrieval scores of vectors, and the embedding losses.

The losses equal their definitions, written in NumPy. These come from sentence-transformers:
MultipleNegativesRankingLoss (cosines times 20, cross-entropy), CosineSimilarityLoss (squared error), TripletLoss
(Euclidean distance as in PyTorch, margin 5), and MatryoshkaLoss (the sum over truncated and normalized vectors).
"""

import numpy as np
import pytest
import tensorflow as tf

from official_bert.kinds.model import create_kind_model
from official_bert.kinds.spec import Outcome
from official_bert.kinds.vectors import retrieval
from official_bert.kinds.vectors.model import CosineLoss, RankingLoss, TripletLoss
from official_bert.kinds.vectors.spec import VectorExample, VectorSpec
from tests.make import assert_rejected


def angled(*degrees: float) -> np.ndarray:
    radians = np.deg2rad(degrees)
    return np.stack([np.cos(radians), np.sin(radians)], -1).astype(np.float32)


def test_ranks_count_texts_at_least_as_near():
    answers = [np.array([0]), np.array([1]), np.array([3, 0])]
    ranks, nearest = retrieval.rank_answers(angled(0, 12, 50), angled(0, 10, 10, 90), answers)
    assert [each.tolist() for each in ranks] == [[1], [2], [3, 4]]
    assert nearest.tolist() == [0, 1, 1]
    scores = retrieval.score_ranks(ranks)
    assert scores["accuracy_at_1"] == scores["recall_at_1"] == pytest.approx(1 / 3)
    assert scores["recall_at_5"] == scores["accuracy_at_10"] == 1.0
    assert scores["mrr"] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    ranks, _ = retrieval.rank_answers(np.ones((1, 2)), np.ones((4, 2)), [np.array([2])])
    assert ranks[0].tolist() == [4]  # equal vectors find nothing
    assert retrieval.normalize_vectors(np.array([[0.0, 0.0], [0.0, 2.0]])).tolist() == [[0.0, 0.0], [0.0, 1.0]]


def test_recall_is_of_all_answers_and_accuracy_of_any():
    scores = retrieval.score_ranks([np.array([7, 1]), np.array([6, 12])])
    expected = {"accuracy_at_1": 0.5, "accuracy_at_5": 0.5, "accuracy_at_10": 1.0, "mrr": (1 + 1 / 6) / 2}
    assert scores == pytest.approx({**expected, "recall_at_1": 0.25, "recall_at_5": 0.25, "recall_at_10": 0.75})


def test_a_text_is_found_among_the_second_texts_and_negatives_of_all():
    # "a" has two answers.
    examples = [VectorExample(str(number), tuple(texts)) for number, texts in enumerate(("abc", "adc", "ebf"))]
    of_text = dict(zip("abcdef", angled(0, 5, 40, 50, 10, 2), strict=True))
    vectors = np.stack([[of_text[text] for text in example.texts] for example in examples])
    head = VectorSpec(dimensions=(1,))
    scores = head.scores(vectors, examples)
    # For a: f, b, c, d. For e: b, f, c, d.
    assert {*head.score_names} <= {*scores}
    expected = {"accuracy_at_1": 0.5, "recall_at_5": 1.0, "mrr": (1 / 2 + 1) / 2, "triplet_accuracy": 2 / 3}
    expected["mrr_of_1"] = 1 / 4  # with one dimension, all vectors have the same direction
    assert {name: scores[name] for name in expected} == pytest.approx(expected)
    found = [(each.text, each.expected, each.predicted, each.correct) for each in head.outcomes(vectors, examples)]
    assert found == [("a", "b / d", "f", False), ("e", "b", "b", True)]
    tie = np.array([[[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]])
    assert head.scores(tie, examples[:1])["triplet_accuracy"] == 0.0


def test_a_repeated_pair_counts_once():
    pairs = [VectorExample("", texts) for texts in (("a", "b"), ("a", "b"), ("a", "d"), ("e", "d"))]
    of_text = dict(zip("abde", angled(0, 20, 30, 90), strict=True))
    vectors = np.stack([[of_text[text] for text in example.texts] for example in pairs])
    scores = VectorSpec().scores(vectors, pairs)
    assert scores == VectorSpec().scores(vectors[1:], pairs[1:])
    assert scores["recall_at_1"] == pytest.approx((1 / 2 + 1) / 2)
    assert VectorSpec().outcomes(vectors, pairs)[0].expected == "b / d"


def test_many_queries_are_ranked_in_parts(monkeypatch: pytest.MonkeyPatch):
    queries, candidates = angled(*range(0, 70, 10)), angled(*range(3, 80, 7))
    answers = [np.array([number, 9 - number]) for number in range(7)]
    ranks, nearest = retrieval.rank_answers(queries, candidates, answers)
    monkeypatch.setattr(retrieval, "_AT_ONCE", 3)
    ranks_in_parts, nearest_in_parts = retrieval.rank_answers(queries, candidates, answers)
    assert [each.tolist() for each in ranks_in_parts] == [each.tolist() for each in ranks]
    np.testing.assert_array_equal(nearest_in_parts, nearest)


def test_reduced_dimensions_are_the_first_dimensions():
    vectors = np.array([[[1.0, 0.0, 9.0], [1.0, 0.1, -9.0]], [[0.0, 1.0, -9.0], [0.1, 1.0, 9.0]]])
    examples = [VectorExample("", ("a", "b")), VectorExample("", ("c", "d"))]
    scores = VectorSpec(dimensions=(2, 3)).scores(vectors, examples)
    assert (scores["mrr"], scores["mrr_of_2"], scores["mrr_of_3"]) == (0.5, 1.0, 0.5)


def test_score_ranges_are_inclusive_and_other_settings_are_checked():
    spec = VectorSpec(score_range=(1.0, 5.0), dimensions=(1, 8))
    assert [spec.scale_score(score, "score") for score in (1, 2.0, "5")] == [0.0, 0.25, 1.0]
    for score in (0.99, 5.01, None):
        assert_rejected((score, "1 to 5", "score_range"), spec.scale_score, score, "score")
    spec.check(8)
    sizes = [("dimensions", (size,), size, 1, 8) for size in (0, 9)]
    ranges = [("score_range", (1.0, 1.0), "1, 1"), ("score_range", (0.0, 1.0, 2.0), "0, 1, 2")]
    for name, value, *names in (*sizes, *ranges, ("scale", float("inf"), "inf"), ("margin", 0.0, 0.0)):
        assert_rejected((name, *names), VectorSpec(**{name: value}).check, 8)


def test_pairs_with_scores_have_correlations():
    cosines, expected = np.array([1.0, 0.5, -0.5, 0.0]), [1.0, 0.4, 0.3, 0.1]
    vectors = np.stack([angled(0, 0, 0, 0), angled(*np.rad2deg(np.arccos(cosines)))], 1)
    examples = [VectorExample("", ("a", "b"), score) for score in expected]
    spec = VectorSpec(objective="cosine")
    assert spec.outcomes(vectors, examples)[1] == Outcome("a ||| b", "0.4", "0.5", False)
    assert_rejected(("x[0]", "pairs of texts"), spec.make_training_examples, [("a", "b", "c")], [1.0])
    assert_rejected(("x[1]", "triplets"), VectorSpec().make_training_examples, [("a", "b"), ("a", "b", "c")], None)
    scores = spec.scores(vectors, examples)
    assert {*VectorSpec(graded=True).score_names} <= {*scores}
    assert scores["spearman"] == pytest.approx(0.8)
    assert scores["pearson"] == pytest.approx(np.corrcoef(cosines, expected)[0, 1], abs=1e-6)


def test_a_text_may_be_a_pair_and_equal_texts_have_equal_numbers(tokenizer):
    examples = [VectorExample("", ("a ||| a ||| the cat", "the")), VectorExample("", ("the", "cat"))]
    specs = [VectorSpec(objective=each) for each in ("ranking", "cosine")]
    features, other = (spec.featurize(examples, tokenizer, 16) for spec in specs)
    assert features.segment_ids.sum() == 3  # the text after the last separator, and [SEP]
    assert features.details["texts"].tolist() == [[0, 2], [2, 1]]
    assert "texts" not in other.details


RNG = np.random.default_rng(0)
ROWS, SIZE = 5, 8
TRIPLETS = RNG.normal(size=(ROWS, 3, SIZE)).astype(np.float32)
SCORES = RNG.random(ROWS).astype(np.float32)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def ranking(vectors: np.ndarray) -> np.ndarray:
    vectors = unit(vectors.astype(np.float64))
    powers = np.exp(20.0 * vectors[:, 0] @ np.concatenate(np.moveaxis(vectors[:, 1:], 1, 0)).T)
    return -np.log((powers / powers.sum(-1, keepdims=True)).diagonal()).mean()


def cosine(vectors: np.ndarray) -> np.ndarray:
    vectors = unit(vectors.astype(np.float64))
    return (((vectors[:, 0] * vectors[:, 1]).sum(-1) - SCORES) ** 2).mean()


def triplet(vectors: np.ndarray) -> np.ndarray:
    first, second, third = np.moveaxis(vectors.astype(np.float64), 1, 0)
    near, far = (np.linalg.norm(first - other + 1e-6, axis=-1) for other in (second, third))
    return np.maximum(near - far + 5.0, 0.0).mean()


@pytest.mark.parametrize(("loss", "definition", "texts"), [
    (RankingLoss, ranking, 2), (RankingLoss, ranking, 3), (CosineLoss, cosine, 2), (TripletLoss, triplet, 3),
])  # fmt: skip
def test_each_loss_equals_its_definition(loss, definition, texts: int):
    vectors = TRIPLETS[:, :texts]
    assert float(loss()(SCORES, vectors)) == pytest.approx(definition(vectors), abs=1e-6)
    # The number of texts is not static if a model is trained on pairs and then on triplets.
    traced = tf.function(loss(), input_signature=[tf.TensorSpec([None]), tf.TensorSpec([None, None, SIZE])])
    assert float(traced(SCORES, vectors)) == pytest.approx(definition(vectors), abs=1e-6)
    # Losses of several sizes are added up.
    expected = sum(definition(unit(vectors[..., :size])) for size in (SIZE, 4, 2))
    assert float(loss(dimensions=(4, 2))(SCORES, vectors)) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    rows, is_row = tf.constant(np.pad(vectors, [(0, 2), (0, 0), (0, 0)])), tf.constant([1.0] * ROWS + [0.0] * 2)
    with tf.GradientTape() as tape:
        tape.watch(rows)
        total = tf.reduce_sum(loss().compute_row_losses(np.pad(SCORES, (0, 2)), rows, is_row) * is_row)
    assert float(total) / ROWS == pytest.approx(definition(vectors), abs=1e-6)
    gradient = tape.gradient(total, rows).numpy()
    assert np.isfinite(gradient).all()
    assert not gradient[ROWS:].any()


@pytest.mark.parametrize(("settings", "expected"), [
    ({"scale": 3.0}, RankingLoss(3.0)), ({"scale": 3.0, "dimensions": (4,)}, RankingLoss(3.0, dimensions=(4,))),
    ({"objective": "triplet", "margin": 0.5}, TripletLoss(0.5)),
    ({"objective": "triplet", "dimensions": (2,)}, TripletLoss(dimensions=(2,))),
    ({"objective": "cosine", "dimensions": (2,)}, CosineLoss(dimensions=(2,))),
])  # fmt: skip
def test_the_loss_has_the_settings_of_the_spec_and_keeps_them(settings, expected):
    loss = create_kind_model(VectorSpec(**settings)).loss()
    for found in (loss, type(loss).from_config(loss.get_config())):
        assert {**found.get_config(), "name": None} == {**expected.get_config(), "name": None}
        assert float(found(SCORES, TRIPLETS)) == float(expected(SCORES, TRIPLETS))


def test_ids_of_single_texts_are_refused():
    assert_rejected(("pairs", "triplets", "ids"), RankingLoss(), SCORES, TRIPLETS[:, 0])
