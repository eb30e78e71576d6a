"""The embedding losses equal their definitions, written in NumPy.

The definitions come from sentence-transformers: MultipleNegativesRankingLoss (cosines times 20, cross-entropy),
CosineSimilarityLoss (squared error), TripletLoss (Euclidean distance as in PyTorch, margin 5), and MatryoshkaLoss
(the sum over truncated and normalized vectors).
"""

import numpy as np
import pytest
import tensorflow as tf

from official_bert.kinds.model import create_kind_model
from official_bert.kinds.vectors.model import CosineLoss, RankingLoss, TripletLoss
from official_bert.kinds.vectors.spec import VectorSpec
from tests.make import assert_rejected

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


CASES = pytest.mark.parametrize(("loss", "definition", "texts"), [
    (RankingLoss, ranking, 2), (RankingLoss, ranking, 3), (CosineLoss, cosine, 2), (TripletLoss, triplet, 3),
])  # fmt: skip


@CASES
def test_each_loss_equals_its_definition(loss, definition, texts: int):
    vectors = TRIPLETS[:, :texts]
    assert float(loss()(SCORES, vectors)) == pytest.approx(definition(vectors), abs=1e-6)
    # The number of texts is not static if a model is trained on pairs and then on triplets.
    traced = tf.function(loss(), input_signature=[tf.TensorSpec([None]), tf.TensorSpec([None, None, SIZE])])
    assert float(traced(SCORES, vectors)) == pytest.approx(definition(vectors), abs=1e-6)
    # Losses of several sizes are added up.
    expected = sum(definition(unit(vectors[..., :size])) for size in (SIZE, 4, 2))
    assert float(loss(dimensions=(4, 2))(SCORES, vectors)) == pytest.approx(expected, rel=1e-6, abs=1e-6)


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


@CASES
def test_padding_rows_do_not_affect_the_loss(loss, definition, texts: int):
    rows = tf.constant(np.pad(TRIPLETS[:, :texts], [(0, 2), (0, 0), (0, 0)]))
    is_row = tf.constant([1.0] * ROWS + [0.0] * 2)
    with tf.GradientTape() as tape:
        tape.watch(rows)
        total = tf.reduce_sum(loss().compute_row_losses(np.pad(SCORES, (0, 2)), rows, is_row) * is_row)
    assert float(total) / ROWS == pytest.approx(definition(TRIPLETS[:, :texts]), abs=1e-6)
    gradient = tape.gradient(total, rows).numpy()
    assert np.isfinite(gradient).all()
    assert not gradient[ROWS:].any()


def test_ids_of_single_texts_are_refused():
    assert_rejected(("pairs", "triplets", "ids"), RankingLoss(), SCORES, TRIPLETS[:, 0])
