"""Weights in and out of every format, to the bit; what they compute, against NumPy and the frameworks they are from."""

import dataclasses
import filecmp
import json
import pathlib
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.checkpoints import checkpoint as parts_of
from official_bert.checkpoints import (
    conversion,
    initial_weights,
    loading,
    model_files,
    parity,
    reading,
    resize,
    run_checkpoints,
)
from official_bert.checkpoints.checkpoint import PRETRAINING, SLOTS, LoadOverrides
from official_bert.checkpoints.formats import hugging_face, hugging_face_config, keras_hub, tf1
from official_bert.checkpoints.formats.all_formats import FORMATS
from official_bert.checkpoints.options import WRITABLE, ConversionOptions
from official_bert.checkpoints.vocabulary import is_uncased, lines_of
from official_bert.errors import UserError
from official_bert.main import run_command
from official_bert.modeling.config import BertConfig
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.optimization.schedules import WarmupPolynomialDecay
from official_bert.pretraining.train_step import Pretrainer
from official_bert.tokenization.exact import FullTokenizer
from tests.checkpoints import checkpoint_samples
from tests.checkpoints.checkpoint_samples import assert_equal, sample, with_optimizer, write_model_garden
from tests.conftest import ROOT, WORDS
from tests.reference import Reference

ENCODER, POOLER, MASKED_LM, NEXT_SENTENCE = (
    parts_of.ENCODER,
    parts_of.POOLER,
    parts_of.MASKED_LM,
    parts_of.NEXT_SENTENCE,
)
HEADS = {
    "sequence": parts_of.SEQUENCE_CLASSIFIER,
    "token": parts_of.TOKEN_CLASSIFIER,
    "choice": parts_of.MULTIPLE_CHOICE,
    "span": parts_of.QUESTION_ANSWERING,
}


@pytest.fixture
def exact_config(tiny_config: BertConfig) -> BertConfig:
    """As Hugging Face's models usually are."""
    return dataclasses.replace(tiny_config, hidden_act="gelu_exact", layer_norm_eps=1e-6, hidden_dropout_prob=0.2)


def options(source: pathlib.Path, target: pathlib.Path, **changes) -> ConversionOptions:
    return ConversionOptions(from_=str(source), to=str(target), **changes)


# Every format


def test_the_flag_lists_the_formats_that_can_be_written():
    assert set(WRITABLE) == {name for name, each in FORMATS.items() if each.write}


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
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_what_is_written_reads_back_to_the_bit(
    format_name: str, parts: set[str], do_lower_case: bool, tiny_config: BertConfig, tmp_path: pathlib.Path
):
    checkpoint = dataclasses.replace(sample(tiny_config, frozenset(parts)), do_lower_case=do_lower_case)
    assert set(checkpoint.parts) == set(parts)
    FORMATS[format_name].write(checkpoint, str(tmp_path))
    found, again = reading.read(str(tmp_path))
    assert found.name == format_name
    assert_equal(checkpoint, again)


@pytest.mark.parametrize("format_name", ["tf1", "official_bert"])
def test_moments_and_step_come_along_on_request(format_name: str, tiny_config: BertConfig, tmp_path: pathlib.Path):
    checkpoint = with_optimizer(sample(tiny_config))
    FORMATS[format_name].write(checkpoint, str(tmp_path))
    assert_equal(checkpoint, reading.read(str(tmp_path), LoadOverrides(optimizer=True))[1])
    assert not reading.read(str(tmp_path))[1].slots


@pytest.mark.parametrize("format_name", ["tf1", "official_bert", "hugging_face"])
def test_names_of_classes_come_along(format_name: str, tiny_config: BertConfig, tmp_path: pathlib.Path):
    checkpoint = sample(tiny_config, frozenset({ENCODER, POOLER, HEADS["sequence"]}), classes=3)
    checkpoint = dataclasses.replace(checkpoint, labels=("yes", "no", "möglich"))
    FORMATS[format_name].write(checkpoint, str(tmp_path))
    assert reading.read(str(tmp_path))[1].labels == checkpoint.labels


