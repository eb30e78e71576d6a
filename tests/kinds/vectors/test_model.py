"""The embedding losses equal their definitions, written in NumPy.

The definitions come from sentence-transformers: MultipleNegativesRankingLoss (cosines times 20, cross-entropy),
CosineSimilarityLoss (squared error), TripletLoss (Euclidean distance as in PyTorch, margin 5), and MatryoshkaLoss
(the sum over truncated and normalized vectors).
"""

import numpy as np
import pytest
import tensorflow as tf

from official_bert.kinds.vectors.model import CosineLoss, RankingLoss, TripletLoss
from tests.make import refusal

RNG = np.random.default_rng(0)
ROWS, SIZE = 5, 8
TRIPLETS = RNG.normal(size=(ROWS, 3, SIZE)).astype(np.float32)
SCORES = RNG.random(ROWS).astype(np.float32)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def ranking(vectors: np.ndarray, scores: np.ndarray) -> float:
    vectors = unit(vectors.astype(np.float64))
    candidates = np.concatenate([vectors[:, number] for number in range(1, vectors.shape[1])])
    logits = 20.0 * vectors[:, 0] @ candidates.T
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return float(-np.log(probabilities[np.arange(len(vectors)), np.arange(len(vectors))]).mean())


def cosine(vectors: np.ndarray, scores: np.ndarray) -> float:
    vectors = unit(vectors.astype(np.float64))
    return float((((vectors[:, 0] * vectors[:, 1]).sum(-1) - scores) ** 2).mean())


def triplet(vectors: np.ndarray, scores: np.ndarray) -> float:
    first, second, third = np.moveaxis(vectors.astype(np.float64), 1, 0)
    near = np.linalg.norm(first - second + 1e-6, axis=-1)
    far = np.linalg.norm(first - third + 1e-6, axis=-1)
    return float(np.maximum(near - far + 5.0, 0.0).mean())


CASES = {
    "ranking of pairs": (RankingLoss, ranking, 2),
    "ranking with negatives": (RankingLoss, ranking, 3),
    "cosine": (CosineLoss, cosine, 2),
    "triplet": (TripletLoss, triplet, 3),
}


@pytest.mark.parametrize("case", CASES)
def test_a_loss_is_that_of_its_definition(case: str):
    loss, definition, texts = CASES[case]
    vectors = TRIPLETS[:, :texts]
    assert float(loss()(SCORES, vectors)) == pytest.approx(definition(vectors, SCORES), abs=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_losses_of_several_sizes_are_added_up(case: str):
    loss, definition, texts = CASES[case]
    vectors = TRIPLETS[:, :texts]
    expected = sum(definition(unit(vectors[..., :size]), SCORES) for size in (SIZE, 4, 2))
    assert float(loss(dimensions=(4, 2))(SCORES, vectors)) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_padding_takes_no_part(case: str):
    loss, definition, texts = CASES[case]
    rows = tf.constant(np.concatenate([TRIPLETS[:, :texts], np.zeros((2, texts, SIZE), np.float32)]))
    is_row = tf.constant([1.0] * ROWS + [0.0] * 2)
    with tf.GradientTape() as tape:
        tape.watch(rows)
        total = tf.reduce_sum(loss().losses_of_rows(np.pad(SCORES, (0, 2)), rows, is_row) * is_row)
    assert float(total) / ROWS == pytest.approx(definition(TRIPLETS[:, :texts], SCORES), abs=1e-6)
    gradient = tape.gradient(total, rows).numpy()
    assert np.isfinite(gradient).all()
    assert not gradient[ROWS:].any()


def test_ids_of_single_texts_are_refused():
    assert "pairs or triplets" in refusal(RankingLoss(), SCORES, TRIPLETS[:, 0])
