"""Initial weights computed from token counts of the records."""

import functools
import itertools
import math
import pathlib

import numpy as np
import pytest

from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.pretraining import corpus_initialization
from official_bert.pretraining.corpus_initialization import count, initialize
from official_bert.pretraining.run import pretrain
from tests.conftest import WORDS
from tests.make import refusal
from tests.pretraining.pretraining_runs import OptionsMaker

V = 12
CONFIG = BertConfig(V, 32, 2, 4, 64, max_position_embeddings=24)


def make_batch(rows: list[list[int]], length: int = 8) -> dict[str, np.ndarray]:
    """Returns a batch of records without masks."""
    ids = np.array([row + [0] * (length - len(row)) for row in rows])
    mask = np.array([[1] * len(row) + [0] * (length - len(row)) for row in rows])
    nothing = np.zeros((len(rows), 2), np.int64)
    return {
        "input_ids": ids, "input_mask": mask,
        "masked_lm_positions": nothing, "masked_lm_ids": nothing.copy(),
        "masked_lm_weights": nothing.astype(np.float32),
    }  # fmt: skip


def count_contexts(rows: list[list[int]]) -> np.ndarray:
    """Returns the counts of contexts by piece, offset and context, [V, 2, V], with the contexts ordered by id."""
    counts = count([make_batch(rows)], V)
    table = counts.contexts.reshape(V, 2, V)
    return table[:, :, np.argsort(np.argsort(-counts.pieces, kind="stable"), kind="stable")]


def initialized(counts, config: BertConfig = CONFIG, seed: int = 1):
    model = build_pretraining_model(config, seed=1)
    return model, initialize(model, config, counts, seed)


def test_tokens_under_masks_are_counted_and_padding_is_not():
    batch = make_batch([[2, 5, 4, 6, 3]])
    batch["masked_lm_positions"][0] = [2, 0]  # the second one is padding
    batch["masked_lm_ids"][0] = [7, 9]
    batch["masked_lm_weights"][0] = [1, 0]
    counts = count([batch], V)
    assert counts.tokens == 5
    assert {piece: n for piece, n in enumerate(counts.pieces.tolist()) if n} == {2: 1, 5: 1, 7: 1, 6: 1, 3: 1}


def test_contexts_are_the_pieces_at_each_offset():
    table = count_contexts([[5, 6, 7]])  # before, after
    expected = np.zeros((V, 2, V))
    expected[6, 0, 5] = expected[7, 0, 6] = 1
    expected[5, 1, 6] = expected[6, 1, 7] = 1
    np.testing.assert_array_equal(table, expected)


def test_tokens_of_two_records_are_no_neighbours():
    both = count_contexts([[5, 6, 7, 8, 9, 10, 11, 5], [6, 7, 8, 9, 10, 11, 5, 6]])
    np.testing.assert_array_equal(
        both, count_contexts([[5, 6, 7, 8, 9, 10, 11, 5]]) + count_contexts([[6, 7, 8, 9, 10, 11, 5, 6]])
    )


