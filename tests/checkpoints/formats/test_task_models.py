"""Fine-tuned models of every kind convert to the classes of other libraries and back, with the same answers."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest

import official_bert
from official_bert.checkpoints import checksums, conversion, finetuned, parity
from official_bert.checkpoints.formats import hugging_face
from official_bert.checkpoints.loading import open_model
from official_bert.errors import UserError
from tests.checkpoints.checkpoint_samples import conversion_options
from tests.conftest import WORDS

TEXTS = ["the cat", "a dog ran and the cat sat .", "play"]
MODELS: dict[str, tuple[str, dict[str, Any], str, str | None]] = {
    "classifier": ("TextClassifier", {"labels": ["noun", "verb", "möglich"]}, "BertForSequenceClassification",
                   "single_label_classification"),
    "several": ("TextClassifier", {"labels": ["a", "b"], "multi_label": True}, "BertForSequenceClassification",
                "multi_label_classification"),
    "regressor": ("TextRegressor", {}, "BertForSequenceClassification", "regression"),
    "tagger": ("TokenTagger", {"labels": ["N", "V"]}, "BertForTokenClassification", None),
    "answerer": ("QuestionAnswerer", {"max_seq_length": 20, "doc_stride": 5}, "BertForQuestionAnswering", None),
    "choice": ("MultipleChoice", {}, "BertForMultipleChoice", None),
}  # fmt: skip


def save_random_model(name: str, folder: pathlib.Path, tiny_config: Any) -> Any:
    """Saves a model with random weights and biases to FOLDER/model with save_checkpoint, and returns it."""
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    class_name, settings, *_ = MODELS[name]
    settings = {"max_seq_length": 16, **settings}
    kind = getattr(official_bert, class_name)
    model = kind.from_checkpoint(tiny_config, vocab_file=str(folder / "vocab.txt"), **settings)
    rng = np.random.default_rng(0)
    for variable in model.variables:
        variable.assign(rng.normal(1.0 if "gamma" in variable.path else 0.0, 0.3, variable.shape))
    model.save_checkpoint(str(folder / "model"))
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_fine_tuned_models_are_converted_to_hugging_face_and_back(name: str, tiny_config: Any, tmp_path: pathlib.Path):
    model = save_random_model(name, tmp_path / "ours", tiny_config)
    source, there, back = (tmp_path / each for each in ("ours/model", "theirs", "back"))
    lines = conversion.convert(conversion_options(source, there, to_format="hugging_face"))
    _, _, name_of_class, problem_type = MODELS[name]
    config = json.loads((there / "config.json").read_text())
    assert config["architectures"] == [name_of_class]
    assert config.get("problem_type") == problem_type
    if model.labels:
        assert tuple(config["id2label"].values()) == model.labels
    assert any("cannot store the settings of the task" in line and "max_seq_length" in line for line in lines)
    checkpoint = open_model(str(source))
    theirs = hugging_face.transformers_outputs(checkpoint, str(there), parity.make_fixed_input(checkpoint.config))
    np.testing.assert_allclose(parity.compute_outputs(checkpoint)["logits"], theirs["logits"], atol=1e-5)
    lines = conversion.convert(conversion_options(there, back))
    assert any("does not state the settings of its task; assumed: pair" in line for line in lines)
    again = type(model).from_checkpoint(str(back), max_seq_length=model.max_seq_length)
    for mine, other in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, other)
    assert again.labels == model.labels


def test_a_classifier_is_converted_to_keras_hub_and_back(tiny_config: Any, tmp_path: pathlib.Path):
    hub = pytest.importorskip("keras_hub")
    model = save_random_model("classifier", tmp_path / "ours", tiny_config)
    source, there, back = (tmp_path / each for each in ("ours/model", "theirs", "back"))
    conversion.convert(conversion_options(source, there, to_format="keras_hub"))
    classifier = hub.models.BertTextClassifier.from_preset(str(there))
    features = parity.make_fixed_input(tiny_config)
    names = {"token_ids": "input_ids", "segment_ids": "segment_ids", "padding_mask": "input_mask"}
    theirs = classifier({name: features[ours] for name, ours in names.items()})
    checkpoint = open_model(str(source))
    np.testing.assert_allclose(parity.compute_outputs(checkpoint)["logits"], theirs, atol=1e-5)
    conversion.convert(conversion_options(there, back))
    again = official_bert.TextClassifier.from_checkpoint(str(back), labels=model.labels, max_seq_length=16)
    np.testing.assert_allclose(again.predict(TEXTS), model.predict(TEXTS), atol=1e-5)


def test_a_fine_tuned_model_keeps_its_task_if_tokens_are_added(tiny_config: Any, tmp_path: pathlib.Path):
    model = save_random_model("classifier", tmp_path / "ours", tiny_config)
    (tmp_path / "new.txt").write_text("dogs\n")
    options = conversion_options(
        tmp_path / "ours" / "model", tmp_path / "grown", new_tokens_file=str(tmp_path / "new.txt")
    )
    conversion.convert(options)
    grown = official_bert.TextClassifier.from_checkpoint(str(tmp_path / "grown"))
    assert finetuned.read_task(str(tmp_path / "grown")) == model._task_spec()
    assert grown.bert_config.vocab_size == tiny_config.vocab_size + 1
    np.testing.assert_allclose(grown.predict(TEXTS), model.predict(TEXTS), atol=1e-6)
    assert official_bert.load(str(tmp_path / "grown")).config == grown.bert_config


def test_fine_tuned_models_that_a_format_cannot_store_are_rejected(tiny_config: Any, tmp_path: pathlib.Path):
    save_random_model("tagger", tmp_path / "ours", tiny_config)
    folder = tmp_path / "ours" / "model"
    with pytest.raises(UserError, match="has no pooler, which keras-hub's backbone needs"):
        conversion.convert(conversion_options(folder, tmp_path / "preset", to_format="keras_hub"))
    with pytest.raises(UserError, match="a fine-tuned model, which contains no optimizer state; remove --optimizer"):
        conversion.convert(conversion_options(folder, tmp_path / "other", optimizer=True))
    with pytest.raises(UserError, match="--bert_config_file is for checkpoints without a configuration"):
        conversion.convert(conversion_options(folder, tmp_path / "other", bert_config_file="x.json"))
    spec = json.loads((folder / "task.json").read_text())
    (folder / checksums.CHECKSUM_FILE).unlink()
    (folder / "task.json").write_text(json.dumps({**spec, "head": "bilstm", "lstm_units": 4}))
    with pytest.raises(UserError, match="--head=bilstm, which checkpoint formats cannot store"):
        conversion.convert(conversion_options(folder, tmp_path / "theirs", to_format="hugging_face"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours"]