def test_names_of_classes_that_do_not_come_along_are_told(
    tiny_config: BertConfig, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    checkpoint = sample(tiny_config, frozenset({ENCODER, POOLER, HEADS["sequence"]}), classes=2)
    tf1.write(dataclasses.replace(checkpoint, labels=("yes", "no")), str(tmp_path / "google"))
    lines = conversion.convert(options(tmp_path / "google", tmp_path / "preset", to_format="keras_hub"))
    assert (
        "note: left out, since a preset has no place for them: the classes' names, in the order of the logits yes, no"
        in lines
    )
    true_write = tf1.write

    def forgetful_write(checkpoint, folder):
        true_write(dataclasses.replace(checkpoint, labels=None), folder)
        return checkpoint

    monkeypatch.setitem(FORMATS, "tf1", dataclasses.replace(FORMATS["tf1"], write=forgetful_write))
    with pytest.raises(UserError, match="cannot hold the model's labels: written .'yes', 'no'., read back None"):
        conversion.convert(options(tmp_path / "google", tmp_path / "again", to_format="tf1"))


def test_numbers_of_classes_are_no_names(tiny_config: BertConfig, tmp_path: pathlib.Path):
    checkpoint = sample(tiny_config, frozenset({ENCODER, POOLER, HEADS["sequence"]}), classes=2)
    tf1.write(dataclasses.replace(checkpoint, labels=("LABEL_0", "LABEL_1")), str(tmp_path / "google"))
    conversion.convert(options(tmp_path / "google", tmp_path / "hf", to_format="hugging_face"))
    assert reading.read(str(tmp_path / "hf"))[1].labels is None
    (tmp_path / "google" / "checksums.json").unlink()
    (tmp_path / "google" / "labels.json").write_text('["yes", "no", "perhaps"]')
    with pytest.raises(UserError, match="names 3 classes, but the classifier beside it has 2"):
        reading.read(str(tmp_path / "google"))
    tf1.write(dataclasses.replace(sample(tiny_config), labels=("yes", "no")), str(tmp_path / "headless"))
    assert "names classes, but there is no classifier" in reading.read(str(tmp_path / "headless"))[1].notes[-1]


def test_a_step_that_is_not_written_is_seen(
    tiny_config: BertConfig, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    tf1.write(with_optimizer(sample(tiny_config), step=7), str(tmp_path / "google"))
    true_write = tf1.write

    def forgetful_write(checkpoint, folder):
        true_write(dataclasses.replace(checkpoint, step=0), folder)
        return checkpoint

    monkeypatch.setitem(FORMATS, "tf1", dataclasses.replace(FORMATS["tf1"], write=forgetful_write))
    with pytest.raises(UserError, match="cannot hold the model's step: written 7, read back 0"):
        conversion.convert(options(tmp_path / "google", tmp_path / "again", to_format="tf1", optimizer=True))


def inventory_of(folder: pathlib.Path, **given) -> tuple[int, dict[str, int]]:
    """How many tensors were loaded, and left behind of each kind (by the first words of what they are)."""
    inventory = reading.read(str(folder), LoadOverrides(**given))[1].inventory
    kinds = {kind.split(" (")[0]: len(names) for kind, names in inventory.left_behind.items()}
    return len(inventory.loaded), kinds


def test_every_tensor_of_a_file_is_loaded_or_said_to_be_left_behind(tiny_config: BertConfig, tmp_path: pathlib.Path):
    checkpoint = with_optimizer(sample(tiny_config))  # 46 weights
    tf1.write(checkpoint, str(tmp_path / "tf1"))
    assert inventory_of(tmp_path / "tf1") == (46, {"of the optimizer's moments and step": 93})
    assert inventory_of(tmp_path / "tf1", optimizer=True) == (139, {})
    FORMATS["official_bert"].write(checkpoint, str(tmp_path / "ours"))
    others = {"of the place in the data": 3, "of TensorFlow's own": 2}
    assert inventory_of(tmp_path / "ours") == (46, {"of the optimizer's moments and step": 93, **others})
    assert inventory_of(tmp_path / "ours", optimizer=True) == (139, others)
    hugging_face.write(checkpoint, str(tmp_path / "hf"))
    assert inventory_of(tmp_path / "hf") == (46, {})
    keras_hub.write(checkpoint, str(tmp_path / "preset"))
    assert inventory_of(tmp_path / "preset") == (44, {"of the optimizer's state": 2})
    write_model_garden("trained", tmp_path / "garden")
    assert inventory_of(tmp_path / "garden") == (
        30,
        {
            "of the optimizer's moments and step": 70,
            "of TensorFlow's own": 2,
            "of the encoder's pooler, in whose place the head has its own": 2,
        },
    )


def test_tensors_are_listed_on_request(tiny_config: BertConfig, tmp_path: pathlib.Path):
    tf1.write(with_optimizer(sample(tiny_config)), str(tmp_path / "google"))
    lines = conversion.convert(options(tmp_path / "google", tmp_path / "short"))
    assert lines[1] == (
        "tensors: 46 loaded, none missing, none unexpected; left behind: 93 of the optimizer's moments and step "
        "(--optimizer takes them)"
    )
    assert not [line for line in lines if line.startswith(("loaded:", "left behind:"))]
    lines = conversion.convert(options(tmp_path / "google", tmp_path / "long", list_tensors=True))
    assert "loaded: bert/pooler/dense/kernel as pooler/kernel" in lines
    assert "left behind: global_step" in lines
    assert sum(line.startswith("loaded:") for line in lines) == 46
    assert sum(line.startswith("left behind:") for line in lines) == 93


@pytest.mark.parametrize(("model", "parts"), [
    ("encoder", {ENCODER, POOLER}),
    ("encoder_v2", {ENCODER, POOLER}),
    ("pretrainer", {ENCODER, POOLER, MASKED_LM}),
    ("pretrainer_v1", PRETRAINING),
    ("trained", PRETRAINING),
    ("classifier", {ENCODER, POOLER, HEADS["sequence"]}),
    ("classifier_pooler", {ENCODER, POOLER, HEADS["sequence"]}),
])  # fmt: skip
def test_models_of_model_garden_compute_the_same_here(model: str, parts: set[str], tmp_path: pathlib.Path):
    values, expected = write_model_garden(model, tmp_path)
    found, checkpoint = reading.read(str(tmp_path))
    assert found.name == "model_garden"
    assert set(checkpoint.parts) == set(parts)
    stored = {value.tobytes() for value in values.values()}
    assert all(value.tobytes() in stored for value in checkpoint.weights.values())
    outputs = parity.our_outputs(checkpoint)
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name], value, atol=1e-5)


