"""Files of old TensorFlow libraries (golden/make_tensorflow_models.py) give the outputs those libraries computed."""

import functools
import json
import pathlib
import re
import shutil
from typing import Any

import h5py
import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.checkpoints import parity
from official_bert.checkpoints.checkpoint import ENCODER, MASKED_LM, NEXT_SENTENCE, POOLER, PRETRAINING
from official_bert.checkpoints.loading import open_model
from official_bert.export.source import read_source
from tests.checkpoints.checkpoint_samples import HEADS, read_refusal, unpacked

CLASSIFIER = {ENCODER, POOLER, HEADS["sequence"]}


@pytest.fixture
def golden(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns a function that returns the folder of a library's models."""
    return functools.partial(unpacked, folder=tmp_path_factory.getbasetemp() / "tensorflow_models")


@pytest.mark.parametrize(("library", "model", "format_name", "parts"), [
    ("transformers", "model", "hugging_face", {ENCODER, POOLER}),
    ("transformers", "pretraining", "hugging_face", PRETRAINING),
    ("transformers", "masked_lm", "hugging_face", {ENCODER, MASKED_LM}),
    ("transformers", "next_sentence", "hugging_face", {ENCODER, POOLER, NEXT_SENTENCE}),
    ("transformers", "classifier", "hugging_face", CLASSIFIER),
    ("transformers", "several", "hugging_face", CLASSIFIER),
    ("transformers", "regressor", "hugging_face", CLASSIFIER),
    ("transformers", "tagger", "hugging_face", {ENCODER, HEADS["token"]}),
    ("transformers", "choice", "hugging_face", {ENCODER, POOLER, HEADS["choice"]}),
    ("transformers", "answerer", "hugging_face", {ENCODER, HEADS["span"]}),
    ("transformers", "safetensors", "hugging_face", PRETRAINING),
    ("transformers", "safetensors_classifier", "hugging_face", CLASSIFIER),
    ("transformers", "shards", "hugging_face", PRETRAINING),
    ("transformers", "safetensors_shards", "hugging_face", PRETRAINING),
    ("tensorflow_hub", "hub", "saved_model", {ENCODER, POOLER}),
    ("tensorflow_hub", "hub_mlm", "saved_model", {ENCODER, POOLER, MASKED_LM}),
    ("tensorflow_hub", "hub_1", "saved_model", {ENCODER, POOLER}),
    ("tensorflow_hub", "hub_2", "saved_model", {ENCODER, POOLER}),
    ("model_garden", "classifier", "saved_model", CLASSIFIER),
    ("model_garden", "serving", "saved_model", CLASSIFIER),
    ("keras_nlp_0.8", "preset", "keras_hub", {ENCODER, POOLER}),  # written under Keras 2
    ("keras_nlp_0.14", "preset", "keras_hub", CLASSIFIER),
])  # fmt: skip
def test_models_of_other_libraries_give_the_same_outputs(library, model, format_name, parts, golden):
    folder = golden(library) / model
    checkpoint = open_model(str(folder))
    assert (checkpoint.source.format, set(checkpoint.parts)) == (format_name, set(parts))
    assert (checkpoint.vocab is None) == (library == "model_garden")
    assert checkpoint.casing.do_lower_case == (model != "hub_mlm")
    assert format_name != "hugging_face" or not checkpoint.notes
    assert format_name != "saved_model" or "does not state its activation" in checkpoint.notes[0]
    stored = dict(np.load(folder / "expected.npz"))
    features = {name: stored.pop(name) for name in ("input_ids", "input_mask", "segment_ids")}
    outputs = parity.compute_outputs(checkpoint, features)
    for name, value in stored.items():
        np.testing.assert_allclose(outputs[name], value, atol=1e-5)


def test_other_saved_models_are_rejected(golden: Any, tmp_path: pathlib.Path):
    assert "preprocess is a SavedModel without weights" in read_refusal(golden("tensorflow_hub") / "preprocess")
    other = tf.Module()
    other.weights = [tf.Variable(tf.zeros([9, 4]), name=f"{name}/kernel") for name in ("EncoderDNN", "Embeddings_en")]
    tf.saved_model.save(other, str(tmp_path / "other"))
    assert "word_embeddings/embeddings is not among its 2 variables" in read_refusal(tmp_path / "other")


@pytest.mark.parametrize(("model", "class_name", "settings"), [
    ("classifier", "TextClassifier", {"multi_label": False}),
    ("several", "TextClassifier", {"multi_label": True}),
    ("tagger", "TokenTagger", {}),
])  # fmt: skip
def test_classifiers_keep_their_labels(model: str, class_name: str, settings: dict, golden: Any):
    predictor = getattr(official_bert, class_name).from_checkpoint(str(golden("transformers") / model))
    assert predictor.labels == ("noun", "verb", "möglich")
    assert predictor.get_config().items() >= settings.items()


def test_imported_heads_are_exported_unless_only_the_encoder_is_requested(golden: Any):
    for model, kind in (("tagger", "tagging"), ("regressor", "regression"), ("answerer", "question_answering")):
        folder = str(golden("transformers") / model)
        source = read_source(folder)
        assert source.kind == source.task_spec["kind"] == kind
        assert source.task_spec["labels"] == (["noun", "verb", "möglich"] if model == "tagger" else None)
    assert read_source(folder, encoder=True).kind == "encoder"


def test_other_model_types_are_named(golden: Any):
    for other in ("roberta", "distilbert", "albert"):
        assert f"tf_model.h5 contains tensors of {other}" in read_refusal(golden("transformers") / other)


@pytest.mark.parametrize(("model", "index", "shard"), [
    ("shards", "tf_model.h5.index.json", "tf_model-00002-of-00002.h5"),
    ("safetensors_shards", "model.safetensors.index.json", "model-00002-of-00002.safetensors"),
])  # fmt: skip
def test_missing_and_misplaced_shards_are_errors(model: str, index: str, shard: str, golden: Any, tmp_path):
    folder = shutil.copytree(golden("transformers") / model, tmp_path / model)
    written = (folder / index).read_text()
    for name in ("../secret.h5", "/etc/secret.safetensors", "config.json"):
        (folder / index).write_text(written.replace(shard, name))
        assert f"names '{name}'" in read_refusal(folder)
    weight_map = json.loads(written)["weight_map"]
    other = next(holder for holder in weight_map.values() if holder != shard)
    (folder / index).write_text(json.dumps({"weight_map": dict.fromkeys(weight_map, other)}))
    assert re.search(f"{other} in .* lacks .*{index}", read_refusal(folder))
    (folder / index).write_text(written)
    (folder / shard).unlink()
    assert re.search(f"{shard} is missing.*{index}", read_refusal(folder))


def test_copies_of_one_tensor_must_be_equal(golden: Any, tmp_path: pathlib.Path):
    folder = shutil.copytree(golden("transformers") / "masked_lm", tmp_path / "model")
    name = "mlm___cls/tf_bert_for_masked_lm/bert/embeddings/word_embeddings/weight:0"
    with h5py.File(folder / "tf_model.h5", "r+") as file:
        file[name][3, 2] += 1
    assert "word_embeddings/weight:0, two copies" in read_refusal(folder)
