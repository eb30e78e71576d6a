"""The folder of a fine-tuned model reads back exactly as written, or reading it raises an error."""

import functools
import json
import os
import shutil
from unittest import mock

import h5py
import keras
import numpy as np
import pytest

import official_bert
from official_bert.checkpoints import checksums, parity
from official_bert.checkpoints.formats import finetuned, hugging_face, keras_hub
from official_bert.checkpoints.loading import open_model
from official_bert.modeling.encoder import build_encoder
from official_bert.utils import files
from tests.checkpoints.checkpoint_samples import SAMPLE_CONFIG, assert_unreadable, change_json, convert, sample
from tests.make import ROOT, VOCAB, assert_equal_weights, assert_rejected, build_task_model, build_text_model

SPEC = {"task": "table", "kind": "classification", "pair": False, "labels": ["x", "y"]}
SPEC |= {"num_choices": None, "max_seq_length": 16}
FILES = ["bert_config.json", "model.weights.h5", "task.json", "tokenizer_config.json", "vocab.txt"]


@functools.cache
def build_random_model(seed):
    return build_task_model("classification", build_encoder(SAMPLE_CONFIG, seed=seed), 2, seed=seed)


def save(folder, seed):
    finetuned.save(str(folder), build_random_model(seed), SPEC, SAMPLE_CONFIG, VOCAB)


def assert_holds(folder, seed):
    """Asserts that the folder holds the weights of the random model."""
    stored = open_model(str(folder)).weights
    for variable in build_random_model(seed).weights:
        np.testing.assert_array_equal(stored.pop(variable.path), variable)
    assert not stored


def test_a_saved_model_can_be_read_and_overwritten(tmp_path):
    for seed in (1, 2):
        save(tmp_path, seed)
        assert_holds(tmp_path, seed)
    assert_equal_weights(finetuned.build_model(open_model(str(tmp_path))), build_random_model(2))
    assert finetuned.read_task_spec(str(tmp_path)) == SPEC
    written = json.loads((tmp_path / checksums.CHECKSUM_FILE).read_text())["files"]
    assert sorted(written) == FILES
    assert all(isinstance(each, str) for each in written.values())


@pytest.mark.parametrize(("copies", "had_checksums"), [(0, True), (1, True), (1, False), (3, True)])
def test_a_killed_save_leaves_a_readable_folder(copies, had_checksums, tmp_path):
    save(tmp_path, 1)
    if not had_checksums:
        (tmp_path / checksums.CHECKSUM_FILE).unlink()
    killed = mock.Mock(wraps=files.copy, side_effect=[*[mock.DEFAULT] * copies, KeyboardInterrupt])
    with mock.patch.object(files, "copy", killed), pytest.raises(KeyboardInterrupt):
        save(tmp_path, 2)
    assert_holds(tmp_path, 2 if copies else 1)  # the weights are the first file
    assert not {*os.listdir(tmp_path)} - {*FILES, checksums.CHECKSUM_FILE}


def test_weights_that_are_not_finite_are_neither_written_nor_read(tmp_path):
    save(tmp_path, 1)
    (tmp_path / checksums.CHECKSUM_FILE).unlink()
    assert_holds(tmp_path, 1)
    model = keras.models.clone_model(build_random_model(1))
    model.get_layer("sequence_classifier").bias.assign([np.nan, 0.0])
    before = (tmp_path / "model.weights.h5").read_bytes()
    assert_rejected("sequence_classifier/bias", finetuned.save, str(tmp_path), model, SPEC, SAMPLE_CONFIG, VOCAB)
    assert (tmp_path / "model.weights.h5").read_bytes() == before
    model.save_weights(str(tmp_path / "model.weights.h5"))
    (tmp_path / checksums.CHECKSUM_FILE).unlink(missing_ok=True)
    assert_unreadable(tmp_path, tmp_path / "model.weights.h5", "sequence_classifier/bias", "finite")


def test_weights_in_linked_files_are_rejected(tmp_path):
    foreign, name = tmp_path / "secret", "layers/dense/vars/0"
    with h5py.File(foreign, "w") as other:
        other["numbers"] = np.ones((4, 4), np.float32)
    layout = h5py.VirtualLayout((4, 4), "float32")
    layout[...] = h5py.VirtualSource(str(foreign), "numbers", (4, 4))
    storage = {"shape": (4, 4), "dtype": "float32", "external": [(str(foreign), 0, h5py.h5f.UNLIMITED)]}
    changes = {
        "external link": lambda weights: weights.update({name: h5py.ExternalLink(str(foreign), "numbers")}),
        "soft link": lambda weights: weights.update({name: h5py.SoftLink("/somewhere/else")}),
        "external storage": lambda weights: weights.create_dataset(name, **storage),
        "virtual": lambda weights: weights.create_virtual_dataset(name, layout),
    }
    keras_hub.write(sample(SAMPLE_CONFIG), str(tmp_path / "preset"))
    save(tmp_path / "finetuned", 1)
    for source, names in (("preset", [*changes]), ("finetuned", ["external link"])):
        for each in names:
            folder = shutil.copytree(tmp_path / source, tmp_path / f"{source} with {each}")
            (folder / "checksums.json").unlink()
            with h5py.File(folder / "model.weights.h5", "r+") as weights:
                del weights[name]
                changes[each](weights)
            assert_unreadable(folder, folder / "model.weights.h5", f"/{name}")


