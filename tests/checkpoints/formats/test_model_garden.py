"""Model garden checkpoints give the outputs that model garden computed."""

import pathlib

import numpy as np
import pytest

from official_bert.checkpoints import parity
from official_bert.checkpoints.checkpoint import ENCODER, MASKED_LM, POOLER, PRETRAINING
from official_bert.checkpoints.loading import open_model
from tests.checkpoints import checkpoint_samples
from tests.checkpoints.checkpoint_samples import HEADS, read_refusal, write_model_garden


@pytest.mark.parametrize(("model", "parts"), [
    ("encoder", {ENCODER, POOLER}),
    ("encoder_v2", {ENCODER, POOLER}),
    ("pretrainer", {ENCODER, POOLER, MASKED_LM}),
    ("pretrainer_v1", PRETRAINING),
    ("trained", PRETRAINING),
    ("classifier", {ENCODER, POOLER, HEADS["sequence"]}),
    ("classifier_pooler", {ENCODER, POOLER, HEADS["sequence"]}),
])  # fmt: skip
def test_models_of_model_garden_give_the_same_outputs(model: str, parts: set[str], tmp_path: pathlib.Path):
    values, expected = write_model_garden(model, tmp_path)
    checkpoint = open_model(str(tmp_path))
    assert (checkpoint.source.format, set(checkpoint.parts)) == ("model_garden", set(parts))
    assert {value.tobytes() for value in checkpoint.weights.values()} <= {value.tobytes() for value in values.values()}
    outputs = parity.compute_outputs(checkpoint)
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name], value, atol=1e-5)


@pytest.mark.parametrize("classes", [3, 2])  # of a tagger, and of a model that answers questions
def test_heads_of_model_garden_with_an_ambiguous_name_are_rejected(classes: int, tmp_path, monkeypatch):
    models, name = checkpoint_samples.MODEL_GARDEN["models"], "predictions/transform/logits/kernel"
    tensors = [*models["encoder"]["tensors"], ["model/head/kernel", name, [4, classes]]]
    monkeypatch.setitem(models, "other", {**models["encoder"], "tensors": tensors})
    write_model_garden("other", tmp_path)
    assert f"0 missing; 1 unexpected: {name}" in read_refusal(tmp_path)