@pytest.mark.parametrize("model", ["token_classifier", "span_labeler"])
def test_heads_of_model_garden_that_share_a_name_are_refused(
    model: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    models = checkpoint_samples.MODEL_GARDEN["models"]
    classes = {"token_classifier": 3, "span_labeler": 2}[model]
    head = [["model/head/kernel", "predictions/transform/logits/kernel", [4, classes]]]
    monkeypatch.setitem(models, model, {**models["encoder"], "tensors": models["encoder"]["tensors"] + head})
    write_model_garden(model, tmp_path)
    with pytest.raises(UserError, match="0 missing; 1 unexpected: predictions/transform/logits/kernel"):
        reading.read(str(tmp_path))


def test_a_chain_through_all_formats_ends_where_it_began(tiny_config: BertConfig, tmp_path: pathlib.Path):
    first = sample(tiny_config, frozenset({ENCODER, POOLER, MASKED_LM}))
    FORMATS["tf1"].write(first, str(tmp_path / "0"))
    for number, name in enumerate(["hugging_face", "keras_hub", "official_bert", "tf1"]):
        _, checkpoint = reading.read(str(tmp_path / str(number)))
        FORMATS[name].write(checkpoint, str(tmp_path / str(number + 1)))
    for name in ("bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001", "bert_config.json", "vocab.txt"):
        assert filecmp.cmp(tmp_path / "0" / name, tmp_path / "4" / name, shallow=False), name


def test_half_precision_is_widened_exactly(tiny_config: BertConfig, tmp_path: pathlib.Path):
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
        again = hugging_face.read(str(folder), LoadOverrides())
        for name, value in checkpoint.weights.items():
            np.testing.assert_array_equal(again.weights[name], value.astype(kind).astype(np.float32))


def test_a_file_within_the_folder_will_do(tiny_config: BertConfig, tmp_path: pathlib.Path):
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
        found, again = reading.read(str(folder / file))
        assert found.name == format_name
        assert_equal(checkpoint, again)


def test_released_vocabularies_tell_their_casing(test_data: pathlib.Path):
    for path in (test_data / "vocab").iterdir():
        assert is_uncased(path.read_text()) == ("-cased" not in path.name), path.name


# Google's TF1 checkpoints


def test_toy_checkpoint_comes_back_to_the_byte_with_slots_and_step(test_data: pathlib.Path, tmp_path: pathlib.Path):
    folder = test_data / "checkpoints" / "toy_tf1"
    toy = tf1.read(str(folder), LoadOverrides(optimizer=True))
    assert toy.step == 20
    assert len(toy.weights) + len(toy.slots) + 1 == 139
    tf1.write(toy, str(tmp_path))
    for name in ("bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001", "vocab.txt"):
        assert filecmp.cmp(folder / name, tmp_path / name, shallow=False), name
    reader = tf.train.load_checkpoint(str(folder / "bert_model.ckpt"))
    for slot in SLOTS:
        theirs = reader.get_tensor(f"cls/seq_relationship/output_weights/{slot}")
        np.testing.assert_array_equal(toy.slots[f"next_sentence/kernel/{slot}"], theirs.T)


def test_toy_checkpoint_computes_what_the_float64_transcription_does(test_data: pathlib.Path):
    _, toy = reading.read(str(test_data / "checkpoints" / "toy_tf1"))
    outputs = parity.our_outputs(toy)
    features = parity.fixed_input(toy.config)
    length = features["input_ids"].shape[1]
    positions = np.tile(np.arange(length), (2, 1))
    reference = Reference(toy.weights, toy.config)
    layers, pooled = reference.encode(**features)
    masked_lm, next_sentence = reference.predict(**features, masked_lm_positions=positions)
    expected = {f"hidden_{number}": layer for number, layer in enumerate(layers)}
    expected |= {"pooled_output": pooled, "masked_lm_logits": masked_lm, "next_sentence_logits": next_sentence}
    assert outputs.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name], value, atol=1e-5)


def test_bert_mini_has_the_released_names_shapes_and_order(test_data: pathlib.Path, tmp_path: pathlib.Path):
    folder = test_data / "checkpoints" / "bert_mini_index"
    config = BertConfig.from_json_file(str(folder / "bert_config.json"))
    checkpoint = dataclasses.replace(sample(config), vocab=None)
    tf1.write(checkpoint, str(tmp_path))
    released = json.loads((folder / "index_parsed.json").read_text())
    del released["__header__"]
    written = tf.train.list_variables(str(tmp_path / "bert_model.ckpt"))
    assert [(name, list(shape)) for name, shape in written] == [
        (name, entry["shape"]) for name, entry in released.items()
    ]
    content = (tmp_path / "bert_model.ckpt.data-00000-of-00001").read_bytes()
    reader = tf.train.load_checkpoint(str(tmp_path / "bert_model.ckpt"))
    for name, entry in released.items():
        stored = content[entry["offset"] : entry["offset"] + entry["size"]]
        assert stored == reader.get_tensor(name).tobytes(), name
    assert len(content) == sum(entry["size"] for entry in released.values())


