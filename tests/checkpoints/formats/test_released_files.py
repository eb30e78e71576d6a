"""Released checkpoints whose names, variables or files differ from what the libraries write today."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest

from official_bert.checkpoints import bundle, conversion, loading
from official_bert.checkpoints.checkpoint import PRETRAINING, SEQUENCE_CLASSIFIER
from official_bert.checkpoints.formats import hugging_face, tf1
from official_bert.checkpoints.loading import open_model
from official_bert.errors import UserError
from official_bert.finetuning.initial_model import read_initial_model
from official_bert.modeling.config import BertConfig
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.pretraining.initial_checkpoint import assign_initial_weights
from tests.checkpoints.checkpoint_samples import assert_equal, conversion_options, sample


def change_config(folder: pathlib.Path, removed: str, **values: object) -> None:
    path = folder / "config.json"
    contents = json.loads(path.read_text()) | values
    del contents[removed]
    path.write_text(json.dumps(contents))
    (folder / "checksums.json").unlink()


def test_a_configuration_without_model_type_is_read(exact_config: BertConfig, tmp_path: pathlib.Path):
    checkpoint = sample(exact_config)
    hugging_face.write(checkpoint, str(tmp_path))
    change_config(tmp_path, "model_type")
    assert_equal(checkpoint, open_model(str(tmp_path)))
    contents = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["RobertaModel"]}
    (tmp_path / "config.json").write_text(json.dumps(contents))
    with pytest.raises(UserError, match="has no model_type, and architectures .'RobertaModel'.; only classes of Bert"):
        open_model(str(tmp_path))


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "module._orig_mod.model."])
def test_prefixes_of_wrappers_are_removed(prefix: str, exact_config: BertConfig, tmp_path: pathlib.Path):
    from safetensors.numpy import load_file, save_file

    checkpoint = sample(exact_config)
    hugging_face.write(checkpoint, str(tmp_path))
    (tmp_path / "checksums.json").unlink()
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({prefix + name: value for name, value in tensors.items()}, tmp_path / "model.safetensors")
    assert_equal(checkpoint, open_model(str(tmp_path)))


KERNEL = "bert/encoder/layer_0/output/dense/kernel"
OTHER_OPTIMIZERS = (
    f"{KERNEL}/Adam", f"{KERNEL}/Adam_1", f"{KERNEL}/lamb_m", f"{KERNEL}/accum", f"OptimizeLoss/{KERNEL}/LAMB",
    "bert/embeddings/word_embeddings/AdamWeightDecayOptimizer", "output_weights/Adam", "beta1_power", "loss_scale",
    "current_loss_scale", "good_steps",
)  # fmt: skip
OTHER_HEADS = ("crf_loss/transitions", "project/logits/W", "bert/lstm/kernel", "output_weights", "output_bias")


def write_with_others(folder: pathlib.Path, config: BertConfig, others: tuple[str, ...]) -> None:
    tf1.write(sample(config), str(folder))
    source = bundle.open_bundle(str(folder / "bert_model.ckpt"))
    tensors = {name: source.read(name) for name in source.shapes}
    bundle.write_bundle(
        str(folder / "bert_model.ckpt"), tensors | {name: np.zeros((5, 3), np.float32) for name in others}
    )


def test_variables_of_other_programs_are_ignored_and_listed(
    tiny_config: BertConfig, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    write_with_others(tmp_path / "theirs", tiny_config, OTHER_OPTIMIZERS[:6] + OTHER_HEADS)
    path = str(tmp_path / "theirs")
    checkpoint = open_model(path)
    assert_equal(checkpoint, dataclasses.replace(sample(tiny_config), notes=checkpoint.notes))
    assert set(checkpoint.parts) == PRETRAINING
    heads = "bert/lstm/kernel, crf_loss/transitions, output_bias, output_weights, project/logits/W"
    line = f"ignored 5 tensors of heads or programs that BERT does not have: {heads}"
    assert line in checkpoint.notes
    assert f"ignored 6 tensors of another optimizer: {', '.join(sorted(OTHER_OPTIMIZERS[:6]))}" in checkpoint.notes
    loading.load(path)
    assert f"note: {line}" in capsys.readouterr().out
    report = conversion.convert(conversion_options(tmp_path / "theirs", tmp_path / "ours"))
    assert f"note: {line}" in report
    assert line in read_initial_model(path).notes
    lines = assign_initial_weights(build_pretraining_model(tiny_config), checkpoint)
    assert "46 tensors loaded, 0 missing, 0 unused; 11 other tensors" in lines[-1]


@pytest.mark.parametrize("name", [*OTHER_OPTIMIZERS, *OTHER_HEADS])
def test_each_variable_of_another_program_is_ignored(name: str, tiny_config: BertConfig, tmp_path: pathlib.Path):
    write_with_others(tmp_path, tiny_config, (name,))
    checkpoint = open_model(str(tmp_path))
    assert_equal(checkpoint, dataclasses.replace(sample(tiny_config), notes=checkpoint.notes))


@pytest.mark.parametrize("name", [
    "bert/encoder/layer_7/output/dense/kernel", "bert/embeddings/word_embeddings_2", "cls/predictions/more/kernel",
])  # fmt: skip
def test_a_weight_outside_the_configuration_is_still_an_error(
    name: str, tiny_config: BertConfig, tmp_path: pathlib.Path
):
    write_with_others(tmp_path, tiny_config, (name,))
    with pytest.raises(UserError, match=f"1 unexpected: {name}"):
        open_model(str(tmp_path))


def test_a_classifier_of_the_original_is_kept(tiny_config: BertConfig, tmp_path: pathlib.Path):
    checkpoint = sample(tiny_config, PRETRAINING | {SEQUENCE_CLASSIFIER})
    tf1.write(checkpoint, str(tmp_path))
    assert_equal(checkpoint, open_model(str(tmp_path)))


def test_a_google_checkpoint_with_hugging_face_files_is_read(exact_config: BertConfig, tmp_path: pathlib.Path):
    checkpoint = sample(dataclasses.replace(exact_config, layer_norm_eps=1e-12))
    hugging_face.write(checkpoint, str(tmp_path / "theirs"))
    tf1.write(checkpoint, str(tmp_path / "google"))
    for name in ("bert_config.json", "checksums.json", "tokenizer_config.json"):
        (tmp_path / "google" / name).unlink()
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / "theirs" / name).rename(tmp_path / "google" / name)
    path = str(tmp_path / "google")
    found = open_model(path)
    assert found.source.format == "tf1"
    assert_equal(checkpoint, dataclasses.replace(found, notes=checkpoint.notes))
    assert "config.json is read as Hugging Face's, with hidden_act gelu_exact" in "".join(found.notes)
    assert found.config == checkpoint.config
