"""Checkpoints for the format tests: tiny ones with random weights, and ones laid out as model garden writes them."""

import dataclasses
import functools
import json
import pathlib
import tarfile
from typing import Any

import numpy as np
from tensorflow.core.protobuf import trackable_object_graph_pb2

from official_bert.checkpoints import bundle, checksums, conversion
from official_bert.checkpoints import checkpoint as parts_of
from official_bert.checkpoints.checkpoint import ENCODER, PARTS, POOLER, PRETRAINING, SLOTS, LoadedModel, LoadOverrides
from official_bert.checkpoints.formats.all_formats import FORMATS
from official_bert.checkpoints.formats.hugging_face_files import HEADS as HEADS_OF_CLASSES
from official_bert.checkpoints.formats.hugging_face_files import find_class
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.options import ConversionOptions
from official_bert.checkpoints.tensors import get_part_shapes
from official_bert.modeling.config import BertConfig
from tests.make import ROOT, VOCAB, WORDS, assert_rejected, write_vocab

# Layouts and outputs of models saved by model garden, at the version recorded in the file.
MODEL_GARDEN = json.loads((ROOT / "tests" / "golden" / "model_garden.json").read_text())
# Small, so that a large share of the bytes is structure rather than weights.
SAMPLE_CONFIG = BertConfig(78, 4, 1, 2, 8, max_position_embeddings=16)

HEADS = {"sequence": parts_of.SEQUENCE_CLASSIFIER, "token": parts_of.TOKEN_CLASSIFIER}
HEADS |= {"choice": parts_of.MULTIPLE_CHOICE, "span": parts_of.QUESTION_ANSWERING}
# The classes of transformers, by their parts.
HUGGING_FACE_CLASSES = {
    parts: name
    for heads in HEADS_OF_CLASSES.values()
    for encoder in ({ENCODER}, {ENCODER, POOLER})
    if (name := find_class(parts := frozenset(encoder | heads)))
}


def sample(config: BertConfig, parts: frozenset[str] = PRETRAINING, classes: int = 3, seed: int = 0) -> LoadedModel:
    """Returns a checkpoint with these parts. Its weights are large enough that each of them affects the outputs."""
    rng = np.random.default_rng(seed)
    weights = {
        name: rng.normal(1.0 if name.endswith("gamma") else 0.0, 0.3, shape).astype(np.float32)
        for part in PARTS
        if part in parts
        for name, shape in get_part_shapes(part, config, classes).items()
    }
    return LoadedModel(config, weights, vocab=VOCAB)


def add_optimizer_state(checkpoint: LoadedModel, step: int = 7) -> LoadedModel:
    rng = np.random.default_rng(1)
    shapes = {f"{name}/{slot}": value.shape for name, value in checkpoint.weights.items() for slot in SLOTS}
    slots = {name: np.abs(rng.normal(0, 1e-3, shape)).astype(np.float32) for name, shape in shapes.items()}
    return dataclasses.replace(checkpoint, slots=slots, step=step)


def write_sample(format_name: str, folder: pathlib.Path) -> LoadedModel:
    """Writes a tiny checkpoint and returns the expected result of reading it."""
    checkpoint = sample(SAMPLE_CONFIG)
    folder.mkdir(exist_ok=True)
    if format_name in ("tf1", "official_bert"):
        checkpoint = add_optimizer_state(checkpoint)
    if format_name == "model_garden":
        write_model_garden("trained", folder)
        checksums.write(str(folder), ["bert_config.json", "vocab.txt", "tokenizer_config.json"], {})
        return open_model(str(folder))
    return FORMATS[format_name].write(checkpoint, str(folder))


def write_hugging_face(checkpoint: LoadedModel, folder: pathlib.Path) -> None:
    """Writes a checkpoint as Hugging Face does, without checksums."""
    FORMATS["hugging_face"].write(checkpoint, str(folder))
    (folder / "checksums.json").unlink()


def change_json(path: pathlib.Path, **values: Any) -> None:
    """Changes values in a JSON file, which may be missing. "model/unk_token" is a nested key."""
    contents = json.loads(path.read_text()) if path.exists() else {}
    for key, value in values.items():
        *outer, last = key.split("/")
        target = contents
        for each in outer:
            target = target[each]
        target[last] = value
    path.write_text(json.dumps(contents))


