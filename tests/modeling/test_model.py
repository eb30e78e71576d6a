import dataclasses
import math
import pathlib

import keras
import numpy as np
import pytest

from official_bert.modeling.config import BertConfig
from official_bert.modeling.dropout import Dropout, dropout_seed
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.pretraining_model import build_pretraining_model, encoder_of
from tests.reference import Reference


def random_batch(config: BertConfig, seed: int, batch: int = 3, length: int = 12, predictions: int = 4):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, length + 1, batch)
    input_mask = (np.arange(length) < lengths[:, None]).astype("int32")
    first = rng.integers(1, lengths)
    return {
        "input_ids": rng.integers(0, config.vocab_size, (batch, length)).astype("int32") * input_mask,
        "input_mask": input_mask,
        "segment_ids": (np.arange(length) >= first[:, None]).astype("int32") * input_mask,
        "masked_lm_positions": np.sort(rng.integers(0, lengths[:, None], (batch, predictions))).astype("int32"),
    }


def with_random_weights(model: keras.Model, seed: int) -> keras.Model:
    """Weights large enough that every part of the model matters, biases and normalization included."""
    rng = np.random.default_rng(seed)
    for variable in model.variables:
        variable.assign(rng.normal(1.0 if variable.name == "gamma" else 0.0, 0.3, variable.shape))
    return model


def weights_of(model: keras.Model) -> dict[str, np.ndarray]:
    return {variable.path: np.asarray(variable) for variable in model.variables}


