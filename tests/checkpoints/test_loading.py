"""Models are loaded from every format, and weights survive writing and reading bit for bit."""

import dataclasses
import itertools
import pathlib

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

import official_bert
from official_bert.checkpoints import bundle
from official_bert.checkpoints.checkpoint import ENCODER, MASKED_LM, POOLER, PRETRAINING, LoadedModel, LoadOverrides
from official_bert.checkpoints.formats import hugging_face, tf1
from official_bert.checkpoints.formats.all_formats import FORMATS
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.run_checkpoints import get_stored_name
from official_bert.checkpoints.tensors import get_pretraining_shapes
from official_bert.checkpoints.vocabulary import FoundTokenizer, resolve_tokenizer
from official_bert.modeling.config import BertConfig
from official_bert.tokenization.casing import UNCASED, Casing
from official_bert.tokenization.exact import SPECIAL_TOKENS
from tests.checkpoints import checkpoint_samples as samples
from tests.make import add_attention_weight, assert_rejected
from tests.tokenization.test_exact import ACCENTED, CASED, CASINGS

PARTS = [
    ("official_bert", PRETRAINING),
    ("official_bert", {ENCODER}),
    ("official_bert", {ENCODER, POOLER, samples.HEADS["sequence"]}),
    ("tf1", PRETRAINING),
    ("tf1", {ENCODER, POOLER, samples.HEADS["sequence"]}),
    ("tf1", PRETRAINING | {samples.HEADS["sequence"]}),
    ("tf1", {ENCODER, POOLER, samples.HEADS["span"]}),
    *(("hugging_face", parts) for parts in samples.HUGGING_FACE_CLASSES),
    ("keras_hub", {ENCODER, POOLER}),
    ("keras_hub", {ENCODER, POOLER, MASKED_LM}),
    ("keras_hub", {ENCODER, POOLER, samples.HEADS["sequence"]}),
]
# Files that stand for their folder.
FILES = {
    "tf1": ("bert_model.ckpt", "bert_model.ckpt.index"),
    "hugging_face": ("model.safetensors",),
    "keras_hub": ("model.weights.h5",),
}


# Every format is written with every casing.
@pytest.mark.parametrize(("format_name", "parts", "casing"), [
    (*parts, casing) for parts, casing in zip(PARTS, itertools.cycle(CASINGS), strict=False)
])  # fmt: skip
def test_written_checkpoints_are_read_back_bit_for_bit(format_name, parts, casing, tiny_config, tmp_path):
    checkpoint = dataclasses.replace(samples.sample(tiny_config, frozenset(parts)), casing=casing)
    checkpoint = dataclasses.replace(checkpoint, vocab=checkpoint.vocab.replace("\nsun\n", "\nsün\n"))
    assert set(checkpoint.parts) == set(parts)
    FORMATS[format_name].write(checkpoint, str(tmp_path))
    for file in ("", *FILES.get(format_name, ())):
        again = open_model(str(tmp_path / file))
        assert again.source.format == format_name
        samples.assert_equal(checkpoint, again)


def test_names_of_classes_are_preserved_unless_they_are_placeholders(tiny_config: BertConfig, tmp_path: pathlib.Path):
    checkpoint = samples.sample(tiny_config, frozenset({ENCODER, POOLER, samples.HEADS["sequence"]}), classes=3)
    labels, placeholders = ("yes", "no", "möglich"), ("LABEL_0", "LABEL_1", "LABEL_2")
    for format_name in ("tf1", "official_bert", "hugging_face"):
        FORMATS[format_name].write(dataclasses.replace(checkpoint, labels=labels), str(tmp_path / format_name))
        assert open_model(str(tmp_path / format_name)).labels == labels
    hugging_face.write(dataclasses.replace(checkpoint, labels=placeholders), str(tmp_path / "placeholders"))
    assert open_model(str(tmp_path / "placeholders")).labels is None
    (tmp_path / "tf1" / "checksums.json").unlink()
    (tmp_path / "tf1" / "labels.json").write_text('["yes", "no"]')
    samples.assert_unreadable(tmp_path / "tf1", "labels.json", 2, 3)
    tf1.write(dataclasses.replace(samples.sample(tiny_config), labels=labels), str(tmp_path / "headless"))
    assert "no classifier" in open_model(str(tmp_path / "headless")).notes[-1]


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_converted_exactly(kind: type, tiny_config: BertConfig, tmp_path: pathlib.Path):
    checkpoint = samples.sample(tiny_config)
    hugging_face.write(checkpoint, str(tmp_path))
    (tmp_path / "checksums.json").unlink()
    path = tmp_path / "model.safetensors"
    save_file({name: value.astype(kind) for name, value in load_file(path).items()}, path)
    rounded = {name: value.astype(kind).astype(np.float32) for name, value in checkpoint.weights.items()}
    samples.assert_equal(dataclasses.replace(checkpoint, weights=rounded), open_model(str(tmp_path)))