@pytest.mark.parametrize(("key", "value", "names"), [
    ("labels", [], [[]]),
    ("labels", [1, 2], [[1, 2]]),
    ("labels", None, ["null", "classification"]),
    ("kind", ["classification"], [["classification"], "multi_label"]),
    ("pair", "no", ["'no'", "true", "false"]),
    ("kind", "multiple_choice", ["num_choices", "null", "multiple_choice"]),
    ("num_choices", 10**9, [10**9]),
    ("max_seq_length", True, [True]),
    ("max_seq_length", 0, [0]),
])  # fmt: skip
def test_invalid_values_in_task_json_are_rejected(key, value, names, tmp_path):
    (tmp_path / "task.json").write_text(json.dumps(SPEC | {key: value}))
    assert_rejected((tmp_path / "task.json", key, *names), finetuned.read_task_spec, str(tmp_path))


LABELS = {"labels": ["noun", "möglich"]}
MODELS = {
    "classifier": ("TextClassifier", LABELS, "SequenceClassification", "single_label_classification"),
    "several": (
        "TextClassifier",
        {**LABELS, "multi_label": True},
        "SequenceClassification",
        "multi_label_classification",
    ),
    "regressor": ("TextRegressor", {}, "SequenceClassification", "regression"),
    "tagger": ("TokenTagger", LABELS, "TokenClassification", None),
    "answerer": ("QuestionAnswerer", {"doc_stride": 5}, "QuestionAnswering", None),
    "choice": ("MultipleChoice", {}, "MultipleChoice", None),
}


def save_random_model(name, folder):
    """Saves a model with random weights and biases with save_checkpoint, and returns it."""
    class_name, settings, *_ = MODELS[name]
    model = build_text_model(class_name, SAMPLE_CONFIG, max_seq_length=16, **settings)
    rng = np.random.default_rng(0)
    for variable in model.variables:
        variable.assign(rng.normal(1.0 if "gamma" in variable.path else 0.0, 0.3, variable.shape))
    model.save_checkpoint(str(folder / "ours"))
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_fine_tuned_models_are_converted_to_hugging_face_and_back(name, tmp_path):
    model = save_random_model(name, tmp_path)
    lines = convert(tmp_path / "ours", tmp_path / "theirs", to_format="hugging_face")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert (config["architectures"][0].removeprefix("BertFor"), config.get("problem_type")) == MODELS[name][2:]
    assert any("cannot store the settings of the task" in line and "max_seq_length" in line for line in lines)
    checkpoint = open_model(str(tmp_path / "ours"))
    features = parity.make_fixed_input(checkpoint.config)
    theirs = hugging_face.transformers_outputs(checkpoint, str(tmp_path / "theirs"), features)
    np.testing.assert_allclose(parity.compute_outputs(checkpoint)["logits"], theirs["logits"], atol=1e-5)
    lines = convert(tmp_path / "theirs", tmp_path / "back")
    assert any("does not state the settings of its task; assumed: pair" in line for line in lines)
    again = type(model).from_checkpoint(str(tmp_path / "back"), max_seq_length=model.max_seq_length)
    assert_equal_weights(model, again)
    assert again.labels == model.labels


def test_a_classifier_keeps_its_weights_in_other_formats_and_its_task_if_tokens_are_added(tmp_path):
    model = save_random_model("classifier", tmp_path)
    (tmp_path / "new.txt").write_text("dogs\n")
    convert(tmp_path / "ours", tmp_path / "grown", new_tokens_file=str(tmp_path / "new.txt"))
    grown = official_bert.TextClassifier.from_checkpoint(str(tmp_path / "grown"))
    assert finetuned.read_task_spec(str(tmp_path / "grown")) == model._task_spec()
    assert grown.bert_config.vocab_size == SAMPLE_CONFIG.vocab_size + 1
    assert official_bert.load(str(tmp_path / "grown")).config == grown.bert_config
    weights, grown_weights = (open_model(str(tmp_path / name)).weights for name in ("ours", "grown"))
    rows = {"word_embeddings/embeddings": SAMPLE_CONFIG.vocab_size}
    assert all(np.array_equal(grown_weights[name][: rows.get(name)], value) for name, value in weights.items())
    for format_name, labels in (("keras_hub", None), ("hugging_face", model.labels)):
        convert(tmp_path / "ours", tmp_path / format_name, to_format=format_name)
        there = open_model(str(tmp_path / format_name))
        assert (there.labels, there.weights.keys()) == (labels, weights.keys())


def test_the_kind_of_a_classifier_is_noted_if_it_is_lost_or_assumed(tmp_path):
    save_random_model("several", tmp_path)
    lines = convert(tmp_path / "ours", tmp_path / "google", to_format="tf1")
    assert "note: the Google TF1 format cannot store that the classifier is for multi label" in lines
    lines = convert(tmp_path / "google", tmp_path / "back")
    assert any('assumed: kind "classification", pair false, ' in line for line in lines)


def test_fine_tuned_models_that_a_format_cannot_store_are_rejected(tmp_path):
    save_random_model("tagger", tmp_path)
    folder, target = tmp_path / "ours", tmp_path / "target"
    other = str(ROOT / "configs/quickstart.json")
    for options, names in (
        ({"to_format": "keras_hub"}, "pooler"),
        ({"optimizer": True}, (folder, "--optimizer")),
        ({"bert_config_file": other}, (f"--bert_config_file={other}", folder / "bert_config.json")),
    ):
        assert_rejected(names, convert, folder, target, **options)
    (folder / checksums.CHECKSUM_FILE).unlink()
    change_json(folder / "task.json", head="bilstm", lstm_units=4)
    assert_rejected("--head=bilstm", convert, folder, target, to_format="hugging_face")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours"]
