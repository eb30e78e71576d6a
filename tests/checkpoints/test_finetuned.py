"""The folder of a fine-tuned model reads back exactly as written, or reading it raises an error."""

import json
import os
import pathlib
import shutil

import h5py
import keras
import numpy as np
import pytest

from official_bert.checkpoints import checksums, finetuned
from official_bert.checkpoints.checkpoint import LoadOverrides
from official_bert.checkpoints.formats import keras_hub
from official_bert.checkpoints.loading import open_model
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.utils import files
from tests.checkpoints.checkpoint_samples import SAMPLE_CONFIG, sample
from tests.make import VOCAB, build_task_model, refusal

SPEC = {"task": "table", "kind": "classification", "pair": False, "labels": ["x", "y"]}
SPEC |= {"num_choices": None, "max_seq_length": 16}
QUERY = "layers/dense/vars/0"
FILES = ["bert_config.json", "model.weights.h5", "task.json", "tokenizer_config.json", "vocab.txt"]


def build_random_model(config: BertConfig, seed: int) -> keras.Model:
    return build_task_model("classification", build_encoder(config, seed=seed), 2, seed=seed)


def save(folder: pathlib.Path, config: BertConfig, seed: int) -> keras.Model:
    model = build_random_model(config, seed)
    finetuned.save(str(folder), model, SPEC, config, VOCAB)
    return model


def weights(model: keras.Model) -> np.ndarray:
    return np.concatenate([each.ravel() for each in model.get_weights()])


def stored_weights(folder: pathlib.Path) -> np.ndarray:
    return np.concatenate([each.ravel() for each in open_model(str(folder)).weights.values()])


def test_a_saved_model_can_be_read_and_overwritten(tiny_config: BertConfig, tmp_path: pathlib.Path):
    for seed in (1, 2):
        saved = save(tmp_path / "model", tiny_config, seed)
        np.testing.assert_array_equal(weights(saved), stored_weights(tmp_path / "model"))
        np.testing.assert_array_equal(
            weights(saved), weights(finetuned.build_model(open_model(str(tmp_path / "model"))))
        )
        assert finetuned.read_task(str(tmp_path / "model")) == SPEC
    written = json.loads((tmp_path / "model" / checksums.CHECKSUM_FILE).read_text())
    assert sorted(written["files"]) == FILES
    assert all(isinstance(each, str) for each in written["files"].values())


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_in_any_file_is_detected(name: str, tiny_config: BertConfig, tmp_path: pathlib.Path):
    save(tmp_path, tiny_config, 1)
    path = tmp_path / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    message = refusal(open_model, str(tmp_path))
    assert f"{name} does not match its checksum; restore the folder from a copy" in message
    path.unlink()
    with pytest.raises(UserError, match="is missing"):
        open_model(str(tmp_path))


def test_a_folder_without_checksums_is_read(tiny_config: BertConfig, tmp_path: pathlib.Path):
    saved = save(tmp_path, tiny_config, 1)
    (tmp_path / checksums.CHECKSUM_FILE).unlink()
    np.testing.assert_array_equal(weights(saved), stored_weights(tmp_path))


@pytest.mark.parametrize(("copies", "had_checksums"), [(0, True), (1, True), (1, False), (3, True)])
def test_a_killed_save_leaves_a_readable_folder(copies, had_checksums, tiny_config, tmp_path, monkeypatch):
    save(tmp_path, tiny_config, 1)
    if not had_checksums:
        (tmp_path / checksums.CHECKSUM_FILE).unlink()
    copy, done = files.copy, []

    def killed(source: str, target: str) -> None:
        if len(done) == copies:
            raise KeyboardInterrupt
        done.append(target)
        copy(source, target)

    monkeypatch.setattr(files, "copy", killed)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, tiny_config, 2)
    monkeypatch.setattr(files, "copy", copy)
    seed = 2 if copies else 1  # the weights are the first file
    np.testing.assert_array_equal(stored_weights(tmp_path), weights(build_random_model(tiny_config, seed)))
    assert not [name for name in os.listdir(tmp_path) if name not in (*FILES, checksums.CHECKSUM_FILE)]