def test_our_format_stores_every_weight_of_the_model(tiny_config: BertConfig, tmp_path, monkeypatch):
    FORMATS["official_bert"].write(samples.sample(tiny_config), str(tmp_path / "before"))
    get_pretraining_shapes.cache_clear()
    path = add_attention_weight(monkeypatch)
    checkpoint = samples.add_optimizer_state(samples.sample(tiny_config))
    FORMATS["official_bert"].write(checkpoint, str(tmp_path / "after"))
    samples.assert_equal(checkpoint, open_model(str(tmp_path / "after"), LoadOverrides(optimizer=True)))
    assert set(official_bert.load(str(tmp_path / "after")).model.output) == {"sequence_output", "pooled_output"}
    stored = get_stored_name(path)
    samples.assert_unreadable(tmp_path / "before", f"{tiny_config.num_hidden_layers} missing", stored)
    encoder = samples.sample(tiny_config, frozenset({ENCODER, POOLER}))
    for name in ("tf1", "hugging_face", "keras_hub"):
        assert_rejected(path, FORMATS[name].write, encoder, str(tmp_path))
    monkeypatch.undo()
    get_pretraining_shapes.cache_clear()
    samples.assert_unreadable(tmp_path / "after", f"{tiny_config.num_hidden_layers} unexpected", stored)


def test_load_works_under_a_distribution_scope_and_omits_a_missing_pooler(tiny_config: BertConfig, tmp_path):
    checkpoint = samples.sample(tiny_config, frozenset({ENCODER, MASKED_LM}))
    hugging_face.write(checkpoint, str(tmp_path))
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        encoder = official_bert.load(str(tmp_path)).model
    assert set(encoder.output) == {"sequence_output"}
    for variable in encoder.variables:
        assert isinstance(variable.value, tf.distribute.DistributedValues)
        np.testing.assert_array_equal(variable, checkpoint.weights[variable.path])


def test_the_accent_flags_apply_if_no_file_states_the_casing(tiny_config: BertConfig):
    vocab = "\n".join([*SPECIAL_TOKENS, "über", "a"]) + "\n"
    found = FoundTokenizer("model", {"vocab.txt": vocab}, None, "tokenizer_config.json")

    def resolve(**given: bool) -> LoadedModel:
        return resolve_tokenizer(found, LoadOverrides(**given), tiny_config)

    assert resolve().casing == UNCASED
    assert "--nostrip_accents" in "".join(resolve().notes)
    assert resolve(strip_accents=False).casing == ACCENTED
    assert "--nostrip_accents" not in "".join(resolve(strip_accents=False).notes)
    assert_rejected("tokenizer_config.json", resolve, do_lower_case=False, strip_accents=False)
    assert_rejected(("strip_accents", "true"), resolve, do_lower_case=False, strip_accents=True)


@pytest.mark.parametrize(("piece", "says"), [("Über", UNCASED), ("über", CASED)])
def test_a_stated_casing_that_contradicts_the_vocabulary_is_noted(piece: str, says: Casing, tiny_config: BertConfig):
    vocab = "\n".join([*SPECIAL_TOKENS, piece]) + "\n"
    for casing, count in ((says, 1), (CASED if says == UNCASED else UNCASED, 0)):
        found = FoundTokenizer("model", {"vocab.txt": vocab}, casing, "tokenizer_config.json")
        notes = resolve_tokenizer(found, LoadOverrides(), tiny_config).notes
        assert sum(f"tokenizer_config.json says {says.kind}, but vocab.txt" in note for note in notes) == count


def test_checkpoints_are_ordered_by_their_numbers(tmp_path: pathlib.Path):
    for number in (900, 1000, 20):
        (tmp_path / f"ckpt-{number}.index").touch()
    assert bundle.list_checkpoints(str(tmp_path)) == [f"{tmp_path}/ckpt-{number}" for number in (1000, 900, 20)]