def test_counting_ends_after_some_millions_of_tokens(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("official_bert.pretraining.corpus_initialization._MAX_TOKENS", 10)
    batches = iter([make_batch([[5] * 8])] * 5)
    assert count(batches, V).tokens == 16
    assert len(list(batches)) == 3


def test_the_outputs_bias_is_the_logarithm_of_each_pieces_share():
    model, _ = initialized(count([make_batch([[5, 5, 5, 6]])], V))
    bias = np.asarray(model.get_layer("masked_lm_output").bias)
    np.testing.assert_allclose(np.exp(bias), np.array([1] * 5 + [4, 2] + [1] * 5) / 16, rtol=1e-5)
    assert math.isclose(np.exp(bias).sum(), 1, rel_tol=1e-5)


def test_pieces_with_the_same_neighbours_get_like_vectors():
    rows = [[7, 5, 8], [7, 6, 8], [9, 10, 11], [8, 7, 9], [11, 9, 7]] * 3
    model, known = initialized(count([make_batch(rows)], V))
    words = np.asarray(model.get_layer("word_embeddings").embeddings)[:, 16:]
    words /= np.linalg.norm(words, axis=1, keepdims=True)
    assert known == 7  # 5 to 11
    assert words[5] @ words[6] > 0.95
    assert words[5] @ words[10] < 0.5


def test_pieces_that_do_not_occur_keep_their_random_vectors():
    random = np.asarray(build_pretraining_model(CONFIG, seed=1).get_layer("word_embeddings").embeddings)
    model, _ = initialized(count([make_batch([[5, 6, 7, 8]])], V))
    words = np.asarray(model.get_layer("word_embeddings").embeddings)
    np.testing.assert_array_equal(words[[0, 9, 11], 16:], random[[0, 9, 11], 16:])
    assert np.abs(words[5, 16:] - random[5, 16:]).max() > 1e-3


@pytest.mark.parametrize("length", [8, 24])
def test_the_heads_of_the_first_block_attend_to_their_neighbours(length: int):
    rng = np.random.default_rng(0)
    config = BertConfig(V, 64, 2, 4, 64, max_position_embeddings=24)
    model, _ = initialized(count([make_batch(rng.integers(5, V, (50, 8)).tolist())], V), config)
    parts = [model.get_layer(f"layer_0_attention_{part}").output for part in ("query", "key")]
    inputs = {
        "input_ids": rng.integers(5, V, (3, length)), "input_mask": np.ones((3, length), int),
        "segment_ids": np.zeros((3, length), int), "masked_lm_positions": np.zeros((3, 1), int),
    }  # fmt: skip
    queries, keys = type(model)(model.input, parts).predict(inputs, verbose=0)
    inside = np.arange(2, length - 2)
    for head, offset in enumerate((-1, 1, -2, 2)):
        columns = slice(16 * head, 16 * head + 16)
        scores = queries[:, :, columns] @ keys[:, :, columns].transpose(0, 2, 1)
        assert np.mean(scores.argmax(-1)[:, inside] == inside + offset) > 0.95  # random weights remain


@functools.cache
def build_segment_model(size: int = 128, blocks: int = 2, heads: int = 4, next_sentence: bool = True, **changes: int):
    """Returns a model with a vocabulary of a hundred pieces whose heads compare segments. Tests must not change it.

    Piece 4 is [MASK], which does not occur in the counted records.
    """
    config = BertConfig(100, size, blocks, heads, 256, max_position_embeddings=24, **changes)
    model = build_pretraining_model(config, seed=1)
    rows = np.random.default_rng(0).integers(5, 100, (500, 8)).tolist()
    initialize(model, config, count([make_batch(rows)], 100), 1, next_sentence)
    return model


def make_pairs(rows: list[list[int]]) -> dict[str, np.ndarray]:
    """Returns segment pairs: [CLS] = 2, seven pieces, [SEP] = 3, seven pieces, and [SEP]."""
    ids = np.array([[2, *row[:7], 3, *row[7:], 3] for row in rows])
    segments = np.broadcast_to([0] * 9 + [1] * 8, ids.shape)
    return {
        "input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": segments,
        "masked_lm_positions": np.zeros((len(rows), 1), int),
    }  # fmt: skip


def test_tokens_attend_to_their_piece_in_the_other_segment_and_masks_to_their_neighbour():
    model = build_segment_model()
    rng = np.random.default_rng(1)
    rows = [rng.permutation(np.arange(5, 100))[:14] for _ in range(20)]
    for row in rows:
        row[12], row[3], row[5] = row[1], 4, 4  # the second piece of one segment is the sixth of the other
    parts = [model.get_layer(f"layer_0_attention_{part}").output for part in ("query", "key")]
    queries, keys = type(model)(model.input, parts).predict(make_pairs(rows), verbose=0)
    most = (queries[:, :, 96:] @ keys[:, :, 96:].transpose(0, 2, 1)).argmax(-1)
    places = np.arange(17)
    assert np.mean(most[:, 2] == 14) > 0.9
    assert np.mean(most[:, 14] == 2) > 0.9
    alone = [1, 3, 5, 7, 9, 10, 11, 12, 13, 15]
    assert np.mean(most[:, alone] == places[alone]) > 0.9
    assert np.mean(np.abs(most[:, [4, 6]] - places[[4, 6]]) > 0) > 0.9  # masks match nothing, not even each other


def test_the_first_position_tells_pairs_that_share_pieces():
    model = build_segment_model()
    rng = np.random.default_rng(1)
    rows = [rng.permutation(np.arange(5, 100))[:14] for _ in range(60)]
    for row in rows[:30]:
        row[7:12] = rng.permutation(row[:7])[:5]
    marks = type(model)(model.input, model.get_layer("layer_1_output_layer_norm").output).predict(
        make_pairs(rows), verbose=0
    )[:, 0, 17]
    assert np.mean(marks[:30] < np.median(marks)) > 0.9
    assert marks[:30].mean() < marks[30:].mean() - 0.5


def test_what_stays_random_is_a_share_of_what_it_was():
    model = build_segment_model()
    random = build_pretraining_model(BertConfig(100, 128, 2, 4, 256, max_position_embeddings=24), seed=1)

    def shares(layer: str, weight: str = "kernel") -> np.ndarray:
        after, before = (np.asarray(getattr(each.get_layer(layer), weight)) for each in (model, random))
        return after / before

    # Dimensions 0 to 15 are sines and cosines, 16 encodes the segment, 17 is the mark. The last head starts at 96.
    positions, segments = (shares(f"{name}_embeddings", "embeddings") for name in ("position", "token_type"))
    np.testing.assert_allclose(positions[:, 16:], 0.1, rtol=1e-5)
    np.testing.assert_allclose(np.delete(segments, 16, axis=1), 0.1, rtol=1e-5)
    for part in ("query", "key"):
        np.testing.assert_allclose(shares(f"layer_0_attention_{part}")[16:, :96], 0.3, rtol=1e-5)
    values, outputs = shares("layer_0_attention_value"), shares("layer_0_attention_output")
    np.testing.assert_allclose(values[:, :96], 1.0)
    np.testing.assert_allclose(np.delete(values, 16, axis=0)[:, 97:], 0.3, rtol=1e-5)
    np.testing.assert_allclose(np.delete(outputs, 96, axis=0)[:, 17], 0.1, rtol=1e-5)
    np.testing.assert_allclose(np.delete(outputs, 17, axis=1)[96], 0.1, rtol=1e-5)
    np.testing.assert_allclose(np.delete(np.delete(outputs, 96, axis=0), 17, axis=1), 1.0)
    # The last head compares dimensions in which the random vector of an uncounted piece is similar to no other.
    words = np.asarray(model.get_layer("word_embeddings").embeddings)
    compared = np.asarray(model.get_layer("layer_0_attention_key").kernel)[18:, 104:-1]
    likeness = np.abs(words[:, 18:] @ compared).max(axis=1)
    assert likeness[4] < 1e-4 * likeness[5:].min()


@pytest.mark.parametrize("changes", [
    {"next_sentence": False}, {"heads": 2}, {"blocks": 3}, {"type_vocab_size": 1}, {"size": 64}
])  # fmt: skip
def test_other_models_compare_no_segments(changes: dict[str, int]):
    # All heads of the first block attend to neighboring tokens, and word features follow the sines and cosines.
    model = build_segment_model(**changes)
    segments = np.asarray(model.get_layer("token_type_embeddings").embeddings)
    assert np.abs(segments).max() < 0.05
    assert np.asarray(model.get_layer("word_embeddings").embeddings)[5:, 16].std() > 0.01
    assert np.asarray(build_segment_model().get_layer("word_embeddings").embeddings)[5:, 16].std() < 0.004
    assert np.abs(
        np.asarray(build_segment_model().get_layer("token_type_embeddings").embeddings)
    ).max() == pytest.approx(2 * 0.02 / math.sqrt(0.7))


def test_narrow_models_and_small_texts_get_finite_weights():
    config = BertConfig(V, 6, 1, 3, 8, max_position_embeddings=8)
    wide = BertConfig(V, 68, 2, 4, 8, max_position_embeddings=8)  # the smallest width of a model that compares segments
    for rows, sizes in itertools.product(([[5]], [[5, 6]], [[5, 5, 5, 5]]), (config, wide)):
        model = build_pretraining_model(sizes, seed=1)
        initialize(model, sizes, count([make_batch(rows)], V), 1, next_sentence=True)
        assert all(np.isfinite(np.asarray(variable)).all() for variable in model.variables)


@pytest.mark.slow
def test_a_run_begins_with_such_weights_once_and_equally_with_the_same_seed(make_options, tmp_path, capsys):
    changes = {"init_from_records": True, "num_train_steps": 1}
    losses = []
    for folder in ("first", "second"):
        options = make_options(tmp_path / folder, **changes)
        pretrain(options)
        output = capsys.readouterr().out
        assert "initial weights from " in output
        assert f" of {len(WORDS)} pieces, the others at random" in output
        losses.append(next(line for line in output.splitlines() if line.startswith("step 1 ")).split("rate")[0])
    assert losses[0] == losses[1]
    pretrain(make_options(tmp_path / "first", **changes))
    assert "initial weights from " not in capsys.readouterr().out


@pytest.mark.parametrize("next_sentence", [True, False])
def test_a_run_compares_segments_where_it_learns_next_sentences(make_options, next_sentence, tmp_path, monkeypatch):
    def initialize(*arguments: object) -> None:
        raise UserError(f"next_sentence is {arguments[-1]}")

    monkeypatch.setattr(corpus_initialization, "initialize", initialize)
    changes = {"init_from_records": True, "num_train_steps": 1, "next_sentence_prediction": next_sentence}
    assert refusal(pretrain, make_options(tmp_path / "run", **changes)) == f"next_sentence is {next_sentence}"


def test_a_damaged_record_is_named(make_options: OptionsMaker, record_files: list[str], tmp_path: pathlib.Path):
    content = bytearray(pathlib.Path(record_files[0]).read_bytes())
    content[len(content) // 2] ^= 1
    damaged = tmp_path / "damaged.tfrecord"
    damaged.write_bytes(content)
    with pytest.raises(UserError, match=r"damaged.tfrecord.*record \d+"):
        pretrain(make_options(tmp_path / "run", input_file=[str(damaged)], init_from_records=True))