def test_weights_that_are_not_finite_are_neither_written_nor_read(tiny_config: BertConfig, tmp_path: pathlib.Path):
    save(tmp_path, tiny_config, 1)
    model = build_random_model(tiny_config, 1)
    bias = model.get_layer("sequence_classifier").bias
    bias.assign(np.array([np.nan, 0.0], np.float32))
    before = (tmp_path / "model.weights.h5").read_bytes()
    message = refusal(finetuned.save, str(tmp_path), model, SPEC, tiny_config, VOCAB)
    assert "sequence_classifier/bias of the model has values that are not finite" in message
    assert (tmp_path / "model.weights.h5").read_bytes() == before
    model.save_weights(str(tmp_path / "model.weights.h5"))
    (tmp_path / checksums.CHECKSUM_FILE).unlink()
    assert "model.weights.h5 has values that are not finite" in refusal(open_model, str(tmp_path))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Writes a folder with `finetuned.save`."""
    folder = tmp_path_factory.mktemp("finetuned")
    save(folder, SAMPLE_CONFIG, 1)
    return folder


@pytest.fixture
def folder(written: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    return shutil.copytree(written, tmp_path / "model")


def external_link(weights: h5py.File, name: str, foreign: pathlib.Path) -> None:
    weights[name] = h5py.ExternalLink(str(foreign), "numbers")


def soft_link(weights: h5py.File, name: str, foreign: pathlib.Path) -> None:
    weights[name] = h5py.SoftLink("/somewhere/else")


def external_storage(weights: h5py.File, name: str, foreign: pathlib.Path) -> None:
    weights.create_dataset(name, (4, 4), "float32", external=[(str(foreign), 0, h5py.h5f.UNLIMITED)])


def virtual_dataset(weights: h5py.File, name: str, foreign: pathlib.Path) -> None:
    layout = h5py.VirtualLayout((4, 4), "float32")
    layout[...] = h5py.VirtualSource(str(foreign), "numbers", (4, 4))
    weights.create_virtual_dataset(name, layout)


@pytest.mark.parametrize("replace", [external_link, soft_link, external_storage, virtual_dataset])
def test_weights_in_linked_files_are_rejected(replace, folder: pathlib.Path, tmp_path: pathlib.Path):
    foreign = tmp_path / "secret"
    with h5py.File(foreign, "w") as other:
        other["numbers"] = np.ones((4, 4), np.float32)
    preset = tmp_path / "preset"
    keras_hub.write(sample(SAMPLE_CONFIG), str(preset))
    for model, name in ((folder, QUERY), (preset, "layers/dense/vars/0")):
        (model / "checksums.json").unlink()
        with h5py.File(model / "model.weights.h5", "r+") as weights:
            del weights[name]
            replace(weights, name, foreign)
    with pytest.raises(UserError, match=r"model.weights.h5 contains .*. Only files that contain all of their weights"):
        open_model(str(folder))
    with pytest.raises(UserError, match=r"model.weights.h5 contains .*. Only files that contain all of their weights"):
        open_model(str(preset), LoadOverrides())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": 5}, "labels is 5; expected a list of the classes' names, or null"),
        ({"labels": []}, r"labels is \[\]; expected a list"),
        ({"labels": [1, 2]}, r"labels is \[1, 2\]; expected a list"),
        ({"labels": None}, "labels is null, but a model of kind classification needs it"),
        ({"kind": ["classification"]}, "kind is .*; expected one of classification, multi_label"),
        ({"pair": "no"}, "pair is 'no'; expected true or false"),
        ({"kind": "multiple_choice"}, "num_choices is null, but a model of kind multiple_choice needs it"),
        ({"num_choices": 10**9}, "num_choices is 1000000000; expected a number of choices, or null"),
        ({"max_seq_length": True}, "max_seq_length is True; expected a number of tokens"),
        ({"max_seq_length": 0}, "max_seq_length is 0; expected a number of tokens"),
    ],
)
def test_invalid_values_in_task_json_are_rejected(change, message: str, tmp_path: pathlib.Path):
    (tmp_path / "task.json").write_text(json.dumps(SPEC | change))
    with pytest.raises(UserError, match=f"task.json: {message}"):
        finetuned.read_task(str(tmp_path))
