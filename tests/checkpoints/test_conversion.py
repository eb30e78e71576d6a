"""The convert command: what it reads, verifies and writes."""

import dataclasses
import filecmp
import pathlib
import resource
from typing import Any

import numpy as np
import pytest

import official_bert_cli
from official_bert.checkpoints import conversion, loading
from official_bert.checkpoints.checkpoint import ENCODER, MASKED_LM, POOLER, LoadOverrides
from official_bert.checkpoints.formats import hugging_face, keras_hub, tf1
from official_bert.checkpoints.formats.all_formats import FORMATS
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.options import WRITABLE
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from tests.checkpoints.checkpoint_samples import (
    HEADS,
    add_optimizer_state,
    conversion_options,
    sample,
    write_model_garden,
)
from tests.make import run_python


def test_the_flag_lists_the_formats_that_can_be_written():
    assert set(WRITABLE) == {name for name, each in FORMATS.items() if each.write}


@pytest.mark.parametrize("name", WRITABLE)
@pytest.mark.parametrize("odd", ["", "cat"])
def test_duplicate_and_blank_lines_of_a_vocabulary_are_preserved(name, odd, tiny_config, tmp_path):
    checkpoint = sample(tiny_config)
    vocab = "\n".join([*(checkpoint.vocab or "").split("\n")[:-3], odd, "sat", ""])
    tf1.write(dataclasses.replace(checkpoint, vocab=vocab), str(tmp_path / "google"))
    conversion.convert(conversion_options(tmp_path / "google", tmp_path / "out", to_format=name))
    assert open_model(str(tmp_path / "out")).vocab == vocab