@functools.cache
def unpacked(library: str, folder: pathlib.Path) -> pathlib.Path:
    """Unpacks the models of an old TensorFlow library (golden/make_tensorflow_models.py) to folders in `folder`."""
    with tarfile.open(ROOT / "tests" / "golden" / "tensorflow_models" / f"{library}.tar.xz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.3 and earlier have no filters.
        archive.extractall(folder / library)
    return folder / library


def assert_equal(a: LoadedModel, b: LoadedModel) -> None:
    """Asserts that two checkpoints are equal bit for bit, except for the notes on how they were read."""
    for field in ("config", "vocab", "casing", "labels"):
        assert getattr(a, field) == getattr(b, field), field
    for mine, other in ((a.weights, b.weights), (a.slots, b.slots)):
        assert mine.keys() == other.keys()
        for name, value in mine.items():
            found = other[name]
            assert (value.dtype, value.shape, value.tobytes()) == (np.float32, found.shape, found.tobytes()), name
            assert found.dtype == np.float32
    if a.slots:
        assert a.step == b.step


def assert_fits(checkpoint: LoadedModel) -> None:
    """Asserts that the weights, configuration, vocabulary and labels of a checkpoint form a model."""
    classifier = [value for name, value in checkpoint.weights.items() if name.endswith("classifier/bias")]
    classes = len(classifier[0]) if classifier else 0
    shapes = {
        name: shape
        for part in checkpoint.parts
        for name, shape in get_part_shapes(part, checkpoint.config, classes).items()
    }
    assert ENCODER in checkpoint.parts
    assert {name: value.shape for name, value in checkpoint.weights.items()} == shapes
    assert all(value.dtype == np.float32 and np.isfinite(value).all() for value in checkpoint.weights.values())
    if checkpoint.vocab is None:
        assert any("vocab" in note for note in checkpoint.notes)
    else:
        tokenizer = checkpoint.tokenizer
        assert max(tokenizer.vocab.values()) < checkpoint.config.vocab_size
    assert checkpoint.labels is None or len(checkpoint.labels) == classes


def write_model_garden(model: str, folder: pathlib.Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Writes a random checkpoint with the keys, variable names and shapes of a model garden checkpoint.

    Returns:
        The random values by variable name, and the outputs that model garden computes with them for
        `parity.make_fixed_input`, named as by `parity.compute_outputs`. The vocabulary has twelve tokens.
    """
    entry = MODEL_GARDEN["models"][model]
    config = BertConfig(**MODEL_GARDEN["config"], num_hidden_layers=entry["num_hidden_layers"])
    rng = np.random.default_rng(0)
    tensors, values = {}, {}
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    for path, name, shape, *kind in entry["tensors"]:
        key = f"{path}/.ATTRIBUTES/VARIABLE_VALUE"
        mean = 1.0 if name.endswith("gamma") else 0.0
        tensors[key] = np.zeros(shape, *kind) if kind else rng.normal(mean, 0.3, shape).astype(np.float32)
        graph.nodes.add().attributes.add(name="VARIABLE_VALUE", full_name=name, checkpoint_key=key)
        values[name] = tensors[key]
    tensors["_CHECKPOINTABLE_OBJECT_GRAPH"] = np.array(graph.SerializeToString(), object)
    folder.mkdir(exist_ok=True)
    bundle.write_bundle(str(folder / "bert_model.ckpt"), tensors)
    (folder / "bert_config.json").write_text(config.to_json())
    write_vocab(folder / "vocab.txt", WORDS[: config.vocab_size])
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    return values, {name: np.array(output) for name, output in entry["outputs"].items()}


def assert_unreadable(folder: pathlib.Path, *names: object, **overrides: Any) -> None:
    """Checks that reading a checkpoint raises a UserError that mentions each name."""
    assert_rejected(names, open_model, str(folder), LoadOverrides(**overrides))


def convert(source: pathlib.Path, target: pathlib.Path, **changes: Any) -> list[str]:
    """Runs the convert command and returns the lines of its report."""
    return conversion.convert(ConversionOptions(from_=str(source), to=str(target), **changes))