def test_pretraining_goes_on_from_an_old_run(tiny_config: BertConfig, tmp_path: pathlib.Path):
    old = with_optimizer(sample(tiny_config), step=7)
    tf1.write(old, str(tmp_path / "old"))
    conversion.convert(options(tmp_path / "old", tmp_path / "run", optimizer=True))
    schedule = WarmupPolynomialDecay(1e-3, 100)
    pretrainer = Pretrainer(config=tiny_config, strategy=tf.distribute.get_strategy(), schedule=schedule, seed=0)
    held = {**pretrainer.variables, "place": run_checkpoints.data_position()}
    saved = run_checkpoints.RunCheckpoints(str(tmp_path / "run"), held, keep=1)
    assert saved.restore_latest() == str(tmp_path / "run" / "ckpt-7")
    assert pretrainer.step == 7
    for variable in pretrainer.model.variables:
        np.testing.assert_array_equal(variable, old.weights[variable.path])
    held = {variable.path: np.asarray(variable) for variable in pretrainer.optimizer.variables}
    for path, value in old.slots.items():
        name, slot = path.rsplit("/", 1)
        np.testing.assert_array_equal(held[f"bert_adam_w/{name.replace('/', '_')}_{slot}"], value)
    description = model_files.contents_of(tiny_config, str(tmp_path / "run" / "vocab.txt"), do_lower_case=True)
    model_files.check_contents(str(tmp_path / "run"), description)


def test_released_checkpoints_without_moments_say_so(tiny_config: BertConfig, tmp_path: pathlib.Path):
    tf1.write(sample(tiny_config), str(tmp_path))
    with pytest.raises(UserError, match="lacks 93 tensors of the optimizer's state, .* convert without --optimizer"):
        tf1.read(str(tmp_path), LoadOverrides(optimizer=True))


def test_a_folder_of_google_scripts_takes_what_it_lacks_from_flags(tiny_config: BertConfig, tmp_path: pathlib.Path):
    checkpoint = sample(tiny_config)
    tf1.write(checkpoint, str(tmp_path / "run"))
    for name in ("bert_config.json", "vocab.txt"):
        (tmp_path / "run" / name).rename(tmp_path / name)
    for name in ("checksums.json", "tokenizer_config.json"):
        (tmp_path / "run" / name).unlink()
    with pytest.raises(UserError, match="there is no .*bert_config.json; give the model's configuration as"):
        reading.read(str(tmp_path / "run"))
    given = LoadOverrides(str(tmp_path / "bert_config.json"), str(tmp_path / "vocab.txt"), do_lower_case=False)
    assert_equal(reading.read(str(tmp_path / "run"), given)[1], dataclasses.replace(checkpoint, do_lower_case=False))


# Hugging Face folders


def rename_tensors(folder: pathlib.Path, rename) -> None:
    from safetensors.numpy import load_file, save_file

    (folder / "checksums.json").unlink()
    tensors = load_file(folder / "model.safetensors")
    save_file({rename(name): value for name, value in tensors.items()}, folder / "model.safetensors")


@pytest.mark.parametrize("prefix", ["bert.", ""])
def test_hugging_face_names_of_old_are_understood(prefix: str, exact_config: BertConfig, tmp_path: pathlib.Path):
    checkpoint = sample(exact_config)
    hugging_face.write(checkpoint, str(tmp_path))
    rename_tensors(
        tmp_path,
        lambda name: (
            name.replace("bert.", prefix).replace("LayerNorm.weight", "LayerNorm.gamma").replace("orm.bias", "orm.beta")
        ),
    )
    assert_equal(checkpoint, hugging_face.read(str(tmp_path), LoadOverrides()))


def test_an_output_layer_of_its_own_is_refused_and_a_copy_is_not(exact_config: BertConfig, tmp_path: pathlib.Path):
    from safetensors.numpy import load_file, save_file

    checkpoint = sample(exact_config)
    hugging_face.write(checkpoint, str(tmp_path))
    (tmp_path / "checksums.json").unlink()
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["bert.embeddings.position_ids"] = np.arange(32)[None]
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].copy()
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].copy()
    save_file(tensors, tmp_path / "model.safetensors")
    assert_equal(checkpoint, hugging_face.read(str(tmp_path), LoadOverrides()))
    tensors["cls.predictions.decoder.weight"][3, 2] += 1
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="decoder.weight in .* differs from bert.embeddings.word_embeddings.weight"):
        hugging_face.read(str(tmp_path), LoadOverrides())


def test_the_kind_of_gelu_is_translated(tiny_config: BertConfig):
    base = {"model_type": "bert", "vocab_size": 9}
    kinds = {"gelu": "gelu_exact", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "relu"}
    for theirs, ours in kinds.items():
        assert hugging_face_config.read_config({**base, "hidden_act": theirs}, "x").hidden_act == ours
    for ours, theirs in hugging_face_config.ACTIVATIONS.items():
        assert hugging_face_config.read_config({**base, "hidden_act": theirs}, "x").hidden_act == ours


