"""keras-hub presets are read and written, and keras-hub computes the same outputs."""

import contextlib
import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import pytest

from official_bert.checkpoints import conversion, finetuned, parity
from official_bert.checkpoints.checkpoint import ENCODER, MASKED_LM, POOLER, LoadOverrides
from official_bert.checkpoints.formats import hugging_face, keras_hub
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.vocabulary import split_vocab
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.tokenization.casing import UNCASED
from official_bert.tokenization.exact import FullTokenizer
from tests.checkpoints.checkpoint_samples import HEADS, SAMPLE_CONFIG, conversion_options, sample
from tests.conftest import WORDS
from tests.tokenization.test_exact import ACCENTED


def test_keras_hub_loads_our_preset_and_gives_the_same_outputs(tiny_config: BertConfig, tmp_path: pathlib.Path):
    import keras_hub as hub

    written = keras_hub.write(sample(tiny_config), str(tmp_path))
    assert set(written.parts) == {ENCODER, POOLER, MASKED_LM}
    assert "cannot store it: next-sentence head" in written.notes[0]
    assert "masked-LM head uses the exact GELU" in written.notes[1]
    difference = parity.compare_forward_pass(written, keras_hub.FORMAT.framework, str(tmp_path))
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
    checkpoint = open_model(str(tmp_path), LoadOverrides())
    assert set(checkpoint.parts) == {ENCODER, POOLER, HEADS["sequence"]}
    assert split_vocab(checkpoint.vocab) == WORDS
    difference = parity.compare_forward_pass(checkpoint, keras_hub.FORMAT.framework, str(tmp_path))
    assert difference is not None
    assert difference <= 1e-5
    features = parity.make_fixed_input(checkpoint.config)
    features["token_ids"], features["padding_mask"] = features.pop("input_ids"), features.pop("input_mask")
    np.testing.assert_allclose(parity.compute_outputs(checkpoint)["logits"], classifier(features), atol=1e-5)


def test_models_that_keras_hub_cannot_represent_are_rejected(
    exact_config: BertConfig, tiny_config: BertConfig, tmp_path
):
    hugging_face.write(sample(dataclasses.replace(exact_config, layer_norm_eps=1e-12)), str(tmp_path / "hf"))
    to_preset = conversion_options(tmp_path / "hf", tmp_path / "preset", to_format="keras_hub")
    with pytest.raises(UserError, match="hidden_act gelu_exact; keras-hub's .* with gelu.*pass --hidden_act=gelu"):
        conversion.convert(to_preset)
    with pytest.raises(UserError, match="has only one rate; make them equal first"):
        conversion.convert(dataclasses.replace(to_preset, hidden_act="gelu"))
    with pytest.raises(UserError, match="layer_norm_eps 1e-05"):
        keras_hub.write(sample(dataclasses.replace(tiny_config, layer_norm_eps=1e-5)), str(tmp_path / "other"))
    with pytest.raises(UserError, match="no pooler, which keras-hub's backbone needs"):
        keras_hub.write(sample(tiny_config, frozenset({ENCODER})), str(tmp_path / "other"))
    assert not (tmp_path / "preset").exists()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("config.json", [], "config.json contains list; expected a JSON object"),
        ("config.json", {"class_name": ["BertBackbone"]}, "config.json describes a .*; expected a BertBackbone"),
        ("config.json", {"config": None}, "config.json has no configuration of the backbone"),
        ("config.json", {"config": {"num_layers": 1}}, "config.json lacks dropout, hidden_dim, "),
        ("config.json", {"num_layers": "2"}, "config.json: num_hidden_layers is '2'; expected a whole number"),
        ("config.json", {"dropout": [0.1]}, "config.json: hidden_dropout_prob is .*; expected a number"),
        ("tokenizer.json", {"config": "lowercase"}, "tokenizer.json is damaged: lowercase is not true or false"),
        ("task.json", [], "task.json contains list; expected a JSON object"),
        ("task.json", {"class_name": {}}, None),  # the task is unknown, so only the backbone is read
    ],
)
def test_invalid_presets_of_keras_hub_are_rejected(name: str, value: Any, message: str | None, tmp_path: pathlib.Path):
    keras_hub.write(sample(SAMPLE_CONFIG), str(tmp_path))
    path = tmp_path / name
    content = json.loads(path.read_text())
    if isinstance(value, dict):
        inner = content["config"] if set(value) & set(content["config"]) else content
        inner |= value
        value = content
    path.write_text(json.dumps(value))
    (tmp_path / "checksums.json").unlink()
    with pytest.raises(UserError, match=message) if message else contextlib.nullcontext():
        open_model(str(tmp_path), LoadOverrides())


def test_a_preset_of_keras_hub_is_not_one_of_our_fine_tuned_folders(tmp_path: pathlib.Path):
    keras_hub.write(sample(SAMPLE_CONFIG), str(tmp_path))
    assert (tmp_path / "task.json").exists()
    assert not finetuned.is_finetuned(str(tmp_path))


def test_presets_keep_accents_if_the_vocabulary_contains_accents(tiny_config: BertConfig, tmp_path: pathlib.Path):
    import keras_hub as hub

    plain = dataclasses.replace(sample(tiny_config, frozenset({ENCODER, POOLER})), casing=ACCENTED)
    with pytest.raises(UserError, match="cannot state that lower-cased texts keep their accents if the vocabulary"):
        keras_hub.write(plain, str(tmp_path / "plain"))
    vocab = str(plain.vocab).replace("\nsun\n", "\nsün\n")
    keras_hub.write(dataclasses.replace(plain, vocab=vocab), str(tmp_path / "preset"))
    checkpoint = open_model(str(tmp_path / "preset"), LoadOverrides())
    assert checkpoint.casing == ACCENTED
    theirs = hub.models.BertTokenizer.from_preset(str(tmp_path / "preset"))
    ours = checkpoint.tokenizer
    for text in ("the SÜN sun, süns!", "The dög, sat"):
        assert list(np.asarray(theirs(text))) == ours.convert_tokens_to_ids(ours.tokenize(text))
    with pytest.raises(
        UserError, match=r"--strip_accents contradicts .*tokenizer.json, which states how the model was trained"
    ):
        open_model(str(tmp_path / "preset"), LoadOverrides(strip_accents=True))
    path = tmp_path / "preset" / "tokenizer.json"
    (tmp_path / "preset" / "checksums.json").unlink()
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"config": content["config"] | {"lowercase": False, "strip_accents": True}}))
    with pytest.raises(UserError, match="deletes accents without lower-casing: BERT's rules delete"):
        open_model(str(tmp_path / "preset"), LoadOverrides())
    # As keras-hub writes it by default, for a model trained without accents.
    path.write_text(json.dumps(content))
    (tmp_path / "preset" / "assets" / "tokenizer" / "vocabulary.txt").write_text(str(plain.vocab))
    checkpoint = open_model(str(tmp_path / "preset"), LoadOverrides())
    assert checkpoint.casing == UNCASED
    assert any("its vocabulary contains none" in note for note in checkpoint.notes)
    assert open_model(str(tmp_path / "preset"), LoadOverrides(strip_accents=False)).casing == ACCENTED
