"""Fine-tuned models of every kind convert to the classes of other libraries and back, with the same answers."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest

import official_bert
from official_bert.checkpoints import checksums, parity
from official_bert.checkpoints.formats import finetuned, hugging_face, keras_hub
from official_bert.checkpoints.loading import open_model
from tests.checkpoints.checkpoint_samples import SAMPLE_CONFIG, change_json, convert
from tests.conftest import ROOT
from tests.make import assert_rejected, write_vocab

MODELS: dict[str, tuple[str, dict[str, Any], str, str | None]] = {
    "classifier": ("TextClassifier", {"labels": ["noun", "verb", "möglich"]}, "BertForSequenceClassification",
                   "single_label_classification"),
    "several": ("TextClassifier", {"labels": ["a", "b"], "multi_label": True}, "BertForSequenceClassification",
                "multi_label_classification"),
    "regressor": ("TextRegressor", {}, "BertForSequenceClassification", "regression"),
    "tagger": ("TokenTagger", {"labels": ["N", "V"]}, "BertForTokenClassification", None),
    "answerer": ("QuestionAnswerer", {"max_seq_length": 16, "doc_stride": 5}, "BertForQuestionAnswering", None),
    "choice": ("MultipleChoice", {}, "BertForMultipleChoice", None),
}  # fmt: skip


def save_random_model(name: str, folder: pathlib.Path) -> Any:
    """Saves a model with random weights and biases with save_checkpoint, and returns it."""
    class_name, settings, *_ = MODELS[name]
    settings = {"max_seq_length": 16, "vocab_file": write_vocab(folder / "vocab.txt"), **settings}
    model = getattr(official_bert, class_name).from_checkpoint(SAMPLE_CONFIG, **settings)
    rng = np.random.default_rng(0)
    for variable in model.variables:
        variable.assign(rng.normal(1.0 if "gamma" in variable.path else 0.0, 0.3, variable.shape))
    (folder / "vocab.txt").unlink()
    model.save_checkpoint(str(folder / "ours"))
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_fine_tuned_models_are_converted_to_hugging_face_and_back(name: str, tmp_path: pathlib.Path):
    model = save_random_model(name, tmp_path)
    lines = convert(tmp_path / "ours", tmp_path / "theirs", to_format="hugging_face")
    _, _, name_of_class, problem_type = MODELS[name]
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["architectures"] == [name_of_class]
    assert config.get("problem_type") == problem_type
    assert any("cannot store the settings of the task" in line and "max_seq_length" in line for line in lines)
    checkpoint = open_model(str(tmp_path / "ours"))
    features = parity.make_fixed_input(checkpoint.config)
    theirs = hugging_face.transformers_outputs(checkpoint, str(tmp_path / "theirs"), features)
    np.testing.assert_allclose(parity.compute_outputs(checkpoint)["logits"], theirs["logits"], atol=1e-5)
    lines = convert(tmp_path / "theirs", tmp_path / "back")
    assert any("does not state the settings of its task; assumed: pair" in line for line in lines)
    again = type(model).from_checkpoint(str(tmp_path / "back"), max_seq_length=model.max_seq_length)
    for mine, other in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, other)
    assert again.labels == model.labels


def test_a_classifier_keeps_its_weights_in_other_formats_and_its_task_if_tokens_are_added(tmp_path: pathlib.Path):
    model = save_random_model("classifier", tmp_path)
    (tmp_path / "new.txt").write_text("dogs\n")
    convert(tmp_path / "ours", tmp_path / "grown", new_tokens_file=str(tmp_path / "new.txt"))
    grown = official_bert.TextClassifier.from_checkpoint(str(tmp_path / "grown"))
    assert finetuned.read_task_spec(str(tmp_path / "grown")) == model._task_spec()
    assert grown.bert_config.vocab_size == SAMPLE_CONFIG.vocab_size + 1
    assert official_bert.load(str(tmp_path / "grown")).config == grown.bert_config
    weights, grown_weights = (open_model(str(tmp_path / name)).weights for name in ("ours", "grown"))
    rows = {"word_embeddings/embeddings": SAMPLE_CONFIG.vocab_size}
    assert all(np.array_equal(grown_weights[name][: rows.get(name)], value) for name, value in weights.items())
    for format_name, labels in (("keras_hub", None), ("hugging_face", model.labels)):
        convert(tmp_path / "ours", tmp_path / format_name, to_format=format_name)
        there = open_model(str(tmp_path / format_name))
        assert there.labels == labels
        assert there.weights.keys() == weights.keys()
        assert all(np.array_equal(there.weights[name], value) for name, value in weights.items())


def test_the_kind_of_a_classifier_is_noted_if_it_is_lost_or_assumed(tmp_path: pathlib.Path):
    save_random_model("several", tmp_path)
    lines = convert(tmp_path / "ours", tmp_path / "google", to_format="tf1")
    assert "note: the Google TF1 format cannot store that the classifier is for multi label" in lines
    lines = convert(tmp_path / "google", tmp_path / "back")
    assert any('assumed: kind "classification", pair false, ' in line for line in lines)


@pytest.mark.slow
def test_keras_hub_computes_the_logits_of_a_converted_classifier(tmp_path: pathlib.Path):
    import keras_hub as hub

    save_random_model("classifier", tmp_path)
    checkpoint = open_model(str(tmp_path / "ours"))
    keras_hub.write(checkpoint, str(tmp_path / "theirs"))
    names = {"token_ids": "input_ids", "segment_ids": "segment_ids", "padding_mask": "input_mask"}
    features = parity.make_fixed_input(SAMPLE_CONFIG)
    classifier = hub.models.BertTextClassifier.from_preset(str(tmp_path / "theirs"))
    theirs = classifier({name: features[ours] for name, ours in names.items()})
    np.testing.assert_allclose(parity.compute_outputs(checkpoint)["logits"], theirs, atol=1e-5)


def test_fine_tuned_models_that_a_format_cannot_store_are_rejected(tmp_path: pathlib.Path):
    save_random_model("tagger", tmp_path)
    folder, target = tmp_path / "ours", tmp_path / "target"
    other = str(ROOT / "configs/quickstart.json")
    for options, names in (
        ({"to_format": "keras_hub"}, "pooler"),
        ({"optimizer": True}, (folder, "--optimizer")),
        ({"bert_config_file": other}, (f"--bert_config_file={other}", folder / "bert_config.json")),
    ):
        assert_rejected(names, convert, folder, target, **options)
    (folder / checksums.CHECKSUM_FILE).unlink()
    change_json(folder / "task.json", head="bilstm", lstm_units=4)
    assert_rejected("--head=bilstm", convert, folder, target, to_format="hugging_face")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours"]
