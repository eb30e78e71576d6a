"""A fine-tuned model's folder: what is written is what is read, or an error."""

import json
import os
import pathlib

import keras
import numpy as np
import pytest

from official_bert.checkpoints import checksums, finetuned
from official_bert.errors import UserError
from official_bert.modeling import task_models
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.utils import files
from tests.conftest import WORDS

SPEC = {
    "task": "table", "kind": "classification", "pair": False, "labels": ["x", "y"], "num_choices": None,
    "max_seq_length": 16,
}  # fmt: skip
FILES = ["bert_config.json", "model.weights.h5", "task.json", "tokenizer_config.json", "vocab.txt"]


def model_of(config: BertConfig, seed: int) -> keras.Model:
    return task_models.build("classification", build_encoder(config, seed=seed), 2, seed=seed)


def save(folder: pathlib.Path, config: BertConfig, seed: int) -> keras.Model:
    model = model_of(config, seed)
    finetuned.save(str(folder), model, SPEC, config, "\n".join(WORDS) + "\n", True)
    return model


def weights(model: keras.Model) -> np.ndarray:
    return np.concatenate([each.ravel() for each in model.get_weights()])


def test_a_saved_model_is_read_again_and_written_over(tiny_config: BertConfig, tmp_path: pathlib.Path):
    for seed in (1, 2):
        saved = save(tmp_path / "model", tiny_config, seed)
        loaded = finetuned.load(str(tmp_path / "model"))
        np.testing.assert_array_equal(weights(saved), weights(loaded.model))
        assert loaded.task_spec == SPEC
    written = json.loads((tmp_path / "model" / checksums.CHECKSUM_FILE).read_text())
    assert sorted(written["files"]) == FILES
    assert all(isinstance(each, str) for each in written["files"].values())


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_in_any_file_is_found(name: str, tiny_config: BertConfig, tmp_path: pathlib.Path):
    save(tmp_path, tiny_config, 1)
    path = tmp_path / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"{name} is not as it was written; restore the folder from a copy"):
        finetuned.load(str(tmp_path))
    path.unlink()
    with pytest.raises(UserError, match="is gone|has no task.json"):
        finetuned.load(str(tmp_path))


def test_a_folder_without_checksums_is_read(tiny_config: BertConfig, tmp_path: pathlib.Path):
    saved = save(tmp_path, tiny_config, 1)
    (tmp_path / checksums.CHECKSUM_FILE).unlink()
    np.testing.assert_array_equal(weights(saved), weights(finetuned.load(str(tmp_path)).model))


@pytest.mark.parametrize(("copies", "had_checksums"), [(0, True), (1, True), (1, False), (3, True)])
def test_a_save_that_is_killed_leaves_a_folder_that_is_read(
    copies: int, had_checksums: bool, tiny_config: BertConfig, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
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
    np.testing.assert_array_equal(weights(finetuned.load(str(tmp_path)).model), weights(model_of(tiny_config, seed)))
    assert not [name for name in os.listdir(tmp_path) if name not in (*FILES, checksums.CHECKSUM_FILE)]


def test_weights_that_are_no_numbers_are_neither_written_nor_read(tiny_config: BertConfig, tmp_path: pathlib.Path):
    save(tmp_path, tiny_config, 1)
    model = model_of(tiny_config, 1)
    bias = model.get_layer("sequence_classifier").bias
    bias.assign(np.array([np.nan, 0.0], np.float32))
    before = (tmp_path / "model.weights.h5").read_bytes()
    with pytest.raises(UserError, match="sequence_classifier/bias of the model has numbers that are not finite"):
        finetuned.save(str(tmp_path), model, SPEC, tiny_config, "\n".join(WORDS) + "\n", True)
    assert (tmp_path / "model.weights.h5").read_bytes() == before
    model.save_weights(str(tmp_path / "model.weights.h5"))
    (tmp_path / checksums.CHECKSUM_FILE).unlink()
    with pytest.raises(UserError, match="model.weights.h5 has numbers that are not finite"):
        finetuned.load(str(tmp_path))
