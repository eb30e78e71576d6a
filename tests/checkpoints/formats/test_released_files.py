"""Released checkpoints whose names, variables or files differ from what the libraries write today."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from official_bert.checkpoints import bundle, loading
from official_bert.checkpoints.checkpoint import PRETRAINING
from official_bert.checkpoints.formats import hugging_face, tf1
from official_bert.checkpoints.loading import open_model
from official_bert.finetuning.initial_model import read_initial_model
from official_bert.modeling.config import BertConfig
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.pretraining.initial_checkpoint import assign_initial_weights
from tests.checkpoints import checkpoint_samples as samples


def test_a_configuration_without_model_type_is_read(exact_config: BertConfig, tmp_path: pathlib.Path):
    checkpoint = samples.sample(exact_config)
    samples.write_hugging_face(checkpoint, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["model_type"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    samples.assert_equal(checkpoint, open_model(str(tmp_path)))
    samples.change_json(tmp_path / "config.json", architectures=["RobertaModel"])
    samples.assert_unreadable(tmp_path, "'RobertaModel'")


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "module._orig_mod.model."])
def test_prefixes_of_wrappers_are_removed(prefix: str, exact_config: BertConfig, tmp_path: pathlib.Path):
    checkpoint = samples.sample(exact_config)
    samples.write_hugging_face(checkpoint, tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({prefix + name: value for name, value in load_file(path).items()}, path)
    samples.assert_equal(checkpoint, open_model(str(tmp_path)))


KERNEL = "bert/encoder/layer_0/output/dense/kernel"
OTHER_OPTIMIZERS = (
    f"OptimizeLoss/{KERNEL}/LAMB", "bert/embeddings/word_embeddings/AdamWeightDecayOptimizer", f"{KERNEL}/Adam",
    f"{KERNEL}/Adam_1", f"{KERNEL}/accum", f"{KERNEL}/lamb_m", "beta1_power", "current_loss_scale", "good_steps",
    "loss_scale", "output_weights/Adam",
)  # fmt: skip
OTHER_HEADS = ("bert/lstm/kernel", "crf_loss/transitions", "output_bias", "output_weights", "project/logits/W")


def write_with_others(folder: pathlib.Path, config: BertConfig, *others: str) -> None:
    tf1.write(samples.sample(config), str(folder))
    source = bundle.open_bundle(str(folder / "bert_model.ckpt"))
    tensors = {name: source.read(name) for name in source.shapes}
    tensors |= {name: np.zeros((5, 3), np.float32) for name in others}
    bundle.write_bundle(str(folder / "bert_model.ckpt"), tensors)


def test_variables_of_other_programs_are_ignored_and_listed(tiny_config: BertConfig, tmp_path: pathlib.Path, capsys):
    path = tmp_path / "theirs"
    write_with_others(path, tiny_config, *OTHER_OPTIMIZERS, *OTHER_HEADS)
    checkpoint = open_model(str(path))
    samples.assert_equal(checkpoint, dataclasses.replace(samples.sample(tiny_config), notes=checkpoint.notes))
    assert set(checkpoint.parts) == PRETRAINING
    line = f"ignored 5 tensors of heads or programs that BERT does not have: {', '.join(OTHER_HEADS)}"
    assert line in checkpoint.notes
    assert any("ignored 11 tensors of another optimizer: " in note for note in checkpoint.notes)
    loading.load(str(path))
    assert f"note: {line}" in capsys.readouterr().out
    assert f"note: {line}" in samples.convert(path, tmp_path / "ours")
    assert line in read_initial_model(str(path)).notes
    report = assign_initial_weights(build_pretraining_model(tiny_config), checkpoint)
    assert "46 tensors loaded, 0 missing, 0 unused; 16 other tensors" in report[-1]


def test_weights_outside_the_configuration_are_still_an_error(tiny_config: BertConfig, tmp_path: pathlib.Path):
    names = ["cls/predictions/more", "bert/embeddings/word_embeddings_2", "bert/encoder/layer_7/output/dense/kernel"]
    write_with_others(tmp_path, tiny_config, *names)
    samples.assert_unreadable(tmp_path, "3 unexpected", *names)


def test_a_google_checkpoint_with_hugging_face_files_is_read(exact_config: BertConfig, tmp_path: pathlib.Path):
    checkpoint, folder = samples.sample(dataclasses.replace(exact_config, layer_norm_eps=1e-12)), tmp_path / "google"
    hugging_face.write(checkpoint, str(tmp_path / "theirs"))
    tf1.write(checkpoint, str(folder))
    for name in ("bert_config.json", "checksums.json", "tokenizer_config.json"):
        (folder / name).unlink()
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / "theirs" / name).rename(folder / name)
    found = open_model(str(folder))
    assert found.source.format == "tf1"
    samples.assert_equal(checkpoint, dataclasses.replace(found, notes=checkpoint.notes))
    assert "config.json is read as Hugging Face's, with hidden_act gelu_exact" in "".join(found.notes)
