"""The encoder and the pre-training heads follow the paper, also with left-to-right attention."""

import math
import pathlib
import shutil

import keras
import numpy as np
import pytest

import official_bert
from official_bert.kinds.question_answering.model import SpanLogits
from official_bert.modeling import layer_names
from official_bert.modeling.config import ACTIVATIONS
from official_bert.modeling.dropout import Dropout
from official_bert.modeling.embeddings import TokenTypeEmbedding
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.encoder_block import AttentionProbabilities
from official_bert.modeling.heads import FirstPosition, GatherPositions, LastToken
from official_bert.modeling.initialization import activation
from official_bert.modeling.pooling import build_vector_model
from official_bert.modeling.pretraining_model import build_pretraining_model, get_encoder
from tests.make import ROOT, assert_rejected, list_weights, tiny_config
from tests.modeling.small_models import inputs_of_encoder, random_batch, randomize_weights
from tests.reference import Reference

OTHER_SIZES = {"hidden_act": "relu", "layer_norm_eps": 0.1, "num_attention_heads": 4}


@pytest.mark.parametrize(("seed", "change"), [
    (3, {"hidden_act": "gelu"}), (0, {"hidden_act": "gelu_exact"}), (1, {"causal_attention": True}), (0, OTHER_SIZES),
])  # fmt: skip
def test_outputs_equal_the_float64_transcription(seed: int, change: dict[str, object]):
    config = tiny_config(num_hidden_layers=1 + seed, **change)
    model = randomize_weights(build_pretraining_model(config), seed)
    batch = random_batch(config, seed, length=(5, 12, 31, 32)[seed])
    weights = list_weights(model)
    reference = Reference(weights, config)
    masked_lm, next_sentence = reference.predict(**batch)
    outputs = model(batch)
    np.testing.assert_allclose(outputs["masked_lm_logits"], masked_lm, atol=1e-5)
    np.testing.assert_allclose(outputs["next_sentence_logits"], next_sentence, atol=1e-5)

    encoder = build_encoder(config, return_all_layers=True)
    encoder.set_weights([weights[variable.path] for variable in encoder.variables])
    encoded = encoder(inputs_of_encoder(batch))
    layers, pooled = reference.encode(**inputs_of_encoder(batch))
    assert len(encoded["encoder_outputs"]) == config.num_hidden_layers
    for layer, expected in zip(encoded["encoder_outputs"], layers, strict=True):
        np.testing.assert_allclose(layer, expected, atol=1e-5)
    for same in (encoded, get_encoder(model)(inputs_of_encoder(batch))):
        np.testing.assert_allclose(same["sequence_output"], layers[-1], atol=1e-5)
        np.testing.assert_allclose(same["pooled_output"], pooled, atol=1e-5)


def test_outputs_equal_those_of_the_original(tmp_path: pathlib.Path):
    """golden/original contains a checkpoint and the outputs that the original code computed with it."""
    original = ROOT / "tests" / "golden" / "original"
    shutil.copytree(original / "forward", tmp_path / "model")
    shutil.copy(original / "records" / "vocab.txt", tmp_path / "model")
    encoder = official_bert.load(str(tmp_path / "model")).model
    reference = np.load(original / "forward" / "reference.npz")
    names = {"input_ids": "ids", "input_mask": "mask", "segment_ids": "segments"}
    outputs = encoder({name: reference[each].astype(np.int32) for name, each in names.items()})
    np.testing.assert_allclose(outputs["sequence_output"], reference["sequence"], atol=2e-5)
    np.testing.assert_allclose(outputs["pooled_output"], reference["pooled"], atol=2e-5)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_equal_their_definitions(name: str):
    config, x = tiny_config(hidden_act=name), np.linspace(-8.0, 8.0, 33)
    np.testing.assert_allclose(activation(config)(x), Reference({}, config).activation(x), atol=1e-6)


def test_each_dropout_layer_has_its_configured_rate():
    config = tiny_config(hidden_dropout_prob=0.25, attention_probs_dropout_prob=0.5)
    rates = {layer.name: layer.rate for layer in build_encoder(config).layers if isinstance(layer, Dropout)}
    assert rates == {name: 0.5 if "probabilities" in name else 0.25 for name in rates}
    assert len(rates) == 1 + 3 * config.num_hidden_layers