@pytest.mark.parametrize(("change", "message"), [
    ({"model_type": "roberta"}, "model_type 'roberta'; only a BERT with 'bert' can be read"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
    ({"is_decoder": True}, "is_decoder True"),
    ({"hidden_act": "silu"}, "hidden_act 'silu'; expected one of"),
    ({"vocab_size": "many"}, "config.json: vocab_size is 'many'; expected a whole number"),
])  # fmt: skip
def test_models_that_compute_something_else_are_refused(change: dict, message: str):
    with pytest.raises(UserError, match=message):
        hugging_face_config.read_config({"model_type": "bert", "vocab_size": 9, **change}, "config.json")


def test_vocabulary_comes_from_tokenizer_json_where_it_stands_alone(tiny_config: BertConfig, tmp_path: pathlib.Path):
    checkpoint = dataclasses.replace(sample(tiny_config), do_lower_case=False)
    hugging_face.write(checkpoint, str(tmp_path))
    for name in ("checksums.json", "vocab.txt", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    assert_equal(checkpoint, hugging_face.read(str(tmp_path), LoadOverrides()))
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text().replace('"strip_accents": null', '"strip_accents": true'))
    with pytest.raises(UserError, match="has strip_accents True, which BERT's own rules have not; give --vocab_file"):
        hugging_face.read(str(tmp_path), LoadOverrides())
    path.write_text(path.read_text().replace('"WordPiece"', '"BPE"'))
    with pytest.raises(UserError, match="a BPE model; expected BertNormalizer and WordPiece"):
        hugging_face.read(str(tmp_path), LoadOverrides())


def transformers_models():
    import transformers

    transformers.utils.logging.disable_progress_bar()
    return transformers


@pytest.mark.parametrize("size", [(8, 1, 2, 16), (32, 3, 4, 64), (48, 2, 6, 100)])
@pytest.mark.parametrize(
    "name", ["BertForPreTraining", "BertForSequenceClassification", "BertModel", "BertForMaskedLM"]
)
def test_models_of_transformers_compute_the_same_here_and_back_there(
    name: str, size: tuple[int, ...], tmp_path: pathlib.Path
):
    transformers = transformers_models()
    import torch

    torch.manual_seed(0)
    hidden, layers, heads, intermediate = size
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=intermediate,
        max_position_embeddings=24,
        initializer_range=0.3,
        layer_norm_eps=1e-7,
        num_labels=3,
    )
    getattr(transformers, name)(config).save_pretrained(tmp_path / "theirs")
    checkpoint = hugging_face.read(str(tmp_path / "theirs"), LoadOverrides())
    assert checkpoint.config.hidden_act == "gelu_exact"
    assert checkpoint.config.layer_norm_eps == 1e-7
    hugging_face.write(checkpoint, str(tmp_path / "ours"))
    _, info = getattr(transformers, name).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    for folder in ("theirs", "ours"):
        difference = parity.forward_difference(checkpoint, hugging_face.FORMAT.framework, str(tmp_path / folder))
        assert difference is not None
        assert difference <= 1e-4


@pytest.mark.parametrize(("parts", "outputs"), [
    (PRETRAINING, {"masked_lm_logits", "next_sentence_logits"}),
    ({ENCODER, POOLER}, {"pooled_output"}),
    ({ENCODER}, set()),
    ({ENCODER, MASKED_LM}, {"masked_lm_logits"}),
    ({ENCODER, POOLER, NEXT_SENTENCE}, {"next_sentence_logits"}),
    ({ENCODER, POOLER, HEADS["sequence"]}, {"logits"}),
    ({ENCODER, HEADS["token"]}, {"logits"}),
    ({ENCODER, POOLER, HEADS["choice"]}, set()),
    ({ENCODER, HEADS["span"]}, {"logits"}),
])  # fmt: skip
def test_transformers_loads_ours_wholly_and_computes_the_same(
    parts: set[str], outputs: set[str], exact_config: BertConfig, tmp_path: pathlib.Path
):
    transformers = transformers_models()
    checkpoint = hugging_face.write(sample(exact_config, frozenset(parts)), str(tmp_path))
    name = hugging_face.CLASSES[frozenset(parts)]
    extra = {"add_pooling_layer": False} if parts == {ENCODER} else {}
    _, info = getattr(transformers, name).from_pretrained(tmp_path, output_loading_info=True, **extra)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    theirs = hugging_face.transformers_outputs(checkpoint, str(tmp_path), parity.fixed_input(checkpoint.config))
    assert theirs.keys() >= outputs | {"hidden_0", "hidden_1"}
    difference = parity.forward_difference(checkpoint, hugging_face.FORMAT.framework, str(tmp_path))
    assert difference is not None
    assert difference <= 1e-4


def all_tokenizers(vocab_file: pathlib.Path, do_lower_case: bool, folder: pathlib.Path):
    """Ours, and their fast and slow one from a folder that we wrote: each a function from text to ids."""
    transformers = transformers_models()
    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

    vocab = vocab_file.read_text(encoding="utf-8")
    config = BertConfig(len(lines_of(vocab)), 4, 1, 2, 8, max_position_embeddings=10**6)
    checkpoint = sample(config, frozenset({ENCODER}))
    hugging_face.write(dataclasses.replace(checkpoint, vocab=vocab, do_lower_case=do_lower_case), str(folder))
    ours = FullTokenizer(str(vocab_file), do_lower_case)
    fast, slow = transformers.AutoTokenizer.from_pretrained(folder), BertTokenizerLegacy.from_pretrained(folder)
    return (
        lambda text: ours.convert_tokens_to_ids(ours.tokenize(text)),
        lambda text: fast.encode(text, add_special_tokens=False),
        lambda text: slow.encode(text, add_special_tokens=False),
    )


