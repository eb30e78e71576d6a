"""Weights survive writing and reading in every format bit for bit."""

import dataclasses
import pathlib

import numpy as np
import pytest

from official_bert.checkpoints import conversion
from official_bert.checkpoints.checkpoint import ENCODER, MASKED_LM, NEXT_SENTENCE, POOLER, PRETRAINING, LoadOverrides
from official_bert.checkpoints.formats import hugging_face, tf1
from official_bert.checkpoints.formats.all_formats import FORMATS
from official_bert.checkpoints.loading import open_model
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from tests.checkpoints.checkpoint_samples import HEADS, add_optimizer_state, assert_equal, conversion_options, sample
from tests.tokenization.test_exact import CASINGS


@pytest.mark.parametrize(("format_name", "parts"), [
    ("official_bert", PRETRAINING),
    ("official_bert", {ENCODER}),
    ("official_bert", {ENCODER, POOLER, HEADS["sequence"]}),
    ("tf1", PRETRAINING),
    ("tf1", {ENCODER, POOLER, HEADS["sequence"]}),
    ("tf1", {ENCODER, POOLER, HEADS["span"]}),
    ("hugging_face", PRETRAINING),
    ("hugging_face", {ENCODER}),
    ("hugging_face", {ENCODER, POOLER}),
    ("hugging_face", {ENCODER, MASKED_LM}),
    ("hugging_face", {ENCODER, POOLER, NEXT_SENTENCE}),
    ("hugging_face", {ENCODER, POOLER, HEADS["sequence"]}),
    ("hugging_face", {ENCODER, HEADS["token"]}),
    ("hugging_face", {ENCODER, POOLER, HEADS["choice"]}),
    ("hugging_face", {ENCODER, HEADS["span"]}),
    ("keras_hub", {ENCODER, POOLER}),
    ("keras_hub", {ENCODER, POOLER, MASKED_LM}),
    ("keras_hub", {ENCODER, POOLER, HEADS["sequence"]}),
])  # fmt: skip
@pytest.mark.parametrize("casing", CASINGS)
def test_written_checkpoints_are_read_back_bit_for_bit(format_name, parts, casing, tiny_config, tmp_path):
    checkpoint = dataclasses.replace(sample(tiny_config, frozenset(parts)), casing=casing)
    checkpoint = dataclasses.replace(checkpoint, vocab=checkpoint.vocab.replace("\nsun\n", "\nsün\n"))
    assert set(checkpoint.parts) == set(parts)
    FORMATS[format_name].write(checkpoint, str(tmp_path))
    again = open_model(str(tmp_path))
    assert again.source.format == format_name
    assert_equal(checkpoint, again)


@pytest.mark.parametrize("format_name", ["tf1", "official_bert"])
def test_optimizer_state_and_step_are_read_on_request(
    format_name: str, tiny_config: BertConfig, tmp_path: pathlib.Path
):
    checkpoint = add_optimizer_state(sample(tiny_config))
    FORMATS[format_name].write(checkpoint, str(tmp_path))
    assert_equal(checkpoint, open_model(str(tmp_path), LoadOverrides(optimizer=True)))
    assert not open_model(str(tmp_path)).slots


@pytest.mark.parametrize("format_name", ["tf1", "official_bert", "hugging_face"])
def test_names_of_classes_are_preserved(format_name: str, tiny_config: BertConfig, tmp_path: pathlib.Path):
    checkpoint = sample(tiny_config, frozenset({ENCODER, POOLER, HEADS["sequence"]}), classes=3)
    checkpoint = dataclasses.replace(checkpoint, labels=("yes", "no", "möglich"))
    FORMATS[format_name].write(checkpoint, str(tmp_path))
    assert open_model(str(tmp_path)).labels == checkpoint.labels


def test_placeholder_labels_are_not_names_of_classes(tiny_config: BertConfig, tmp_path: pathlib.Path):
    checkpoint = sample(tiny_config, frozenset({ENCODER, POOLER, HEADS["sequence"]}), classes=2)
    tf1.write(dataclasses.replace(checkpoint, labels=("LABEL_0", "LABEL_1")), str(tmp_path / "google"))
    conversion.convert(conversion_options(tmp_path / "google", tmp_path / "hf", to_format="hugging_face"))
    assert open_model(str(tmp_path / "hf")).labels is None
    (tmp_path / "google" / "checksums.json").unlink()
    (tmp_path / "google" / "labels.json").write_text('["yes", "no", "perhaps"]')
    with pytest.raises(UserError, match="names 3 classes, but the classifier has 2"):
        open_model(str(tmp_path / "google"))
    tf1.write(dataclasses.replace(sample(tiny_config), labels=("yes", "no")), str(tmp_path / "headless"))
    assert "names classes, but the checkpoint has no classifier" in open_model(str(tmp_path / "headless")).notes[-1]


def test_half_precision_is_converted_exactly(tiny_config: BertConfig, tmp_path: pathlib.Path):
    import ml_dtypes
    from safetensors.numpy import load_file, save_file

    for kind in (np.float16, ml_dtypes.bfloat16):
        checkpoint = sample(tiny_config)
        folder = tmp_path / np.dtype(kind).name
        folder.mkdir()
        hugging_face.write(checkpoint, str(folder))
        (folder / "checksums.json").unlink()
        tensors = load_file(folder / "model.safetensors")
        save_file({name: value.astype(kind) for name, value in tensors.items()}, folder / "model.safetensors")
        again = open_model(str(folder), LoadOverrides())
        for name, value in checkpoint.weights.items():
            np.testing.assert_array_equal(again.weights[name], value.astype(kind).astype(np.float32))


def test_a_file_in_the_folder_can_be_passed(tiny_config: BertConfig, tmp_path: pathlib.Path):
    checkpoint = sample(tiny_config, frozenset({ENCODER, POOLER}))
    for format_name, file in (
        ("tf1", "bert_model.ckpt"),
        ("tf1", "bert_model.ckpt.index"),
        ("hugging_face", "model.safetensors"),
        ("keras_hub", "model.weights.h5"),
    ):
        folder = tmp_path / file
        folder.mkdir()
        FORMATS[format_name].write(checkpoint, str(folder))
        again = open_model(str(folder / file))
        assert again.source.format == format_name
        assert_equal(checkpoint, again)
