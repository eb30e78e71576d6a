"""keras-hub presets are read and written, and keras-hub computes the same outputs."""

import dataclasses
import importlib.util
import json
import pathlib

import h5py
import numpy as np
import pytest

from official_bert.checkpoints import parity
from official_bert.checkpoints.checkpoint import ENCODER, MASKED_LM, POOLER, LoadOverrides
from official_bert.checkpoints.formats import finetuned, hugging_face, keras_hub
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.vocabulary import split_vocab
from official_bert.tokenization.casing import UNCASED
from tests.checkpoints import checkpoint_samples as samples
from tests.make import WORDS, assert_rejected
from tests.tokenization.test_exact import ACCENTED, CASINGS


def sample_with_casing(config, casing):
    """Returns a checkpoint whose vocabulary contains an accent."""
    plain = samples.sample(config, frozenset({ENCODER, POOLER, MASKED_LM}))
    return dataclasses.replace(plain, casing=casing, vocab=str(plain.vocab).replace("\nsun\n", "\nsün\n"))


def read_tensors(path) -> dict[str, bytes]:
    """Returns the values of all tensors in a file, except the tensors of a backbone that was saved with its task."""
    tensors: dict[str, bytes] = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: tensors.update({name: item[()].tobytes()} if hasattr(item, "shape") else {}))
    return {name: value for name, value in tensors.items() if "bert_backbone" not in name}


def test_a_preset_is_written_with_the_names_of_its_library(tiny_config, tmp_path):
    theirs, classifier, masked_lm = (tmp_path / name for name in ("theirs/preset", "classifier", "masked_lm"))
    samples.unpacked("keras_nlp_0.14", tmp_path).rename(theirs.parent)
    keras_hub.write(open_model(str(theirs)), str(classifier))
    backbone, task = "model.weights.h5", "task.weights.h5"
    assert read_tensors(classifier / backbone) == read_tensors(theirs / backbone)
    assert read_tensors(classifier / task).keys() == read_tensors(theirs / task).keys()
    for name, more in (("config.json", "dtype"), ("tokenizer.json", "config_file")):
        ours, golden = (json.loads((folder / name).read_text())["config"] for folder in (classifier, theirs))
        assert ours.keys() - golden.keys() == {more}
        assert name != "config.json" or ours.items() > golden.items()
    keras_hub.write(samples.sample(tiny_config), str(masked_lm))
    # Importing keras-hub takes seconds, so its source is searched for the names.
    package = pathlib.Path(str(importlib.util.find_spec("keras_hub").origin)).parent
    head = (package / "src/layers/modeling/masked_lm_head.py").read_text()
    attributes = {name.split("/")[2] for name in read_tensors(masked_lm / task) if "masked_lm_head/_" in name}
    assert [f"self.{attribute} = " in head for attribute in attributes] == [True, True]
    written = {}

    def note_class(values):
        if values.get("registered_name"):
            written[values["registered_name"]] = values
        return values

    for path in [*classifier.glob("*.json"), *masked_lm.glob("*.json")]:
        json.loads(path.read_text(), object_hook=note_class)
    for name in written:
        source = package.parent / f"{written[name]['module'].replace('.', '/')}.py"
        assert f"class {name.removeprefix('keras_hub>')}(" in source.read_text()
        assert name == f"keras_hub>{written[name]['class_name']}"
    classes = ("BertBackbone", "BertTokenizer", "BertTextClassifier", "BertMaskedLM")
    assert {f"keras_hub>{name}" for name in classes} <= written.keys()


@pytest.mark.slow
@pytest.mark.parametrize("casing", CASINGS)
def test_keras_hub_loads_our_preset_and_gives_the_same_outputs(casing, tiny_config, tmp_path):
    import keras_hub as hub

    written = keras_hub.write(sample_with_casing(tiny_config, casing), str(tmp_path))
    assert parity.compare_forward_pass(written, keras_hub.FORMAT.framework, str(tmp_path)) <= 1e-5
    tokenizer, ours = hub.models.BertTokenizer.from_preset(str(tmp_path)), open_model(str(tmp_path)).tokenizer
    for text in ("the cat, SÜN sun, süns unaffable!", "The dög, sat", "walking ran"):
        assert list(np.asarray(tokenizer(text))) == ours.convert_tokens_to_ids(ours.tokenize(text))
    task = hub.models.BertMaskedLM.from_preset(str(tmp_path))
    bias = next(variable for variable in task.weights if variable.shape == (len(WORDS),))
    np.testing.assert_array_equal(bias, written.weights["masked_lm_output/bias"])