def inputs_of_encoder(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")}


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_exact"])
@pytest.mark.parametrize("seed", range(4))
def test_outputs_equal_the_float64_transcription(tiny_config: BertConfig, hidden_act: str, seed: int):
    config = dataclasses.replace(tiny_config, hidden_act=hidden_act, num_hidden_layers=1 + seed)
    model = with_random_weights(build_pretraining_model(config), seed)
    batch = random_batch(config, seed, length=(5, 12, 31, 32)[seed])
    reference = Reference(weights_of(model), config)
    masked_lm, next_sentence = reference.predict(**batch)
    outputs = model(batch)
    np.testing.assert_allclose(outputs["masked_lm_logits"], masked_lm, atol=1e-5)
    np.testing.assert_allclose(outputs["next_sentence_logits"], next_sentence, atol=1e-5)

    encoder = build_encoder(config, return_all_layers=True)
    encoder.set_weights([weights_of(model)[variable.path] for variable in encoder.variables])
    encoded = encoder(inputs_of_encoder(batch))
    layers, pooled = reference.encode(**inputs_of_encoder(batch))
    assert len(encoded["encoder_outputs"]) == config.num_hidden_layers
    for layer, expected in zip(encoded["encoder_outputs"], layers, strict=True):
        np.testing.assert_allclose(layer, expected, atol=1e-5)
    np.testing.assert_allclose(encoded["sequence_output"], layers[-1], atol=1e-5)
    np.testing.assert_allclose(encoded["pooled_output"], pooled, atol=1e-5)


def test_padding_does_not_change_real_token_outputs(tiny_config: BertConfig):
    encoder = with_random_weights(build_encoder(tiny_config), 0)
    batch = inputs_of_encoder(random_batch(tiny_config, 1, batch=1, length=7))
    batch["input_mask"][:] = 1
    short = encoder(batch)
    padded = {name: np.pad(values, [(0, 0), (0, 9)]) for name, values in batch.items()}
    padded["input_ids"][:, 7:] = 5  # what stands in the padding must not matter either
    long = encoder(padded)
    np.testing.assert_allclose(long["sequence_output"][:, :7], short["sequence_output"], atol=1e-6)
    np.testing.assert_allclose(long["pooled_output"], short["pooled_output"], atol=1e-6)


def test_too_long_a_sequence_is_refused(tiny_config: BertConfig):
    encoder = build_encoder(tiny_config)
    ids = np.zeros((1, tiny_config.max_position_embeddings + 1), "int32")
    with pytest.raises(ValueError, match="the sequence has 33 positions, the model 32"):
        encoder({"input_ids": ids, "input_mask": ids, "segment_ids": ids})


def test_initial_weights_are_as_published(tiny_config: BertConfig):
    config = dataclasses.replace(tiny_config, vocab_size=2000, hidden_size=64, intermediate_size=256)
    for path, value in weights_of(build_pretraining_model(config, seed=0)).items():
        name = path.rsplit("/", 1)[1]
        if name in ("bias", "beta"):
            assert not value.any()
        elif name == "gamma":
            assert (value == 1).all()
        else:
            # A normal distribution cut at two deviations keeps 0.8796 of its deviation.
            assert np.abs(value).max() <= 2 * config.initializer_range
            assert value.std() == pytest.approx(0.8796 * config.initializer_range, rel=4 / math.sqrt(value.size))


def test_a_seed_gives_the_same_weights_and_no_two_layers_start_alike(tiny_config: BertConfig):
    first, second = (weights_of(build_pretraining_model(tiny_config, seed=1)) for _ in range(2))
    other = weights_of(build_pretraining_model(tiny_config, seed=2))
    for path, value in first.items():
        np.testing.assert_array_equal(value, second[path])
        if path.endswith(("kernel", "embeddings")):
            assert not np.array_equal(value, other[path])
    kernels = [value for path, value in first.items() if path.endswith("kernel") and value.shape == (8, 8)]
    assert len({kernel.tobytes() for kernel in kernels}) == len(kernels) == 2 * 4 + 2
    encoder = weights_of(build_encoder(tiny_config, seed=1))
    assert all(np.array_equal(value, first[path]) for path, value in encoder.items())


def test_word_embeddings_are_tied_to_the_masked_lm_output(tiny_config: BertConfig):
    model = build_pretraining_model(tiny_config)
    by_shape = [path for path, value in weights_of(model).items() if tiny_config.vocab_size in value.shape]
    assert sorted(by_shape) == ["masked_lm_output/bias", "word_embeddings/embeddings"]


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


@pytest.mark.parametrize("width", [64, 63, 1])
def test_dropout_keeps_the_stated_share_and_the_mean(width: int):
    ones = np.ones((2000, width), "float32")
    with dropout_seed([1, 2]):
        dropped = np.asarray(Dropout(0.1, name="somewhere")(ones, training=True))
    kept = dropped != 0
    deviation = math.sqrt(0.09 / ones.size)
    assert kept.mean() == pytest.approx(0.9, abs=5 * deviation)
    assert dropped[kept] == pytest.approx(1 / 0.9, rel=1e-4)
    assert np.abs(kept.mean(axis=0) - 0.9).max() < 5 * math.sqrt(0.09 / 2000)


def test_dropout_rate_is_exact_to_a_ten_thousandth():
    for rate in (0.05, 0.1, 0.123, 0.5):
        assert Dropout(rate)._kept / 2**16 == pytest.approx(1 - rate, abs=1e-4)


def dropped_of_ones(rate: float) -> np.ndarray:
    with dropout_seed([1, 2]):
        return np.asarray(Dropout(rate, name="a")(np.ones((2000, 2000), "float32"), training=True))


@pytest.mark.parametrize("rate", [1e-9, 1e-6])
def test_dropout_rates_below_half_a_step_drop_nothing(rate: float):
    np.testing.assert_array_equal(dropped_of_ones(rate), 1.0)


# Of 4,000,000 elements 2 ** -16 are 61; four deviations of that are 31.
@pytest.mark.parametrize("rate", [1e-5, 2.0**-16])
def test_the_smallest_dropout_rate_is_one_step(rate: float):
    dropped = dropped_of_ones(rate)
    assert 30 <= (dropped == 0).sum() <= 92
    np.testing.assert_allclose(dropped[dropped != 0], 1 / (1 - 2.0**-16), rtol=1e-6)


@pytest.mark.parametrize("rate", [0.99999, 0.9999999])
def test_the_greatest_dropout_rate_keeps_one_step(rate: float):
    dropped = dropped_of_ones(rate)
    assert 30 <= (dropped != 0).sum() <= 92
    assert set(dropped[dropped != 0]) == {2.0**16}


def test_dropout_is_a_function_of_seed_and_place():
    ones = np.ones((50, 40), "float32")

    def mask(seed: list[int], name: str) -> bytes:
        with dropout_seed(seed):
            return np.asarray(Dropout(0.5, name=name)(ones, training=True)).tobytes()

    assert mask([1, 2], "a") == mask([1, 2], "a")
    assert len({mask([1, 2], "a"), mask([1, 3], "a"), mask([2, 2], "a"), mask([1, 2], "b")}) == 4


def test_dropout_is_off_outside_training_and_random_within_fit():
    ones = np.ones((50, 40), "float32")
    layer = Dropout(0.5, name="a")
    np.testing.assert_array_equal(layer(ones), ones)
    assert not np.array_equal(layer(ones, training=True), layer(ones, training=True))
    assert not layer.variables


def test_dropout_changes_training_outputs_only(tiny_config: BertConfig):
    model = build_pretraining_model(tiny_config, seed=6)
    batch = random_batch(tiny_config, 6)
    still = np.asarray(model(batch, training=False)["masked_lm_logits"])
    np.testing.assert_array_equal(model(batch)["masked_lm_logits"], still)
    with dropout_seed([0, 0]):
        assert not np.array_equal(model(batch, training=True)["masked_lm_logits"], still)