@pytest.mark.parametrize("every", [29, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("vocab_name", "do_lower_case"), [
    ("bert-base-uncased", True),
    ("bert-base-cased", False),
    ("bert-base-chinese", True),
    ("bert-base-multilingual-uncased", True),
    ("bert-base-multilingual-cased", False),
])  # fmt: skip
def test_their_tokenizers_give_our_ids_on_real_text(
    vocab_name: str, do_lower_case: bool, every: int, test_data: pathlib.Path, tmp_path: pathlib.Path
):
    vocab_file = test_data / "vocab" / f"{vocab_name}-vocab.txt"
    ours, fast, slow = all_tokenizers(vocab_file, do_lower_case, tmp_path)
    texts = [path.read_text(encoding="utf-8") for path in sorted((test_data / "text").glob("*.txt"))]
    lines = "\n".join(texts).split("\n")[::every]
    assert len(lines) > 300
    for line in lines:
        ids = ours(line)
        assert fast(line) == ids
        # Their slow tokenizer brings text into Unicode's form NFC first, which changes cased text; BERT's rules do not.
        assert slow(line) == (ids if do_lower_case else ours(unicodedata.normalize("NFC", line)))


def test_their_tokenizers_differ_from_ours_where_the_docs_say(vocab_file: str, tmp_path: pathlib.Path):
    ours, fast, slow = all_tokenizers(pathlib.Path(vocab_file), True, tmp_path / "hf")
    unknown, mask, a, b = (WORDS.index(word) for word in ("[UNK]", "[MASK]", "a", "b"))
    assert fast("a [MASK] b") == slow("a [MASK] b") == [a, mask, b]
    assert ours("a [MASK] b") == [a, unknown, WORDS.index("m"), *(WORDS.index(f"##{c}") for c in "ask"), unknown, b]
    assert fast("a" * 101) == slow("a" * 101) == [unknown]
    assert ours("a" * 101) == [a, *[WORDS.index("##a")] * 100]
    assert ours("a\u061db") == slow("a\u061db") == [a, unknown, b]  # a question mark of Arabic, new in Unicode 14
    assert fast("a\u061db") == [unknown]


def test_their_tokenizer_joins_pairs_as_ours_does(vocab_file: str, tmp_path: pathlib.Path):
    transformers = transformers_models()
    hugging_face.write(sample(BertConfig(len(WORDS), 4, 1, 2, 8)), str(tmp_path / "hf"))
    ours = FullTokenizer(vocab_file)
    pair = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")("the cat", "no play")
    joined = ["[CLS]", *ours.tokenize("the cat"), "[SEP]", *ours.tokenize("no play"), "[SEP]"]
    assert pair["input_ids"] == ours.convert_tokens_to_ids(joined)
    assert pair["token_type_ids"] == [0] * 4 + [1] * (len(joined) - 4)


# keras-hub presets


def test_keras_hub_loads_our_preset_and_computes_the_same(tiny_config: BertConfig, tmp_path: pathlib.Path):
    import keras_hub as hub

    written = keras_hub.write(sample(tiny_config), str(tmp_path))
    assert set(written.parts) == {ENCODER, POOLER, MASKED_LM}
    assert "no place for it: next-sentence head" in written.notes[0]
    assert "masked-LM head computes with the exact GELU" in written.notes[1]
    difference = parity.forward_difference(written, keras_hub.FORMAT.framework, str(tmp_path))
    assert difference is not None
    assert difference <= 1e-5
    tokenizer = hub.models.BertTokenizer.from_preset(str(tmp_path))
    ours = FullTokenizer(str(tmp_path / "assets" / "tokenizer" / "vocabulary.txt"))
    for text in ("The cat, sat unaffable!", "Thé dög", "walking ran"):
        assert list(np.asarray(tokenizer(text))) == ours.convert_tokens_to_ids(ours.tokenize(text))
    task = hub.models.BertMaskedLM.from_preset(str(tmp_path))
    bias = next(variable for variable in task.weights if variable.shape == (len(WORDS),))
    np.testing.assert_array_equal(bias, written.weights["masked_lm_output/bias"])


def test_presets_that_keras_hub_wrote_are_read(vocab_file: str, tmp_path: pathlib.Path):
    import keras_hub as hub

    backbone = hub.models.BertBackbone(len(WORDS), 3, 2, 8, 16, max_sequence_length=16)
    tokenizer = hub.models.BertTokenizer(vocab_file, lowercase=True)
    preprocessor = hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=16)
    classifier = hub.models.BertTextClassifier(backbone, 3, preprocessor)
    classifier.save_to_preset(str(tmp_path))
    checkpoint = keras_hub.read(str(tmp_path), LoadOverrides())
    assert set(checkpoint.parts) == {ENCODER, POOLER, HEADS["sequence"]}
    assert lines_of(checkpoint.vocab) == WORDS
    difference = parity.forward_difference(checkpoint, keras_hub.FORMAT.framework, str(tmp_path))
    assert difference is not None
    assert difference <= 1e-5
    features = parity.fixed_input(checkpoint.config)
    features["token_ids"], features["padding_mask"] = features.pop("input_ids"), features.pop("input_mask")
    np.testing.assert_allclose(parity.our_outputs(checkpoint)["logits"], classifier(features), atol=1e-5)


