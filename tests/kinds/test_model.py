import h5py
import keras
import numpy as np
import pytest

from official_bert.checkpoints.checkpoint import LoadedModel
from official_bert.checkpoints.formats import finetuned
from official_bert.checkpoints.loading import open_model
from official_bert.kinds import names
from official_bert.kinds.classification.model import build_classifier
from official_bert.kinds.regression.model import build_regressor
from official_bert.kinds.tagging.model import build_token_tagger
from official_bert.modeling.encoder import build_encoder
from tests.export.exported_models import random_features
from tests.make import VOCAB, assert_rejected, build_task_model, tiny_config

B, S, LABELS, CHOICES = 8, 6, 3, 2
CONFIG = tiny_config(num_hidden_layers=1, initializer_range=0.2)
SIZES = {"max_seq_length": S, "num_choices": None}
DESCRIPTION = {"task": "t", "kind": "classification", "pair": False, "labels": ["x", "y", "z"], **SIZES}


def build(kind: str, dtype: str = "float32") -> keras.Model:
    return build_task_model(kind, build_encoder(CONFIG, seed=3, dtype=dtype), LABELS, CHOICES, seed=3)


@pytest.mark.parametrize("kind", names.KINDS)
def test_padding_does_not_change_predictions(kind: str):
    inputs, model = random_features(*(B, CHOICES, S) if kind == "multiple_choice" else (B, S)), build(kind)
    longer = {name: np.pad(each, [(0, 0)] * (each.ndim - 1) + [(0, 4)]) for name, each in inputs.items()}

    def compare(short, long):
        np.testing.assert_allclose(short, long if short.shape == long.shape else long[:, :S], atol=1e-5)

    keras.tree.map_structure(compare, model(inputs), model(longer))


@pytest.mark.parametrize("kind", names.KINDS)
def test_logits_are_float32_and_most_heads_have_dropout(kind: str):
    model = build(kind, dtype="mixed_bfloat16")
    assert {each.dtype for each in model.outputs} == {"float32"}
    rates = [layer.rate for layer in model._flatten_layers() if layer.name == "head_dropout"]
    assert rates == ([] if kind in ("question_answering", "embedding") else [0.1])


def test_named_heads_can_share_an_encoder():
    encoder, inputs = build_encoder(CONFIG), random_features(B, S)
    heads = [build_classifier(encoder, 2), build_classifier(encoder, 2, name="topic")]
    heads += [build_regressor(encoder, name="x"), build_token_tagger(encoder, 3, name="tags")]
    model = keras.Model(encoder.input, [head.output for head in heads])
    assert len({variable.path for variable in model.variables}) == len(model.variables)
    for output, head in zip(model(inputs), heads, strict=True):
        np.testing.assert_array_equal(output, head(inputs))


def test_an_encoder_without_a_pooler_is_refused():
    encoder = build_encoder(CONFIG)
    bare = keras.Model(encoder.input, {"sequence_output": encoder.output["sequence_output"]})
    assert_rejected(("pooled_output", "pooler"), build_classifier, bare, 2)


def test_a_fine_tuned_model_is_saved_without_its_optimizer_and_a_damaged_one_is_named(tmp_path):
    folder, path, model = str(tmp_path / "model"), tmp_path / "model" / "model.weights.h5", build("classification")
    model.compile("adam")
    model.optimizer.build(model.trainable_variables)
    finetuned.save(folder, model, DESCRIPTION, CONFIG, VOCAB)
    with h5py.File(path) as weights:
        assert "optimizer" not in weights
    assert_rejected("task.json", finetuned.build_model, LoadedModel(CONFIG, {}))
    path.write_bytes(path.read_bytes()[:1000])
    assert_rejected((path, path.with_name("checksums.json")), open_model, folder)
    path.with_name("checksums.json").unlink()
    assert_rejected((path, "damaged"), open_model, folder)
    (tmp_path / "model" / "task.json").write_text('{"task": "t"}')
    assert_rejected((tmp_path / "model" / "task.json", "kind", "pair"), open_model, folder)