def test_more_than_two_segment_types_are_supported():
    layer, ids = TokenTypeEmbedding(3, 2, "random_normal"), np.array([[0, 1, 2, 1]], "int32")
    np.testing.assert_allclose(layer(ids), np.asarray(layer.embeddings)[ids])


def test_vectors_are_pooled_over_the_tokens_of_the_chosen_blocks():
    config = tiny_config(num_hidden_layers=3)
    encoder = randomize_weights(build_encoder(config, return_all_layers=True), 0)
    batch = inputs_of_encoder(random_batch(config, 0))
    batch["input_mask"][2] = 0  # padding
    outputs = keras.tree.map_structure(np.asarray, encoder(batch))
    cases = (("mean", [-1]), ("mean", [1, -2]), ("max", [-1]), ("max", [3, -3]), ("cls", [2, 1]), ("pooled", [-1]))
    for pooling, layers in cases:
        values = np.concatenate([outputs["encoder_outputs"][number - (number > 0)] for number in layers], axis=-1)
        rows = [row[mask > 0] for row, mask in zip(values[:2], batch["input_mask"], strict=False)]
        expected = {"mean": [row.mean(0) for row in rows], "max": [row.max(0) for row in rows]}
        expected |= {"cls": values[:2, 0], "pooled": outputs["pooled_output"][:2]}
        vectors = np.asarray(build_vector_model(encoder, pooling, layers)(batch))
        np.testing.assert_allclose(vectors[:2], expected[pooling], atol=1e-5)
        assert np.isfinite(vectors[2]).all()
        unit = np.asarray(build_vector_model(encoder, pooling, layers, normalize=True)(batch))
        lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
        np.testing.assert_allclose(unit, vectors / np.maximum(lengths, 1e-12), atol=1e-5)


def test_unknown_blocks_are_rejected_for_pooling():
    encoder = build_encoder(tiny_config())
    for layers in ([], [0], [3], [-3], [1, 3]):
        assert_rejected(("layers", layers, "1 to 2", -1, -2), build_vector_model, encoder, "mean", layers)
    assert_rejected(("pooling", "'sum'", "mean"), build_vector_model, encoder, "sum")


def test_blocks_are_found_by_the_names_of_their_layers():
    names = ("layer_0_output", "layer_11_attention_query", "pooler", "masked_lm_layer_norm", "embeddings_layer_norm")
    assert [layer_names.find_block_index(name) for name in names] == [0, 11, None, None, None]
    assert [layer_names.is_in_encoder(name) for name in names] == [True, True, True, False, True]


def test_overlong_sequences_are_rejected():
    encoder = build_encoder(tiny_config(num_hidden_layers=1))
    most = np.zeros((1, 32), "int32")
    assert encoder({"input_ids": most, "input_mask": most, "segment_ids": most})["sequence_output"].shape[1] == 32
    ids = np.zeros((1, 33), "int32")
    with pytest.raises(ValueError, match="33 .* 32.*max_position_embeddings"):
        encoder({"input_ids": ids, "input_mask": ids, "segment_ids": ids})


# Token 3 is padding, or of the record 0 if records are packed.
@pytest.mark.parametrize(("attention_ids", "settings", "expected"), [
    ([1, 1, 1, 0], {}, [[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0]]),
    ([1, 1, 1, 0], {"causal": True}, [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0]]),
    ([1, 1, 2, 0], {"packed": True}, [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]),
])  # fmt: skip
def test_packed_texts_attend_only_to_themselves(attention_ids: list[int], settings: dict[str, bool], expected):
    query, key = np.random.default_rng(0).normal(size=(2, 1, 4, 8)).astype("float32")
    found = np.asarray(AttentionProbabilities(2, **settings)([query, key, np.array([attention_ids], "int32")]))
    np.testing.assert_allclose(found.sum(axis=-1), 1.0, rtol=1e-6)
    np.testing.assert_array_equal(found[0] > 0, [expected, expected])  # [N, S, T]


def test_models_survive_saving(tmp_path: pathlib.Path):
    config = tiny_config(num_hidden_layers=1, causal_attention=True)
    model, batch = randomize_weights(build_pretraining_model(config), 3), random_batch(config, 3)
    for name, original, inputs in (("model", model, batch), ("encoder", get_encoder(model), inputs_of_encoder(batch))):
        original.save(tmp_path / f"{name}.keras")
        before, after = original(inputs), keras.models.load_model(tmp_path / f"{name}.keras")(inputs)
        assert before.keys() == after.keys()
        for key in before:
            np.testing.assert_array_equal(before[key], after[key])


