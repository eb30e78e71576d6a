"""Files of old TensorFlow libraries (golden/make_tensorflow_models.py) give the outputs those libraries computed."""

import functools
import json
import pathlib
import re
import shutil
from typing import Any

import numpy as np
import pytest

import official_bert
from official_bert.checkpoints import parity
from official_bert.checkpoints.checkpoint import ENCODER, MASKED_LM, NEXT_SENTENCE, POOLER, PRETRAINING, LoadedModel
from official_bert.checkpoints.loading import open_model
from official_bert.errors import UserError
from official_bert.export.source import read_source
from tests.checkpoints.checkpoint_samples import HEADS, read_refusal, unpacked


@pytest.fixture
def golden(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns a function that returns the folder of a library's models."""
    return functools.partial(unpacked, folder=tmp_path_factory.getbasetemp() / "tensorflow_models")


def assert_computes_the_same(checkpoint: LoadedModel, folder: pathlib.Path) -> None:
    stored = dict(np.load(folder / "expected.npz"))
    features = {name: stored.pop(name) for name in ("input_ids", "input_mask", "segment_ids")}
    outputs = parity.compute_outputs(checkpoint, features)
    for name, value in stored.items():
        np.testing.assert_allclose(outputs[name], value, atol=1e-5)


@pytest.mark.parametrize(("model", "parts"), [
    ("model", {ENCODER, POOLER}),
    ("pretraining", PRETRAINING),
    ("masked_lm", {ENCODER, MASKED_LM}),
    ("next_sentence", {ENCODER, POOLER, NEXT_SENTENCE}),
    ("classifier", {ENCODER, POOLER, HEADS["sequence"]}),
    ("several", {ENCODER, POOLER, HEADS["sequence"]}),
    ("regressor", {ENCODER, POOLER, HEADS["sequence"]}),
    ("tagger", {ENCODER, HEADS["token"]}),
    ("choice", {ENCODER, POOLER, HEADS["choice"]}),
    ("answerer", {ENCODER, HEADS["span"]}),
    ("safetensors", PRETRAINING),
    ("safetensors_classifier", {ENCODER, POOLER, HEADS["sequence"]}),
    ("shards", PRETRAINING),
    ("safetensors_shards", PRETRAINING),
])  # fmt: skip
def test_tensorflow_classes_of_transformers_give_the_same_outputs(model: str, parts: set[str], golden: Any):
    folder = golden("transformers") / model
    checkpoint = open_model(str(folder))
    assert checkpoint.source.format == "hugging_face"
    assert set(checkpoint.parts) == set(parts)
    assert not checkpoint.notes
    assert_computes_the_same(checkpoint, folder)


@pytest.mark.parametrize(("library", "model", "parts"), [
    ("tensorflow_hub", "hub", {ENCODER, POOLER}),
    ("tensorflow_hub", "hub_mlm", {ENCODER, POOLER, MASKED_LM}),
    ("tensorflow_hub", "hub_1", {ENCODER, POOLER}),
    ("tensorflow_hub", "hub_2", {ENCODER, POOLER}),
    ("model_garden", "classifier", {ENCODER, POOLER, HEADS["sequence"]}),
    ("model_garden", "serving", {ENCODER, POOLER, HEADS["sequence"]}),
])  # fmt: skip
def test_saved_models_give_the_same_outputs(library: str, model: str, parts: set[str], golden: Any):
    folder = golden(library) / model
    checkpoint = open_model(str(folder))
    assert checkpoint.source.format == "saved_model"
    assert set(checkpoint.parts) == set(parts)
    assert checkpoint.notes[0].startswith("the SavedModel does not state its activation")
    if library == "tensorflow_hub":
        assert checkpoint.casing.do_lower_case == (model != "hub_mlm")
        tokens = official_bert.load(str(folder)).tokenizer.tokenize("the CAT")
        assert tokens == ["the", "cat" if model != "hub_mlm" else "[UNK]"]
    else:
        assert checkpoint.vocab is None
    assert_computes_the_same(checkpoint, folder)


@pytest.mark.parametrize(("library", "parts"), [
    ("keras_nlp_0.8", {ENCODER, POOLER}),  # written under Keras 2
    ("keras_nlp_0.14", {ENCODER, POOLER, HEADS["sequence"]}),
])  # fmt: skip
def test_presets_of_keras_nlp_give_the_same_outputs(library: str, parts: set[str], golden: Any):
    folder = golden(library) / "preset"
    checkpoint = open_model(str(folder))
    assert checkpoint.source.format == "keras_hub"
    assert set(checkpoint.parts) == set(parts)
    assert checkpoint.casing.do_lower_case
    assert checkpoint.vocab is not None
    assert_computes_the_same(checkpoint, folder)


def test_other_saved_models_are_rejected(golden: Any, tmp_path: pathlib.Path):
    import tensorflow as tf

    message = read_refusal(golden("tensorflow_hub") / "preprocess")
    assert "preprocess is a SavedModel without weights, such as a preprocessing model; pass the fol" in message
    other = tf.Module()
    other.weights = [tf.Variable(tf.zeros([9, 4]), name=f"{name}/kernel") for name in ("EncoderDNN", "Embeddings_en")]
    tf.saved_model.save(other, str(tmp_path / "other"))
    with pytest.raises(UserError, match="word_embeddings/embeddings is not among its 2 variables, such as"):
        open_model(str(tmp_path / "other"))
    folder = shutil.copytree(golden("tensorflow_hub") / "hub", tmp_path / "hub")
    data = folder / "variables" / "variables.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:1000])
    assert "variables.data-00000-of-00001 is damaged" in read_refusal(folder)
    data.unlink()
    assert re.search("is damaged or missing: .*variables.data-00000-of-00001", read_refusal(folder))


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


def test_other_model_types_are_named(golden: Any, tmp_path: pathlib.Path):
    for other in ("roberta", "distilbert", "albert"):
        folder = shutil.copytree(golden("transformers") / other, tmp_path / other)
        assert f"tf_model.h5 contains tensors of {other}; only BERT is supported" in read_refusal(folder)


def test_missing_and_damaged_shards_are_errors(golden: Any, tmp_path: pathlib.Path):
    for model, index, shard in (
        ("shards", "tf_model.h5.index.json", "tf_model-00002-of-00002.h5"),
        ("safetensors_shards", "model.safetensors.index.json", "model-00002-of-00002.safetensors"),
    ):
        folder = shutil.copytree(golden("transformers") / model, tmp_path / model)
        whole = (folder / shard).read_bytes()
        (folder / shard).write_bytes(whole[: len(whole) // 2])
        assert f"{shard} is damaged" in read_refusal(folder)
        (folder / shard).unlink()
        message = read_refusal(folder)
        assert re.search(f"{shard} is missing, although .*{index} lists it; copy all files of the model", message)
        written = (folder / index).read_text()
        for name in ("../secret.h5", "/etc/secret.safetensors", "config.json"):
            (folder / index).write_text(written.replace(shard, name))
            message = read_refusal(folder)
            assert re.search(f"names '{name}'; expected the name of a .* file in its own folder", message)
        contents = json.loads(written)
        first = next(name for name, holder in contents["weight_map"].items() if holder != shard)
        other = contents["weight_map"][first]
        contents["weight_map"] = dict.fromkeys(contents["weight_map"], other)
        (folder / index).write_text(json.dumps(contents))
        assert re.search(f"{other} in .* lacks .*, although .*{index} lists it there", read_refusal(folder))
        (folder / index).write_text("{}")
        assert "has no weight_map" in read_refusal(folder)


def test_copies_of_one_tensor_must_be_equal(golden: Any, tmp_path: pathlib.Path):
    import h5py

    folder = shutil.copytree(golden("transformers") / "masked_lm", tmp_path / "model")
    name = "mlm___cls/tf_bert_for_masked_lm/bert/embeddings/word_embeddings/weight:0"
    with h5py.File(folder / "tf_model.h5", "r+") as file:
        file[name][3, 2] += 1
    assert "word_embeddings/weight:0, two copies of one tensor, with different values" in read_refusal(folder)
