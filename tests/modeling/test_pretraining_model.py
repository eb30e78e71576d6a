"""The encoder with its heads, as a Keras model."""

import pathlib

import keras
import numpy as np

from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.pretraining_model import build_pretraining_model, encoder_of
from tests.modeling.small_models import inputs_of_encoder, random_batch, with_random_weights


def test_models_survive_saving(tiny_config: BertConfig, tmp_path: pathlib.Path):
    model = with_random_weights(build_pretraining_model(tiny_config), 3)
    batch = random_batch(tiny_config, 3)
    encoder = encoder_of(model)
    for name, original, inputs in (("model", model, batch), ("encoder", encoder, inputs_of_encoder(batch))):
        path = tmp_path / f"{name}.keras"
        original.save(path)
        loaded = keras.models.load_model(path)
        before, after = original(inputs), loaded(inputs)
        assert before.keys() == after.keys()
        for key in before:
            np.testing.assert_array_equal(before[key], after[key])


def test_encoder_within_a_pretraining_model_equals_one_built_alone(tiny_config: BertConfig):
    inner = encoder_of(build_pretraining_model(tiny_config, seed=4))
    alone = build_encoder(tiny_config, seed=4)
    batch = inputs_of_encoder(random_batch(tiny_config, 4))
    for key, value in alone(batch).items():
        np.testing.assert_array_equal(inner(batch)[key], value)


def test_bfloat16_keeps_float32_weights_and_logits(tiny_config: BertConfig):
    # Weights so large that each logit differs from the others by much more than bfloat16's rounding.
    model = with_random_weights(build_pretraining_model(tiny_config, dtype="mixed_bfloat16"), 5)
    assert {variable.dtype for variable in model.variables} == {"float32"}
    batch = random_batch(tiny_config, 5)
    exact = with_random_weights(build_pretraining_model(tiny_config), 5)(batch)
    for key, value in model(batch).items():
        assert keras.backend.standardize_dtype(value.dtype) == "float32"
        expected = np.asarray(exact[key])
        difference = np.abs(value - expected).max()
        assert 0 < difference < 0.2 * expected.std(), key
        assert np.abs(expected).max() > 0.3, key
    encoded = encoder_of(model)(inputs_of_encoder(batch))
    assert keras.backend.standardize_dtype(encoded["sequence_output"].dtype) == "bfloat16"


def test_building_a_model_leaves_the_global_dtype_policy_alone(tiny_config: BertConfig):
    build_pretraining_model(tiny_config, dtype="mixed_bfloat16")
    assert keras.config.dtype_policy().name == "float32"
