"""Initial weights computed from token counts of the records."""

import dataclasses
import functools
import itertools
import math

import keras
import numpy as np
import pytest

from official_bert.modeling.config import BertConfig
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.pretraining import corpus_initialization, run
from official_bert.pretraining.corpus_initialization import count, initialize
from tests.make import WORDS, list_weights

V = 12
SMALL = BertConfig(len(WORDS), 68, 2, 4, 8, max_position_embeddings=32)  # the smallest width that compares segments
CONFIG = BertConfig(V, 32, 1, 4, 64, max_position_embeddings=24)
# Its heads compare segments. Piece 4 is [MASK], which does not occur in the counted records.
SEGMENTS = BertConfig(100, 128, 2, 4, 256, max_position_embeddings=24)
OTHERS = ({"num_attention_heads": 2}, {"num_attention_heads": 8}, {"num_hidden_layers": 3}, {"type_vocab_size": 1})
SEGMENT_ROWS = np.random.default_rng(0).integers(5, 100, (500, 8)).tolist()


def make_batch(rows):
    """Returns a batch of records without masks."""
    ids = np.array([row + [0] * (8 - len(row)) for row in rows])
    mask = np.array([[1] * len(row) + [0] * (8 - len(row)) for row in rows])
    masked = {f"masked_lm_{name}": np.zeros((len(rows), 2), np.int64) for name in ("positions", "ids", "weights")}
    return {"input_ids": ids, "input_mask": mask, **masked}


@functools.cache
def build_model(config: BertConfig) -> tuple[keras.Model, dict[str, np.ndarray]]:
    """Returns a model and its random weights."""
    model = build_pretraining_model(config, seed=1)
    return model, list_weights(model)


def initialize_model(rows, config=CONFIG, next_sentence=False, built=None):
    """Initializes a model from counts. Returns it, its weights, its random weights and the number of known pieces."""
    model, random = build_model(built or config)
    for variable in model.variables:
        variable.assign(random[variable.path])
    known = initialize(model, config, count([make_batch(rows)], config.vocab_size), 1, next_sentence)
    return model, list_weights(model), random, known


def score_attention(model, inputs, columns):
    """Returns the products of the first block's queries and keys in some columns [B, S, S]."""
    parts = [model.get_layer(f"layer_0_attention_{part}").output for part in ("query", "key")]
    queries, keys = (np.asarray(part)[:, :, columns] for part in keras.Model(model.input, parts)(inputs))
    return queries @ keys.transpose(0, 2, 1)


def test_original_tokens_of_masks_are_counted_and_padding_is_ignored():
    batch = make_batch([[2, 5, 4, 6, 3]])
    batch["masked_lm_positions"][0] = [2, 0]  # the second one is padding
    batch["masked_lm_ids"][0] = [7, 9]
    batch["masked_lm_weights"][0] = [1, 0]
    counts = count([batch], V)
    assert {piece: n for piece, n in enumerate(counts.pieces.tolist()) if n} == {2: 1, 5: 1, 7: 1, 6: 1, 3: 1}


def test_contexts_are_counted_per_offset_within_a_record():
    counts = count([make_batch([[5, 6, 7, 8, 9, 10, 11, 5], [6, 7]])], V)
    # The contexts are ordered by frequency. This orders them by id.
    contexts = np.argsort(np.argsort(-counts.pieces, kind="stable"), kind="stable")
    table = counts.contexts.reshape(V, 2, V)[:, :, contexts]  # before, after
    expected = np.zeros((V, 2, V))
    for first, second in [*itertools.pairwise([5, 6, 7, 8, 9, 10, 11, 5]), (6, 7)]:
        expected[second, 0, first] += 1
        expected[first, 1, second] += 1
    np.testing.assert_array_equal(table, expected)


def test_counting_stops_at_the_token_limit(monkeypatch):
    monkeypatch.setattr(corpus_initialization, "_MAX_TOKENS", 10)
    batches = iter([make_batch([[5] * 8])] * 5)
    assert count(batches, V).pieces.sum() == 16
    assert len(list(batches)) == 3