def forget(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """Makes the TF1 checkpoint writer write different values for these fields."""
    true_write = tf1.write

    def forgetful_write(checkpoint, folder):
        true_write(dataclasses.replace(checkpoint, **fields), folder)
        return checkpoint

    monkeypatch.setitem(FORMATS, "tf1", dataclasses.replace(FORMATS["tf1"], write=forgetful_write))


def test_lost_names_of_classes_are_reported(tiny_config: BertConfig, tmp_path, monkeypatch):
    checkpoint = sample(tiny_config, frozenset({ENCODER, POOLER, HEADS["sequence"]}), classes=2)
    tf1.write(dataclasses.replace(checkpoint, labels=("yes", "no")), str(tmp_path / "google"))
    lines = conversion.convert(conversion_options(tmp_path / "google", tmp_path / "preset", to_format="keras_hub"))
    assert (
        "note: omitted, because a preset cannot store them: the names of the classes, in the order of the logits "
        "yes, no"
    ) in lines
    forget(monkeypatch, labels=None)
    with pytest.raises(UserError, match="cannot hold the model's labels: written .'yes', 'no'., read back None"):
        conversion.convert(conversion_options(tmp_path / "google", tmp_path / "again", to_format="tf1"))


def test_a_lost_step_is_detected(tiny_config: BertConfig, tmp_path, monkeypatch):
    tf1.write(add_optimizer_state(sample(tiny_config), step=7), str(tmp_path / "google"))
    forget(monkeypatch, step=0)
    with pytest.raises(UserError, match="cannot hold the model's step: written 7, read back 0"):
        conversion.convert(conversion_options(tmp_path / "google", tmp_path / "again", to_format="tf1", optimizer=True))


def count_tensors(folder: pathlib.Path, **given) -> tuple[int, dict[str, int]]:
    """Returns the number of loaded tensors, and of ignored tensors by kind (without the text in parentheses)."""
    inventory = open_model(str(folder), LoadOverrides(**given)).inventory
    kinds = {kind.split(" (")[0]: len(names) for kind, names in inventory.left_behind.items()}
    return len(inventory.loaded), kinds


def test_every_tensor_of_a_file_is_loaded_or_reported(tiny_config: BertConfig, tmp_path: pathlib.Path):
    checkpoint = add_optimizer_state(sample(tiny_config))  # 46 weights
    tf1.write(checkpoint, str(tmp_path / "tf1"))
    assert count_tensors(tmp_path / "tf1") == (46, {"of the optimizer's moments and step": 93})
    assert count_tensors(tmp_path / "tf1", optimizer=True) == (139, {})
    FORMATS["official_bert"].write(checkpoint, str(tmp_path / "ours"))
    others = {"of the place in the data": 3, "of TensorFlow's own": 2}
    assert count_tensors(tmp_path / "ours") == (46, {"of the optimizer's moments and step": 93, **others})
    assert count_tensors(tmp_path / "ours", optimizer=True) == (139, others)
    hugging_face.write(checkpoint, str(tmp_path / "hf"))
    assert count_tensors(tmp_path / "hf") == (46, {})
    keras_hub.write(checkpoint, str(tmp_path / "preset"))
    assert count_tensors(tmp_path / "preset") == (44, {"of the optimizer's state": 2})
    write_model_garden("trained", tmp_path / "garden")
    pooler = {"of the encoder's pooler, in whose place the head has its own": 2}
    moments = {"of the optimizer's moments and step": 70, "of TensorFlow's own": 2}
    assert count_tensors(tmp_path / "garden") == (30, {**moments, **pooler})


def test_tensors_are_listed_on_request(tiny_config: BertConfig, tmp_path: pathlib.Path):
    tf1.write(add_optimizer_state(sample(tiny_config)), str(tmp_path / "google"))
    lines = conversion.convert(conversion_options(tmp_path / "google", tmp_path / "short"))
    assert lines[1] == (
        "tensors: 46 loaded, none missing, none unexpected; left behind: 93 of the optimizer's moments and step "
        "(--optimizer takes them)"
    )
    assert not [line for line in lines if line.startswith(("loaded:", "left behind:"))]
    lines = conversion.convert(conversion_options(tmp_path / "google", tmp_path / "long", list_tensors=True))
    assert "loaded: bert/pooler/dense/kernel as pooler/kernel" in lines
    assert "left behind: global_step" in lines
    assert sum(line.startswith("loaded:") for line in lines) == 46
    assert sum(line.startswith("left behind:") for line in lines) == 93


def test_a_chain_of_conversions_preserves_the_files(tiny_config: BertConfig, tmp_path: pathlib.Path):
    first = sample(tiny_config, frozenset({ENCODER, POOLER, MASKED_LM}))
    FORMATS["tf1"].write(first, str(tmp_path / "0"))
    for number, name in enumerate(["hugging_face", "keras_hub", "official_bert", "tf1"]):
        checkpoint = open_model(str(tmp_path / str(number)))
        FORMATS[name].write(checkpoint, str(tmp_path / str(number + 1)))
    for name in ("bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001", "bert_config.json", "vocab.txt"):
        assert filecmp.cmp(tmp_path / "0" / name, tmp_path / "4" / name, shallow=False), name


def test_the_report_of_a_conversion(tiny_config: BertConfig, tmp_path, capsys):
    tf1.write(sample(tiny_config), str(tmp_path / "google"))
    (tmp_path / "new.txt").write_text("dogs\n\ncats\n")
    flags = [f"--from={tmp_path}/google", f"--to={tmp_path}/out"]
    flags += [f"--new_tokens_file={tmp_path}/new.txt", "--max_position_embeddings=48"]
    done = run_python("-m", "official_bert_cli", "convert", *flags)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"read Google TF1 checkpoint {tmp_path}/google: encoder, pooler, masked-LM head")
    assert "46 tensors, 2,368 parameters" in lines[0]
    assert lines[1:5] == [
        "tensors: 46 loaded, none missing, none unexpected; left behind: none",
        "changed: 2 tokens in new rows, each initialized with the mean of the pieces that it was split into before",
        "changed: position embeddings tiled, from 32 to 48",
        "round trip: 46 tensors read back, largest difference 0",
    ]
    assert lines[5].startswith(f"written official_bert checkpoint {tmp_path}/out")
    assert "vocabulary of 80, uncased; up to 48 positions" in lines[5]
    model, config, _ = loading.load_pretraining_model(str(tmp_path / "out"))
    assert config.vocab_size == 80
    assert model.count_params() > 0
    with pytest.raises(SystemExit, match="1"):
        official_bert_cli.load("convert").run(flags)
    expected = f"error: {tmp_path}/out already exists; pass the name of a new or empty folder\n"
    assert capsys.readouterr().err.endswith(expected)


def test_a_failed_conversion_leaves_no_files(tiny_config: BertConfig, tmp_path, monkeypatch):
    tf1.write(sample(tiny_config), str(tmp_path / "google"))
    true_write = tf1.write

    def wrong_write(checkpoint, folder):
        weights = {name: value * np.float32(1.0001) for name, value in checkpoint.weights.items()}
        true_write(dataclasses.replace(checkpoint, weights=weights), folder)
        return checkpoint

    monkeypatch.setitem(FORMATS, "tf1", dataclasses.replace(FORMATS["tf1"], write=wrong_write))
    with pytest.raises(UserError, match="differs from the original by"):
        conversion.convert(conversion_options(tmp_path / "google", tmp_path / "out", to_format="tf1"))
    assert [path.name for path in tmp_path.iterdir()] == ["google"]


@pytest.mark.parametrize("name", WRITABLE)
def test_a_full_disk_is_reported_by_conversions_to_every_format(
    name: str, tiny_config: BertConfig, tmp_path: pathlib.Path
):
    tf1.write(sample(tiny_config, frozenset({ENCODER, POOLER})), str(tmp_path / "google"))
    options = conversion_options(tmp_path / "google", tmp_path / "out", to_format=name)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # smaller than the weights
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000, before[1]))
    try:
        with pytest.raises(UserError, match="cannot (write|save) .*File too large"):
            conversion.convert(options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["google"]
