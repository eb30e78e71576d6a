"""The encoder with its pre-training heads as a Keras model, and its initial weights."""

import dataclasses
import math
import pathlib

import keras
import numpy as np
import pytest

from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.heads import FirstPosition, GatherPositions, LastToken
from official_bert.modeling.pretraining_model import build_pretraining_model, get_encoder
from tests.modeling.small_models import inputs_of_encoder, list_weights, random_batch, randomize_weights


@pytest.mark.parametrize("is_causal", [False, True])
def test_models_survive_saving(is_causal: bool, tiny_config: BertConfig, tmp_path: pathlib.Path):
    config = dataclasses.replace(tiny_config, num_hidden_layers=1, causal_attention=is_causal)
    model, batch = randomize_weights(build_pretraining_model(config), 3), random_batch(config, 3)
    for name, original, inputs in (("model", model, batch), ("encoder", get_encoder(model), inputs_of_encoder(batch))):
        original.save(tmp_path / f"{name}.keras")
        before, after = original(inputs), keras.models.load_model(tmp_path / f"{name}.keras")(inputs)
        assert before.keys() == after.keys()
        for key in before:
            np.testing.assert_array_equal(before[key], after[key])


def test_bfloat16_keeps_float32_weights_and_logits(tiny_config: BertConfig):
    # Weights large enough that logits differ by much more than the rounding of bfloat16.
    model = randomize_weights(build_pretraining_model(tiny_config, dtype="mixed_bfloat16"), 5)
    assert {variable.dtype for variable in model.variables} == {"float32"}
    batch = random_batch(tiny_config, 5)
    exact = randomize_weights(build_pretraining_model(tiny_config), 5)(batch)
    for key, value in model(batch).items():
        assert keras.backend.standardize_dtype(value.dtype) == "float32"
        expected = np.asarray(exact[key])
        difference = np.abs(value - expected).max()
        assert 0 < difference < 0.2 * expected.std(), key
        assert np.abs(expected).max() > 0.3, key
    encoded = get_encoder(model)(inputs_of_encoder(batch))
    assert keras.backend.standardize_dtype(encoded["sequence_output"].dtype) == "bfloat16"
    assert keras.config.dtype_policy().name == "float32"  # the global policy stays


def test_vectors_are_those_of_the_first_position_the_last_token_and_the_positions_to_predict():
    sequence = np.arange(2 * 4 * 3, dtype="float32").reshape(2, 4, 3)
    input_mask = np.array([[1, 1, 1, 0], [1, 0, 0, 0]], "int32")
    positions = np.array([[2, 0], [3, 3]], "int32")
    np.testing.assert_array_equal(FirstPosition()(sequence), sequence[:, 0])
    np.testing.assert_array_equal(LastToken()([sequence, input_mask]), [sequence[0, 2], sequence[1, 0]])
    np.testing.assert_array_equal(GatherPositions()([sequence, positions]), [sequence[0, [2, 0]], sequence[1, [3, 3]]])


def test_word_embeddings_are_tied_to_the_masked_lm_output(tiny_config: BertConfig):
    model = build_pretraining_model(tiny_config)
    by_shape = [path for path, value in list_weights(model).items() if tiny_config.vocab_size in value.shape]
    assert sorted(by_shape) == ["masked_lm_output/bias", "word_embeddings/embeddings"]


def test_initial_weights_are_as_published(tiny_config: BertConfig):
    config = dataclasses.replace(tiny_config, vocab_size=2000, hidden_size=64, intermediate_size=256)
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


def test_a_seed_gives_the_same_weights_and_no_two_layers_start_alike(tiny_config: BertConfig):
    first, second = (list_weights(build_pretraining_model(tiny_config, seed=1)) for _ in range(2))
    other = list_weights(build_pretraining_model(tiny_config, seed=2))
    for path, value in first.items():
        np.testing.assert_array_equal(value, second[path])
        if path.endswith(("kernel", "embeddings")):
            assert not np.array_equal(value, other[path])
    kernels = [value for path, value in first.items() if path.endswith("kernel") and value.shape == (8, 8)]
    assert len({kernel.tobytes() for kernel in kernels}) == len(kernels) == 2 * 4 + 2
    encoder = list_weights(build_encoder(tiny_config, seed=1))
    assert all(np.array_equal(value, first[path]) for path, value in encoder.items())