def test_what_keras_hub_would_compute_otherwise_is_refused(
    exact_config: BertConfig, tiny_config: BertConfig, tmp_path: pathlib.Path
):
    hugging_face.write(sample(dataclasses.replace(exact_config, layer_norm_eps=1e-12)), str(tmp_path / "hf"))
    to_preset = options(tmp_path / "hf", tmp_path / "preset", to_format="keras_hub")
    with pytest.raises(UserError, match="hidden_act gelu_exact; keras-hub's .* with gelu.*--hidden_act=gelu takes"):
        conversion.convert(to_preset)
    with pytest.raises(UserError, match="has one rate: make them equal first"):
        conversion.convert(dataclasses.replace(to_preset, hidden_act="gelu"))
    with pytest.raises(UserError, match="layer_norm_eps 1e-05"):
        keras_hub.write(sample(dataclasses.replace(tiny_config, layer_norm_eps=1e-5)), str(tmp_path / "other"))
    with pytest.raises(UserError, match="no pooler, which keras-hub's backbone needs"):
        keras_hub.write(sample(tiny_config, frozenset({ENCODER})), str(tmp_path / "other"))
    assert not (tmp_path / "preset").exists()


# Sizes


def test_new_tokens_start_as_the_mean_of_their_pieces(tiny_config: BertConfig):
    before = sample(tiny_config)
    after = resize.add_tokens(before, ["running", "##ming", "[ENTITY]"])
    assert after.config.vocab_size == 81
    assert lines_of(after.vocab) == [*WORDS, "running", "##ming", "[ENTITY]"]
    table, grown = (one.weights["word_embeddings/embeddings"] for one in (before, after))
    np.testing.assert_array_equal(grown[:78], table)
    np.testing.assert_allclose(grown[78], _mean(table, "running"), rtol=1e-6)
    np.testing.assert_allclose(grown[79], _mean(table, "ming"), rtol=1e-6)
    bias = before.weights["masked_lm_output/bias"]
    np.testing.assert_allclose(after.weights["masked_lm_output/bias"][79], _mean(bias, "ming"), rtol=1e-6)
    outputs = parity.our_outputs(after)
    assert outputs["masked_lm_logits"].shape[-1] == 81


def _mean(table: np.ndarray, word: str) -> np.ndarray:
    pieces = {"running": ["r", "##u", "##n", "##n", "##ing"], "ming": ["m", "##ing"]}[word]
    return table[[WORDS.index(piece) for piece in pieces]].mean(axis=0)


def test_new_tokens_that_were_unknown_start_as_the_mean_of_all_rows(tiny_config: BertConfig, tmp_path: pathlib.Path):
    before = sample(tiny_config)
    tf1.write(before, str(tmp_path / "google"))
    (tmp_path / "new.txt").write_text("dogs\n日\n", encoding="utf-8")
    lines = conversion.convert(
        options(tmp_path / "google", tmp_path / "out", new_tokens_file=str(tmp_path / "new.txt"))
    )
    assert (
        "changed: 2 tokens in new rows, each the mean of the pieces that it was cut into so far; "
        "of all rows where that was [UNK]: 日"
    ) in lines
    _, after = reading.read(str(tmp_path / "out"))
    table, grown = (one.weights["word_embeddings/embeddings"] for one in (before, after))
    np.testing.assert_allclose(grown[79], table.mean(axis=0), rtol=1e-5)


def test_unused_tokens_give_their_rows(tiny_config: BertConfig):
    words = [*WORDS[:70], "[unused0]", "[unused1]", *WORDS[72:]]
    before = dataclasses.replace(sample(tiny_config), vocab="".join(f"{word}\n" for word in words))
    after = resize.add_tokens(before, ["dogs"], "unused")
    assert lines_of(after.vocab) == [*words[:70], "dogs", *words[71:]]
    assert after.config == before.config
    table, changed = (one.weights["word_embeddings/embeddings"] for one in (before, after))
    expected = table[[WORDS.index("dog"), WORDS.index("##s")]].mean(axis=0)
    np.testing.assert_allclose(changed[70], expected, rtol=1e-6)
    np.testing.assert_array_equal(np.delete(changed, 70, 0), np.delete(table, 70, 0))
    with pytest.raises(UserError, match=r"3 new tokens but 2 \[unused...\] ones"):
        resize.add_tokens(before, ["dogs", "cats", "mats"], "unused")


@pytest.mark.parametrize(("tokens", "message"), [
    (["cat"], "'cat' is in the vocabulary already"),
    (["dogs", "dogs"], "'dogs' is in the vocabulary already, or given twice"),
    (["Dogs"], "could never be found in a text, which is cut into .'dogs'.; give it as the uncased tokenizer"),
    (["a-b"], "could never be found"),
])  # fmt: skip
def test_tokens_that_would_be_of_no_use_are_refused(tokens: list[str], message: str, tiny_config: BertConfig):
    with pytest.raises(UserError, match=message):
        resize.add_tokens(sample(tiny_config), tokens)


