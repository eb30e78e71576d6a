"""Left-to-right models: attention sees what is before, the last token is pooled, and files keep it so."""

import dataclasses
import pathlib

import keras
import numpy as np
import pytest

from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.pretraining_model import build_pretraining_model, encoder_of
from official_bert.modeling.rematerialization import rematerialized
from tests.modeling.small_models import inputs_of_encoder, random_batch, weights_of, with_random_weights
from tests.reference import Reference


@pytest.fixture
def causal_config(tiny_config: BertConfig) -> BertConfig:
    return dataclasses.replace(tiny_config, causal_attention=True)


def test_outputs_equal_the_float64_transcription(causal_config: BertConfig, tmp_path: pathlib.Path):
    model = with_random_weights(build_pretraining_model(causal_config), 0)
    batch = random_batch(causal_config, 3, length=9)
    masked_lm, next_sentence = Reference(weights_of(model), causal_config).predict(**batch)
    outputs = model(batch)
    np.testing.assert_allclose(outputs["masked_lm_logits"], masked_lm, atol=1e-5)
    np.testing.assert_allclose(outputs["next_sentence_logits"], next_sentence, atol=1e-5)
    # The ways of computing and of keeping the same model.
    model.save(tmp_path / "model.keras")
    for same in (rematerialized(model), keras.saving.load_model(tmp_path / "model.keras")):
        for name, value in same(batch).items():
            np.testing.assert_allclose(value, outputs[name], atol=1e-6)
    encoded = encoder_of(model)(inputs_of_encoder(batch))
    layers, pooled = Reference(weights_of(model), causal_config).encode(**inputs_of_encoder(batch))
    np.testing.assert_allclose(encoded["sequence_output"], layers[-1], atol=1e-5)
    np.testing.assert_allclose(encoded["pooled_output"], pooled, atol=1e-5)


def test_no_token_sees_a_later_one_and_the_last_token_is_pooled(causal_config: BertConfig):
    encoder = with_random_weights(build_encoder(causal_config), 0)
    batch = inputs_of_encoder(random_batch(causal_config, 1, batch=1, length=8))
    batch["input_mask"] = np.array([[1, 1, 1, 1, 1, 1, 0, 0]], np.int32)
    before = {name: np.asarray(value) for name, value in encoder(batch).items()}

    def changed_at(position: int) -> dict[str, np.ndarray]:
        ids = batch["input_ids"].copy()
        ids[0, position] = (ids[0, position] + 1) % causal_config.vocab_size
        return {
            name: np.abs(np.asarray(value) - before[name])
            for name, value in encoder({**batch, "input_ids": ids}).items()
        }

    for position in range(6):
        change = changed_at(position)
        moved = change["sequence_output"][0].max(axis=-1) > 1e-6
        assert moved[:6].tolist() == [each >= position for each in range(6)]
        assert change["pooled_output"].max() > 1e-6
    assert changed_at(6)["pooled_output"].max() == 0


def test_the_configuration_tells_it_only_where_it_is_so(causal_config: BertConfig):
    assert "causal_attention" not in BertConfig(9).to_dict()
    assert BertConfig.from_dict(causal_config.to_dict()) == causal_config