def test_the_output_bias_is_the_log_frequency_of_each_piece():
    shares = np.exp(initialize_model([[5, 5, 5, 6]])[1]["masked_lm_output/bias"])
    np.testing.assert_allclose(shares, np.array([1] * 5 + [4, 2] + [1] * 5) / 16, rtol=1e-5)


def test_pieces_with_similar_neighbours_get_similar_embeddings():
    rows = [[7, 5, 8], [7, 6, 8], [9, 10, 8], [8, 7, 9], [9, 7]] * 3
    _, weights, random, known = initialize_model(rows)
    words, before = (each["word_embeddings/embeddings"][:, 16:] for each in (weights, random))
    assert known == 6  # 5 to 10
    np.testing.assert_array_equal(words[[0, 4, 11]], before[[0, 4, 11]])
    assert np.abs(words - before)[5:11].max(axis=1).min() > 1e-3
    words = words / np.linalg.norm(words, axis=1, keepdims=True)
    assert words[5] @ words[6] > 0.95
    assert words[5] @ words[10] < 0.5


@pytest.mark.parametrize("length", [8, 24])
def test_the_heads_of_the_first_block_attend_to_their_neighbours(length):
    rng = np.random.default_rng(0)
    model, *_ = initialize_model(rng.integers(5, V, (50, 8)).tolist(), dataclasses.replace(CONFIG, hidden_size=64))
    inputs = {"input_ids": rng.integers(5, V, (3, length)), "input_mask": np.ones((3, length))}
    inputs |= {"segment_ids": np.zeros((3, length)), "masked_lm_positions": np.zeros((3, 1))}
    inside = np.arange(2, length - 2)
    for head, offset in enumerate((-1, 1, -2, 2)):
        scores = score_attention(model, inputs, slice(16 * head, 16 * head + 16))
        assert np.mean(scores.argmax(-1)[:, inside] == inside + offset) > 0.95  # random weights remain


def make_pairs(rows):
    """Returns segment pairs: [CLS] = 2, seven pieces, [SEP] = 3, seven pieces, and [SEP]."""
    ids = np.array([[2, *row[:7], 3, *row[7:], 3] for row in rows])
    segments = np.broadcast_to([0] * 9 + [1] * 8, ids.shape)
    inputs = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": segments}
    return {**inputs, "masked_lm_positions": np.zeros((len(rows), 1), int)}


def test_tokens_attend_to_the_same_piece_in_the_other_segment():
    model, *_ = initialize_model(SEGMENT_ROWS, SEGMENTS, next_sentence=True)
    rng = np.random.default_rng(1)
    rows = [rng.permutation(np.arange(5, 100))[:14] for _ in range(20)]
    for row in rows:
        row[12], row[3], row[5] = row[1], 4, 4  # the second piece of one segment is the sixth of the other
    most = score_attention(model, make_pairs(rows), slice(96, 128)).argmax(-1)
    expected = np.arange(17)
    expected[[2, 14]] = 14, 2
    shares = (most == expected).mean(axis=0)
    assert shares[[2, 14]].min() > 0.9
    assert shares[[1, 3, 5, 7, 9, 10, 11, 12, 13, 15]].mean() > 0.9
    assert shares[[4, 6]].mean() < 0.1  # masks match nothing, not even each other


def test_the_first_position_distinguishes_pairs_that_share_pieces():
    model, *_ = initialize_model(SEGMENT_ROWS, SEGMENTS, next_sentence=True)
    rng = np.random.default_rng(1)
    rows = [rng.permutation(np.arange(5, 100))[:14] for _ in range(60)]
    for row in rows[:30]:
        row[7:12] = rng.permutation(row[:7])[:5]
    outputs = keras.Model(model.input, model.get_layer("layer_1_output_layer_norm").output)(make_pairs(rows))
    marks = np.asarray(outputs)[:, 0, 17]
    assert np.mean(marks[:30] < np.median(marks)) > 0.9
    assert marks[:30].mean() < marks[30:].mean() - 0.5