def test_positions_are_tiled_or_interpolated(tiny_config: BertConfig):
    before = sample(tiny_config)
    table = before.weights["position_embeddings/embeddings"]  # [32, H]
    tiled = resize.extend_positions(before, 80)
    assert tiled.config.max_position_embeddings == 80
    np.testing.assert_array_equal(tiled.weights["position_embeddings/embeddings"], [*table, *table, *table[:16]])
    stretched = resize.extend_positions(before, 63, "interpolated").weights["position_embeddings/embeddings"]
    np.testing.assert_allclose(stretched[::2], table, rtol=1e-6)
    np.testing.assert_allclose(stretched[1::2], (table[:-1] + table[1:]) / 2, rtol=1e-5, atol=1e-7)
    with pytest.raises(UserError, match="the model reads 32 positions; 32 are not more"):
        resize.extend_positions(before, 32)
    with pytest.raises(UserError, match="convert without --optimizer"):
        resize.extend_positions(with_optimizer(before), 80)


# The command and official_bert.load


def test_the_command_says_what_it_read_and_proves_what_it_wrote(
    tiny_config: BertConfig, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    tf1.write(sample(tiny_config), str(tmp_path / "google"))
    (tmp_path / "new.txt").write_text("dogs\n\ncats\n")
    command = [sys.executable, "-m", "convert_checkpoint", f"--from={tmp_path}/google", f"--to={tmp_path}/out"]
    command += [f"--new_tokens_file={tmp_path}/new.txt", "--max_position_embeddings=48"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"read Google TF1 checkpoint {tmp_path}/google: encoder, pooler, masked-LM head")
    assert "46 tensors, 2,368 parameters" in lines[0]
    assert lines[1:5] == [
        "tensors: 46 loaded, none missing, none unexpected; left behind: none",
        "changed: 2 tokens in new rows, each the mean of the pieces that it was cut into so far",
        "changed: position embeddings tiled, from 32 to 48",
        "round trip: 46 tensors read back, largest difference 0",
    ]
    assert lines[5].startswith(f"written official_bert checkpoint {tmp_path}/out")
    assert "vocabulary of 80, uncased; up to 48 positions" in lines[5]
    model, config, _ = loading.load_pretraining_model(str(tmp_path / "out"))
    assert config.vocab_size == 80
    assert model.count_params() > 0
    with pytest.raises(SystemExit, match="1"):
        run_command("convert", command[3:])
    expected = f"error: {tmp_path}/out is there already; give the name of a new or empty folder\n"
    assert capsys.readouterr().err.endswith(expected)


def test_nothing_is_left_of_a_conversion_that_fails(
    tiny_config: BertConfig, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    tf1.write(sample(tiny_config), str(tmp_path / "google"))
    true_write = tf1.write

    def wrong_write(checkpoint, folder):
        weights = {name: value * np.float32(1.0001) for name, value in checkpoint.weights.items()}
        true_write(dataclasses.replace(checkpoint, weights=weights), folder)
        return checkpoint

    monkeypatch.setitem(FORMATS, "tf1", dataclasses.replace(FORMATS["tf1"], write=wrong_write))
    with pytest.raises(UserError, match="reads back with a difference of"):
        conversion.convert(options(tmp_path / "google", tmp_path / "out", to_format="tf1"))
    assert [path.name for path in tmp_path.iterdir()] == ["google"]


@pytest.mark.parametrize("format_name", list(WRITABLE))
def test_load_returns_encoder_configuration_and_tokenizer(
    format_name: str, tiny_config: BertConfig, tmp_path: pathlib.Path
):
    checkpoint = sample(tiny_config)
    FORMATS[format_name].write(checkpoint, str(tmp_path))
    encoder, config, tokenizer = official_bert.load(str(tmp_path))
    assert config == tiny_config
    assert tokenizer.tokenize("The cat") == ["the", "cat"]
    features = parity.fixed_input(config)
    layers, pooled = Reference(checkpoint.weights, config).encode(**features)
    outputs = encoder(features)
    np.testing.assert_allclose(outputs["sequence_output"], layers[-1], atol=1e-5)
    np.testing.assert_allclose(outputs["pooled_output"], pooled, atol=1e-5)


def test_load_works_under_a_distribution_scope(tiny_config: BertConfig, tmp_path: pathlib.Path):
    checkpoint = sample(tiny_config)
    hugging_face.write(checkpoint, str(tmp_path))
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        encoder = official_bert.load(str(tmp_path)).encoder
    for variable in encoder.variables:
        assert isinstance(variable.value, tf.distribute.DistributedValues)
        np.testing.assert_array_equal(variable, checkpoint.weights[variable.path])


def test_load_gives_no_random_pooler(tiny_config: BertConfig, tmp_path: pathlib.Path):
    hugging_face.write(sample(tiny_config, frozenset({ENCODER, MASKED_LM})), str(tmp_path))
    assert set(official_bert.load(str(tmp_path)).encoder.output) == {"sequence_output"}


def test_init_checkpoint_takes_converted_weights(exact_config: BertConfig, tmp_path: pathlib.Path):
    checkpoint = sample(exact_config)
    hugging_face.write(checkpoint, str(tmp_path / "hf"))
    conversion.convert(options(tmp_path / "hf", tmp_path / "ours"))
    config = BertConfig.from_json_file(str(tmp_path / "ours" / "bert_config.json"))
    assert config == exact_config
    model = build_pretraining_model(config)
    assert initial_weights.load_weights(model, str(tmp_path / "ours")).unused == []
    for variable in model.variables:
        np.testing.assert_array_equal(variable, checkpoint.weights[variable.path])
