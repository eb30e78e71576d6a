"""Checkpoints for the tests of their formats: tiny ones with random weights, and model garden's made by hand."""

import dataclasses
import json
import pathlib

import numpy as np
import tensorflow as tf

from official_bert.checkpoint_formats import model_garden
from official_bert.checkpoint_formats.checkpoint import (
    PARTS,
    PRETRAINING,
    SLOTS,
    Checkpoint,
    numbered,
    shapes_of,
    with_head_axis,
)
from official_bert.config import BertConfig
from tests.conftest import WORDS


def sample(config: BertConfig, parts: frozenset[str] = PRETRAINING, classes: int = 3, seed: int = 0) -> Checkpoint:
    """A checkpoint with these parts, weights large enough that every one of them matters."""
    rng = np.random.default_rng(seed)
    weights = {
        name: rng.normal(1.0 if name.endswith("gamma") else 0.0, 0.3, shape).astype(np.float32)
        for part in PARTS
        if part in parts
        for name, shape in shapes_of(part, config, classes).items()
    }
    return Checkpoint(config, weights, vocab="".join(f"{word}\n" for word in WORDS))


def with_optimizer(checkpoint: Checkpoint, step: int = 7) -> Checkpoint:
    rng = np.random.default_rng(1)
    slots = {
        f"{name}/{slot}": np.abs(rng.normal(0, 1e-3, value.shape)).astype(np.float32)
        for name, value in checkpoint.weights.items()
        for slot in SLOTS
    }
    return dataclasses.replace(checkpoint, slots=slots, step=step)


def assert_equal(a: Checkpoint, b: Checkpoint) -> None:
    """Equal to the bit, but for the notes of how they were read."""
    for field in ("config", "vocab", "do_lower_case", "labels"):
        assert getattr(a, field) == getattr(b, field), field
    for mine, other in ((a.weights, b.weights), (a.slots, b.slots)):
        assert mine.keys() == other.keys()
        for name, value in mine.items():
            assert value.dtype == other[name].dtype == np.float32
            assert value.shape == other[name].shape, name
            assert value.tobytes() == other[name].tobytes(), name
    if a.slots:
        assert a.step == b.step


def write_model_garden(checkpoint: Checkpoint, folder: pathlib.Path) -> None:
    """An object checkpoint whose variables have the names that model garden's have; its converter made the like."""
    folder.mkdir(exist_ok=True)
    names = numbered(model_garden.NAMES, checkpoint.config)
    rule = with_head_axis(checkpoint.config)
    variables = {
        f"layer_with_weights-{number}": tf.Variable(
            rule(name, value.shape).theirs(value),
            name=("bert/" if names[name].startswith("cls/") else "") + names[name],
        )
        for number, (name, value) in enumerate(checkpoint.weights.items())
    }
    tf.train.Checkpoint(encoder=variables).write(str(folder / "bert_model.ckpt"))
    (folder / "bert_config.json").write_text(checkpoint.config.to_json())
    (folder / "vocab.txt").write_text(checkpoint.vocab)
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": checkpoint.do_lower_case}))
