"""Models of old TensorFlow libraries (golden/make_tensorflow_models.py) and of model garden give the same outputs."""

import functools
import json
import shutil

import h5py
import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.checkpoints import parity
from official_bert.checkpoints.loading import open_model
from official_bert.export.source import read_source
from tests.checkpoints import checkpoint_samples as samples


@pytest.fixture
def golden(tmp_path_factory):
    """Returns a function that returns the folder of a library's models."""
    return functools.partial(samples.unpacked, folder=tmp_path_factory.getbasetemp() / "tensorflow_models")


def assert_outputs_close(checkpoint, expected, **arguments):
    """Asserts that a checkpoint has the parts whose outputs were stored, and computes the same."""
    outputs = parity.compute_outputs(checkpoint, **arguments)
    assert outputs.keys() - expected.keys() <= {"pooled_output", "hidden_0"}  # not every library shows these
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name], value, atol=1e-5)


MODELS = {
    ("transformers", "hugging_face"): "model pretraining masked_lm next_sentence classifier several regressor tagger "
    "choice answerer safetensors safetensors_classifier shards safetensors_shards",
    ("tensorflow_hub", "saved_model"): "hub hub_mlm hub_1 hub_2",
    ("model_garden", "saved_model"): "classifier serving",
    ("keras_nlp_0.8", "keras_hub"): "preset",  # written under Keras 2
    ("keras_nlp_0.14", "keras_hub"): "preset",
}


@pytest.mark.parametrize(("key", "model"), [(key, model) for key, models in MODELS.items() for model in models.split()])
def test_models_of_other_libraries_give_the_same_outputs(key, model, golden):
    library, format_name = key
    folder = golden(library) / model
    checkpoint = open_model(str(folder))
    assert checkpoint.source.format == format_name
    assert (checkpoint.vocab is None) == (library == "model_garden")
    assert checkpoint.casing.do_lower_case == (model != "hub_mlm")
    assert format_name != "hugging_face" or not checkpoint.notes
    assert format_name != "saved_model" or "does not state its activation" in checkpoint.notes[0]
    stored = dict(np.load(folder / "expected.npz"))
    features = {name: stored.pop(name) for name in ("input_ids", "input_mask", "segment_ids")}
    assert_outputs_close(checkpoint, stored, features=features)


@pytest.mark.parametrize("model", samples.MODEL_GARDEN["models"])
def test_models_of_model_garden_give_the_same_outputs(model, tmp_path):
    values, expected = samples.write_model_garden(model, tmp_path)
    checkpoint = open_model(str(tmp_path))
    assert checkpoint.source.format == "model_garden"
    assert {value.tobytes() for value in checkpoint.weights.values()} <= {value.tobytes() for value in values.values()}
    assert_outputs_close(checkpoint, expected)


def test_heads_of_model_garden_with_an_ambiguous_name_are_rejected(tmp_path, monkeypatch):
    models, name = samples.MODEL_GARDEN["models"], "predictions/transform/logits/kernel"
    for classes in (3, 2):  # of a tagger, and of a model that answers questions
        tensors = [*models["encoder"]["tensors"], ["model/head/kernel", name, [4, classes]]]
        monkeypatch.setitem(models, "other", {**models["encoder"], "tensors": tensors})
        samples.write_model_garden("other", tmp_path)
        samples.assert_unreadable(tmp_path, "0 missing", "1 unexpected", name)


def test_other_saved_models_are_rejected(golden, tmp_path):
    folder, other = golden("tensorflow_hub") / "preprocess", tf.Module()
    samples.assert_unreadable(folder, folder, "weights")
    other.weights = [tf.Variable(tf.zeros([9, 4]), name=f"{name}/kernel") for name in ("EncoderDNN", "Embeddings_en")]
    tf.saved_model.save(other, str(tmp_path))
    samples.assert_unreadable(tmp_path, tmp_path, "word_embeddings/embeddings", 2)


def test_classifiers_keep_their_labels_and_are_exported_unless_only_the_encoder_is_requested(golden):
    labels = ("noun", "verb", "möglich")
    for model, name in (("classifier", "TextClassifier"), ("several", "TextClassifier"), ("tagger", "TokenTagger")):
        predictor = getattr(official_bert, name).from_checkpoint(str(golden("transformers") / model))
        assert predictor.labels == labels
        assert predictor.get_config().get("multi_label", False) == (model == "several")
    for model, kind in (("tagger", "tagging"), ("regressor", "regression"), ("answerer", "question_answering")):
        folder = str(golden("transformers") / model)
        source = read_source(folder)
        assert source.kind == source.task_spec["kind"] == kind
        assert source.task_spec["labels"] == ([*labels] if model == "tagger" else None)
    assert read_source(folder, encoder=True).kind == "encoder"


@pytest.mark.parametrize("other", ["roberta", "distilbert", "albert"])
def test_other_model_types_are_named(other, golden, tmp_path):
    folder = shutil.copytree(golden("transformers") / other, tmp_path / "mine")
    samples.assert_unreadable(folder, folder / "tf_model.h5", other)


@pytest.mark.parametrize(("model", "index", "shard"), [
    ("shards", "tf_model.h5.index.json", "tf_model-00002-of-00002.h5"),
    ("safetensors_shards", "model.safetensors.index.json", "model-00002-of-00002.safetensors"),
])  # fmt: skip
def test_missing_and_misplaced_shards_are_errors(model, index, shard, golden, tmp_path):
    folder = shutil.copytree(golden("transformers") / model, tmp_path / model)
    path = folder / index
    written = path.read_text()
    for name in ("../secret.h5", "/etc/secret.safetensors", "config.json"):
        path.write_text(written.replace(shard, name))
        samples.assert_unreadable(folder, path, repr(name))
    weight_map = json.loads(written)["weight_map"]
    other, lost = shard.replace("00002-", "00001-"), next(name for name in weight_map if weight_map[name] == shard)
    path.write_text(json.dumps({"weight_map": dict.fromkeys(weight_map, other)}))
    samples.assert_unreadable(folder, other, folder, lost, path)
    path.write_text("{}")
    samples.assert_unreadable(folder, path, "weight_map")
    path.write_text(written)
    (folder / shard).unlink()
    samples.assert_unreadable(folder, folder / shard, path)


def test_copies_of_one_tensor_must_be_equal(golden, tmp_path):
    folder = shutil.copytree(golden("transformers") / "masked_lm", tmp_path / "model")
    name = "mlm___cls/tf_bert_for_masked_lm/bert/embeddings/word_embeddings/weight:0"
    with h5py.File(folder / "tf_model.h5", "r+") as file:
        file[name][3, 2] += 1
    samples.assert_unreadable(folder, folder / "tf_model.h5", name)
