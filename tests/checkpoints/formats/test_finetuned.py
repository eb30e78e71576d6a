"""The folder of a fine-tuned model reads back exactly as written, or reading it raises an error."""

import functools
import json
import os
import pathlib
import shutil
from typing import Any

import h5py
import keras
import numpy as np
import pytest

from official_bert.checkpoints import checksums
from official_bert.checkpoints.formats import finetuned, keras_hub
from official_bert.checkpoints.loading import open_model
from official_bert.modeling.encoder import build_encoder
from official_bert.utils import files
from tests.checkpoints.checkpoint_samples import SAMPLE_CONFIG, assert_unreadable, sample
from tests.make import VOCAB, assert_rejected, build_task_model

SPEC = {"task": "table", "kind": "classification", "pair": False, "labels": ["x", "y"]}
SPEC |= {"num_choices": None, "max_seq_length": 16}
FILES = ["bert_config.json", "model.weights.h5", "task.json", "tokenizer_config.json", "vocab.txt"]


@functools.cache
def build_random_model(seed: int) -> keras.Model:
    return build_task_model("classification", build_encoder(SAMPLE_CONFIG, seed=seed), 2, seed=seed)


def save(folder: pathlib.Path, seed: int) -> None:
    finetuned.save(str(folder), build_random_model(seed), SPEC, SAMPLE_CONFIG, VOCAB)


def assert_holds(folder: pathlib.Path, seed: int) -> None:
    """Asserts that the folder holds the weights of the random model."""
    stored = open_model(str(folder)).weights
    for variable in build_random_model(seed).weights:
        np.testing.assert_array_equal(stored.pop(variable.path), variable)
    assert not stored


def test_a_saved_model_can_be_read_and_overwritten(tmp_path: pathlib.Path):
    for seed in (1, 2):
        save(tmp_path, seed)
        assert_holds(tmp_path, seed)
    rebuilt = finetuned.build_model(open_model(str(tmp_path)))
    for mine, other in zip(rebuilt.get_weights(), build_random_model(2).get_weights(), strict=True):
        np.testing.assert_array_equal(mine, other)
    assert finetuned.read_task_spec(str(tmp_path)) == SPEC
    written = json.loads((tmp_path / checksums.CHECKSUM_FILE).read_text())
    assert sorted(written["files"]) == FILES
    assert all(isinstance(each, str) for each in written["files"].values())


@pytest.mark.parametrize(("copies", "had_checksums"), [(0, True), (1, True), (1, False), (3, True)])
def test_a_killed_save_leaves_a_readable_folder(copies, had_checksums, tmp_path, monkeypatch):
    save(tmp_path, 1)
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
        save(tmp_path, 2)
    monkeypatch.setattr(files, "copy", copy)
    assert_holds(tmp_path, 2 if copies else 1)  # the weights are the first file
    assert not {*os.listdir(tmp_path)} - {*FILES, checksums.CHECKSUM_FILE}


def test_weights_that_are_not_finite_are_neither_written_nor_read(tmp_path: pathlib.Path):
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


def test_weights_in_linked_files_are_rejected(tmp_path: pathlib.Path):
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
    ("labels", 5, [5]),
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
def test_invalid_values_in_task_json_are_rejected(key: str, value: Any, names: list, tmp_path: pathlib.Path):
    (tmp_path / "task.json").write_text(json.dumps(SPEC | {key: value}))
    assert_rejected((tmp_path / "task.json", key, *names), finetuned.read_task_spec, str(tmp_path))
