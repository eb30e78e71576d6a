"""The encoder computes what the paper says."""

import dataclasses
import pathlib
import shutil

import numpy as np
import pytest

import official_bert
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.pretraining_model import build_pretraining_model
from tests.conftest import ROOT
from tests.modeling.small_models import inputs_of_encoder, random_batch, weights_of, with_random_weights
from tests.reference import Reference


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


def test_outputs_equal_those_of_the_original(tmp_path: pathlib.Path):
    """golden/original has a checkpoint, and what the original's own code computed with it."""
    original = ROOT / "tests" / "golden" / "original"
    shutil.copytree(original / "forward", tmp_path / "model")
    shutil.copy(original / "records" / "vocab.txt", tmp_path / "model")
    encoder = official_bert.load(str(tmp_path / "model")).encoder
    reference = np.load(original / "forward" / "reference.npz")
    names = {"input_ids": "ids", "input_mask": "mask", "segment_ids": "segments"}
    outputs = encoder({name: reference[each].astype(np.int32) for name, each in names.items()})
    np.testing.assert_allclose(outputs["sequence_output"], reference["sequence"], atol=2e-5)
    np.testing.assert_allclose(outputs["pooled_output"], reference["pooled"], atol=2e-5)
