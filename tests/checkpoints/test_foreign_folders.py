"""The folder of a fine-tuned model: what an earlier version wrote is read, and damage is an error."""

import contextlib
import gzip
import json
import pathlib
import shutil
from typing import Any

import h5py
import numpy as np
import pytest

from official_bert.checkpoints import finetuned
from official_bert.checkpoints.formats import keras_hub
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.task_models import build_classifier
from tests.checkpoints.checkpoint_samples import sample
from tests.conftest import ROOT, WORDS

CONFIG = BertConfig(len(WORDS), 4, 1, 2, 8, max_position_embeddings=16)
SPEC = {
    "task": "tsv",
    "kind": "classification",
    "pair": False,
    "labels": ["bad", "good"],
    "num_choices": None,
    "max_seq_length": 16,
}
QUERY = "layers/dense/vars/0"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder as `finetuned.save` writes it."""
    folder = tmp_path_factory.mktemp("finetuned")
    save(folder)
    return folder


def save(folder: pathlib.Path) -> None:
    model = build_classifier(build_encoder(CONFIG, seed=1), 2, seed=2)
    finetuned.save(str(folder), model, SPEC, CONFIG, "\n".join(WORDS) + "\n", True)


@pytest.fixture
def folder(written: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    return shutil.copytree(written, tmp_path / "model")


def test_a_folder_of_an_earlier_version_gives_the_same_answers(tmp_path: pathlib.Path):
    """golden/older_finetuned was written by official_bert 0.1.0 before its parts were packages; it has no checksums."""
    golden = ROOT / "tests" / "golden" / "older_finetuned"
    model = shutil.copytree(golden, tmp_path / "model")
    (model / "model.weights.h5").write_bytes(gzip.decompress((golden / "model.weights.h5.gz").read_bytes()))
    loaded = finetuned.load(str(model))
    assert loaded.task_spec["labels"] == ["bad", "good"]
    ids = np.array([[2, 5, 6, 3, 0], [2, 7, 8, 6, 3]], np.int32)
    logits = loaded.model({"input_ids": ids, "input_mask": np.sign(ids), "segment_ids": ids * 0})
    np.testing.assert_allclose(logits, json.loads((golden / "logits.json").read_text()), rtol=1e-5, atol=1e-8)


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
def test_weights_that_are_in_other_files_are_never_read(replace, folder: pathlib.Path, tmp_path: pathlib.Path):
    foreign = tmp_path / "secret"
    with h5py.File(foreign, "w") as other:
        other["numbers"] = np.ones((4, 4), np.float32)
    preset = tmp_path / "preset"
    keras_hub.write(sample(CONFIG), str(preset))
    for model, name in ((folder, QUERY), (preset, "layers/dense/vars/0")):
        (model / "checksums.json").unlink()
        with h5py.File(model / "model.weights.h5", "r+") as weights:
            del weights[name]
            replace(weights, name, foreign)
    with pytest.raises(UserError, match=r"model.weights.h5 holds .*; only a file with all of its weights in itself"):
        finetuned.load(str(folder))
    with pytest.raises(UserError, match=r"model.weights.h5 holds .*; only a file with all of its weights in itself"):
        keras_hub.FORMAT.read(str(preset), keras_hub.LoadOverrides())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": 5}, "has labels 5; expected a list of the classes' names, or null"),
        ({"labels": []}, r"has labels \[\]; expected a list"),
        ({"labels": [1, 2]}, r"has labels \[1, 2\]; expected a list"),
        ({"labels": None}, "has no labels, which a model of kind classification needs"),
        ({"kind": ["classification"]}, "has kind .*; expected one of classification, multi_label"),
        ({"pair": "no"}, "has pair 'no'; expected true or false"),
        ({"kind": "multiple_choice"}, "has no num_choices, which a model of kind multiple_choice needs"),
        ({"num_choices": 10**9}, "has num_choices 1000000000; expected a number of choices, or null"),
        ({"max_seq_length": True}, "has max_seq_length True; expected a number of tokens"),
        ({"max_seq_length": 0}, "has max_seq_length 0; expected a number of tokens"),
    ],
)
def test_a_task_json_with_other_values_is_refused(change, message: str, tmp_path: pathlib.Path):
    (tmp_path / "task.json").write_text(json.dumps(SPEC | change))
    with pytest.raises(UserError, match=f"task.json {message}"):
        finetuned.load_task_spec(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("config.json", [], "config.json holds list; expected a JSON object"),
        ("config.json", {"class_name": ["BertBackbone"]}, "config.json describes a .*; expected a BertBackbone"),
        ("config.json", {"config": None}, "config.json has no configuration of the backbone"),
        ("config.json", {"config": {"num_layers": 1}}, "config.json lacks dropout, hidden_dim, "),
        ("config.json", {"num_layers": "2"}, "config.json: num_hidden_layers is '2'; expected a whole number"),
        ("config.json", {"dropout": [0.1]}, "config.json: hidden_dropout_prob is .*; expected a number"),
        ("tokenizer.json", {"config": "lowercase"}, "tokenizer.json is damaged: it does not say whether to lower-case"),
        ("task.json", [], "task.json holds list; expected a JSON object"),
        ("task.json", {"class_name": {}}, None),  # of a task that is not known: the backbone is read
    ],
)
def test_an_odd_preset_of_keras_hub_is_refused(name: str, value: Any, message: str | None, tmp_path: pathlib.Path):
    keras_hub.write(sample(CONFIG), str(tmp_path))
    path = tmp_path / name
    content = json.loads(path.read_text())
    if isinstance(value, dict):
        inner = content["config"] if set(value) & set(content["config"]) else content
        inner |= value
        value = content
    path.write_text(json.dumps(value))
    (tmp_path / "checksums.json").unlink()
    with pytest.raises(UserError, match=message) if message else contextlib.nullcontext():
        keras_hub.read(str(tmp_path), keras_hub.LoadOverrides())


def test_a_preset_of_keras_hub_is_no_fine_tuned_folder_of_ours(tmp_path: pathlib.Path):
    keras_hub.write(sample(CONFIG), str(tmp_path))
    assert (tmp_path / "task.json").exists()
    assert not finetuned.is_finetuned(str(tmp_path))