@pytest.mark.slow
def test_presets_that_keras_hub_wrote_are_read(vocab_file, tmp_path):
    import keras_hub as hub

    backbone = hub.models.BertBackbone(len(WORDS), 3, 2, 8, 16, max_sequence_length=16)
    tokenizer = hub.models.BertTokenizer(vocab_file, lowercase=True)
    preprocessor = hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=16)
    classifier = hub.models.BertTextClassifier(backbone, 3, preprocessor)
    for variable in classifier.weights:
        variable.assign(variable + np.random.default_rng(0).normal(0.0, 0.3, variable.shape))
    classifier.save_to_preset(str(tmp_path))
    checkpoint = open_model(str(tmp_path))
    assert set(checkpoint.parts) == {ENCODER, POOLER, samples.HEADS["sequence"]}
    assert split_vocab(checkpoint.vocab) == WORDS
    assert parity.compare_forward_pass(checkpoint, keras_hub.FORMAT.framework, str(tmp_path)) <= 1e-5
    features = parity.make_fixed_input(checkpoint.config)
    features["token_ids"], features["padding_mask"] = features.pop("input_ids"), features.pop("input_mask")
    keras_hub.write(checkpoint, str(tmp_path / "ours"))
    for each in (classifier, hub.models.BertTextClassifier.from_preset(str(tmp_path / "ours"))):
        np.testing.assert_allclose(parity.compute_outputs(checkpoint)["logits"], each(features), atol=1e-5)


def test_what_keras_hub_cannot_represent_is_rejected_or_noted(exact_config, tiny_config, tmp_path):
    hugging_face.write(samples.sample(dataclasses.replace(exact_config, layer_norm_eps=1e-12)), str(tmp_path / "hf"))
    for changes, name in (({}, "--hidden_act=gelu"), ({"hidden_act": "gelu"}, "attention_probs_dropout_prob")):
        assert_rejected(name, samples.convert, tmp_path / "hf", tmp_path / "preset", to_format="keras_hub", **changes)
    other = str(tmp_path / "preset")
    epsilon = samples.sample(dataclasses.replace(tiny_config, layer_norm_eps=1e-5))
    assert_rejected(("layer_norm_eps", 1e-05, 1e-12), keras_hub.write, epsilon, other)
    assert_rejected("pooler", keras_hub.write, samples.sample(tiny_config, frozenset({ENCODER})), other)
    assert not (tmp_path / "preset").exists()
    written = keras_hub.write(samples.sample(tiny_config), other)
    assert set(written.parts) == {ENCODER, POOLER, MASKED_LM}
    assert "next-sentence head" in written.notes[0]
    assert "exact GELU" in written.notes[1]
    assert (tmp_path / "preset" / "task.json").exists()
    assert not finetuned.is_finetuned(other)


def test_presets_keep_accents_if_the_vocabulary_contains_accents(tiny_config, tmp_path):
    plain = dataclasses.replace(samples.sample(tiny_config), casing=ACCENTED)
    assert_rejected(("keras-hub", "--strip_accents"), keras_hub.write, plain, str(tmp_path))
    keras_hub.write(sample_with_casing(tiny_config, ACCENTED), str(tmp_path))
    assert open_model(str(tmp_path)).casing == ACCENTED
    path = tmp_path / "tokenizer.json"
    samples.assert_unreadable(tmp_path, "--strip_accents", path, strip_accents=True)
    (tmp_path / "checksums.json").unlink()
    content = path.read_text()
    samples.change_json(path, **{"config/lowercase": False, "config/strip_accents": True})
    samples.assert_unreadable(tmp_path, tmp_path, "accents")
    # As keras-hub writes it by default, for a model trained without accents.
    path.write_text(content)
    (tmp_path / "assets" / "tokenizer" / "vocabulary.txt").write_text(str(plain.vocab))
    checkpoint = open_model(str(tmp_path))
    assert checkpoint.casing == UNCASED
    assert any("its vocabulary contains none" in note for note in checkpoint.notes)
    assert open_model(str(tmp_path), LoadOverrides(strip_accents=False)).casing == ACCENTED
