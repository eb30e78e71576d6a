"""Model garden checkpoints give the outputs that model garden computed."""

import pathlib

import numpy as np
import pytest

from official_bert.checkpoints import parity
from official_bert.checkpoints.checkpoint import ENCODER, MASKED_LM, POOLER, PRETRAINING
from official_bert.checkpoints.loading import open_model
from official_bert.errors import UserError
from tests.checkpoints import checkpoint_samples
from tests.checkpoints.checkpoint_samples import HEADS, write_model_garden


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
    assert checkpoint.source.format == "model_garden"
    assert set(checkpoint.parts) == set(parts)
    stored = {value.tobytes() for value in values.values()}
    assert all(value.tobytes() in stored for value in checkpoint.weights.values())
    outputs = parity.compute_outputs(checkpoint)
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name], value, atol=1e-5)


@pytest.mark.parametrize("model", ["token_classifier", "span_labeler"])
def test_heads_of_model_garden_with_an_ambiguous_name_are_rejected(model: str, tmp_path, monkeypatch):
    models = checkpoint_samples.MODEL_GARDEN["models"]
    classes = {"token_classifier": 3, "span_labeler": 2}[model]
    head = [["model/head/kernel", "predictions/transform/logits/kernel", [4, classes]]]
    monkeypatch.setitem(models, model, {**models["encoder"], "tensors": models["encoder"]["tensors"] + head})
    write_model_garden(model, tmp_path)
    with pytest.raises(UserError, match="0 missing; 1 unexpected: predictions/transform/logits/kernel"):
        open_model(str(tmp_path))