def test_remaining_random_weights_are_scaled():
    _, weights, random, _ = initialize_model(SEGMENT_ROWS, SEGMENTS, next_sentence=True)

    def assert_shares(name, expected, rows=(), columns=(), part=np.s_[:]):
        """Compares weights with a share of what they were, without some rows and columns."""
        after, before = (np.delete(np.delete(each[name], rows, 0), columns, 1)[part] for each in (weights, random))
        np.testing.assert_allclose(after, expected * before, rtol=1e-5)

    # Dimensions 0 to 15 are sines and cosines, 16 encodes the segment, 17 is the mark. The last head starts at 96.
    assert_shares("position_embeddings/embeddings", 0.1, part=np.s_[:, 16:])
    assert_shares("token_type_embeddings/embeddings", 0.1, columns=[16])
    assert weights["token_type_embeddings/embeddings"].max() == pytest.approx(2 * 0.02 / math.sqrt(0.7))
    assert weights["word_embeddings/embeddings"][5:, 16].std() < 0.004
    for part in ("query", "key"):
        assert_shares(f"layer_0_attention_{part}/kernel", 0.3, part=np.s_[16:, :96])
    assert_shares("layer_0_attention_value/kernel", 1.0, part=np.s_[:, :96])
    assert_shares("layer_0_attention_value/kernel", 0.3, rows=[16], part=np.s_[:, 97:])
    assert_shares("layer_0_attention_output/kernel", 0.1, rows=[96], part=np.s_[:, 17])
    assert_shares("layer_0_attention_output/kernel", 0.1, columns=[17], part=np.s_[96])
    assert_shares("layer_0_attention_output/kernel", 1.0, rows=[96], columns=[17])
    # The last head compares dimensions in which the random vector of an uncounted piece is similar to no other.
    compared = weights["layer_0_attention_key/kernel"][18:, 104:-1]
    likeness = np.abs(weights["word_embeddings/embeddings"][:, 18:] @ compared).max(axis=1)
    assert likeness[4] < 1e-4 * likeness[5:].min()


@pytest.mark.parametrize("changes", [{}, *OTHERS], ids=str)
def test_other_models_do_not_compare_segments(changes):
    # All heads of the first block attend to neighboring tokens, and word features follow the sines and cosines.
    config = dataclasses.replace(SEGMENTS, **changes)
    _, weights, *_ = initialize_model(SEGMENT_ROWS, config, next_sentence=bool(changes), built=SEGMENTS)
    assert np.abs(weights["token_type_embeddings/embeddings"]).max() < 0.05
    assert weights["word_embeddings/embeddings"][5:, 16].std() > 0.01


def test_narrow_models_and_small_texts_get_finite_weights():
    narrow = BertConfig(V, 6, 1, 3, 8, max_position_embeddings=8)
    for row, config in itertools.product(([5], [5, 6], [5, 5, 5, 5]), (narrow, SMALL)):
        _, weights, *_ = initialize_model([row], config, next_sentence=True)
        assert all(np.isfinite(value).all() for value in weights.values())


def test_a_run_is_initialized_from_records_once_and_reproducibly(set_up_run, finished_run, capsys):
    weights = []
    for changes in ({}, {}, {"next_sentence_prediction": False}):
        parts = set_up_run(folder="new", config=SMALL, init_from_records=True, **changes)
        run.restore(parts)
        weights.append(list_weights(parts.pretrainer.model))
        assert f" of {SMALL.vocab_size} pieces, the others at random" in capsys.readouterr().out
    np.testing.assert_equal(weights[1], weights[0])
    segments = [np.abs(each["token_type_embeddings/embeddings"]).max() for each in weights]
    assert segments[0] > 0.04 > segments[2], "a run that learns next sentences compares segments"
    run.restore(set_up_run(init_from_records=True, allow_changes=["init_from_records"]))
    assert "initial weights from " not in capsys.readouterr().out