def test_bfloat16_keeps_float32_weights_and_logits():
    # Weights large enough that logits differ by much more than the rounding of bfloat16.
    config = tiny_config(num_hidden_layers=1)
    model = randomize_weights(build_pretraining_model(config, dtype="mixed_bfloat16"), 5)
    assert {variable.dtype for variable in model.variables} == {"float32"}
    batch = random_batch(config, 5)
    exact = randomize_weights(build_pretraining_model(config), 5)(batch)
    for key, value in model(batch).items():
        assert keras.backend.standardize_dtype(value.dtype) == "float32"
        expected = np.asarray(exact[key])
        difference = np.abs(value - expected).max()
        assert 0 < difference < 0.2 * expected.std(), key
        assert np.abs(expected).max() > 0.3, key
    encoded = get_encoder(model)(inputs_of_encoder(batch))
    assert keras.backend.standardize_dtype(encoded["sequence_output"].dtype) == "bfloat16"
    for pooling in ("cls", "pooled"):
        assert build_vector_model(get_encoder(model), pooling).output.dtype == "float32"
    assert keras.config.dtype_policy().name == "float32"  # the global policy stays


def test_gathered_vectors_come_from_the_requested_positions():
    sequence = np.arange(3 * 4 * 3, dtype="float32").reshape(3, 4, 3)
    input_mask = np.array([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], "int32")
    positions = np.array([[2, 0], [3, 3], [1, 2]], "int32")
    np.testing.assert_array_equal(FirstPosition()(sequence), sequence[:, 0])
    np.testing.assert_array_equal(LastToken()([sequence, input_mask]), sequence[[0, 1, 2], [2, 0, 0]])
    np.testing.assert_array_equal(GatherPositions()([sequence, positions]), sequence[[[0], [1], [2]], positions])
    ends = SpanLogits()([sequence[..., :2], input_mask])["end_logits"]
    np.testing.assert_array_equal(ends, np.where(input_mask > 0, sequence[..., 1], -1e9))


def test_layers_declare_the_shapes_and_types_of_their_outputs():
    model = build_pretraining_model(tiny_config(num_hidden_layers=1), dtype="mixed_bfloat16")
    outputs = keras.Model(model.input, {layer.name: layer.output for layer in model.layers})
    batch = random_batch(tiny_config(), 0)
    for name, value in outputs(batch).items():
        declared = model.get_layer(name).output
        assert len(declared.shape) == len(value.shape), name
        assert all(size in (None, seen) for size, seen in zip(declared.shape, value.shape, strict=True)), name
        assert declared.dtype == keras.backend.standardize_dtype(value.dtype), name


def test_initial_weights_have_the_published_distribution():
    config = tiny_config(vocab_size=2000, hidden_size=64, intermediate_size=256, initializer_range=0.05)
    for path, value in list_weights(build_pretraining_model(config, seed=0)).items():
        name = path.rsplit("/", 1)[1]
        if name in ("bias", "beta"):
            assert not value.any()
        elif name == "gamma":
            assert (value == 1).all()
        else:
            # A normal distribution truncated at two standard deviations keeps 0.8796 of its standard deviation.
            assert np.abs(value).max() <= 2 * config.initializer_range
            assert value.std() == pytest.approx(0.8796 * config.initializer_range, rel=4 / math.sqrt(value.size))


def test_a_seed_gives_the_same_weights_and_no_two_layers_start_alike():
    first, second = (list_weights(build_pretraining_model(tiny_config(), seed=1)) for _ in range(2))
    other = list_weights(build_pretraining_model(tiny_config(), seed=2))
    for path, value in first.items():
        np.testing.assert_array_equal(value, second[path])
        if path.endswith(("kernel", "embeddings")):
            assert not np.array_equal(value, other[path])
    kernels = [value for path, value in first.items() if path.endswith("kernel") and value.shape == (8, 8)]
    assert len({kernel.tobytes() for kernel in kernels}) == len(kernels) == 2 * 4 + 2
    encoder = list_weights(build_encoder(tiny_config(), seed=1))
    assert all(np.array_equal(value, first[path]) for path, value in encoder.items())
