"""The starting point of fine-tuning: vocabulary and casing of the checkpoint, and the head of the model."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest

import official_bert
from official_bert.checkpoints.checkpoint import PRETRAINING, SEQUENCE_CLASSIFIER, TOKEN_CLASSIFIER
from official_bert.checkpoints.conversion import convert
from official_bert.checkpoints.formats import hugging_face, tf1
from official_bert.checkpoints.options import ConversionOptions
from official_bert.errors import UserError
from official_bert.finetuning.initial_model import read_initial_model, select_head_weights
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.modeling.config import BertConfig
from official_bert.modeling.head_input import HeadInput
from tests.checkpoints.checkpoint_samples import sample
from tests.conftest import WORDS
from tests.make import refusal

TEXTS = ["the cat sat", "a dog ran in the sun"]


@pytest.fixture
def pretrained(tiny_config: BertConfig, tmp_path: pathlib.Path) -> str:
    """A Google release: a vocab.txt, and no file that says whether it is uncased."""
    folder = tmp_path / "release"
    folder.mkdir()
    tf1.write(sample(tiny_config), str(folder))
    (folder / "tokenizer_config.json").unlink()
    (folder / "checksums.json").unlink()
    return str(folder)


def classifier(config: BertConfig, folder: pathlib.Path, part: str = SEQUENCE_CLASSIFIER, **fields: object) -> str:
    """A Hugging Face folder with a classifier."""
    checkpoint = sample(config, (PRETRAINING | {part}) - {"masked-LM head", "next-sentence head"})
    number = len(fields.get("labels", ("a", "b")))  # type: ignore[arg-type]
    weights = {
        name: value[..., :number] if "classifier" in name else value for name, value in checkpoint.weights.items()
    }
    folder.mkdir()
    hugging_face.write(dataclasses.replace(checkpoint, weights=weights, **fields), str(folder))  # type: ignore[arg-type]
    return str(folder)


def test_another_vocabulary_than_the_checkpoint_s_is_refused(pretrained: str, tmp_path: pathlib.Path):
    swapped = [*WORDS]
    swapped[10], swapped[11] = swapped[11], swapped[10]
    (tmp_path / "swapped.txt").write_text("\n".join(swapped))
    with pytest.raises(UserError, match=r"swapped.txt is not the vocabulary of .* \(line 11 is 'g' instead of 'f'\)"):
        read_initial_model(pretrained, str(tmp_path / "swapped.txt"))
    (tmp_path / "shorter.txt").write_text("\n".join(WORDS[:-2]))
    with pytest.raises(UserError, match=rf"it has {len(WORDS) - 2} tokens instead of {len(WORDS)}.*remove --vocab"):
        read_initial_model(pretrained, str(tmp_path / "shorter.txt"))
    (tmp_path / "same.txt").write_text("\n".join(WORDS))
    assert read_initial_model(pretrained, str(tmp_path / "same.txt")).vocab.split() == WORDS


def test_unused_tokens_may_be_others(tiny_config: BertConfig, tmp_path: pathlib.Path):
    checkpoint = sample(tiny_config)
    tf1.write(dataclasses.replace(checkpoint, vocab="\n".join([*WORDS[:-1], "[unused7]"])), str(tmp_path))
    (tmp_path / "own.txt").write_text("\n".join([*WORDS[:-1], "zebra"]))
    assert "zebra" in read_initial_model(str(tmp_path), str(tmp_path / "own.txt")).vocab


def test_another_casing_than_the_checkpoint_s_is_refused(pretrained: str, tmp_path: pathlib.Path):
    assert read_initial_model(pretrained).casing.do_lower_case
    with pytest.raises(
        UserError, match=r"vocab.txt .*become \[UNK\]; pass --do_lower_case=true; or, .*tokenizer_config.json"
    ):
        read_initial_model(pretrained, do_lower_case=False)
    settings = pathlib.Path(pretrained, "tokenizer_config.json")
    settings.write_text('{"do_lower_case": false}')
    assert not read_initial_model(pretrained, do_lower_case=False).casing.do_lower_case
    told = refusal(read_initial_model, pretrained, do_lower_case=True)
    assert "--do_lower_case contradicts " in told
    assert "tokenizer_config.json" in told
    assert told.endswith("official-bert convert --do_lower_case")
    corrected = str(tmp_path / "corrected")
    convert(ConversionOptions(from_=pretrained, to=corrected, do_lower_case=True))
    assert read_initial_model(corrected).casing.do_lower_case


def test_a_fine_tuned_model_keeps_its_vocabulary_and_casing(tiny_config: BertConfig, vocab_file, tmp_path):
    model = official_bert.TextClassifier.from_checkpoint(tiny_config, labels=["a", "b"], vocab_file=vocab_file)
    model.save_checkpoint(str(tmp_path / "model"))
    (tmp_path / "reversed.txt").write_text("\n".join(WORDS[:5] + WORDS[:4:-1]))
    with pytest.raises(UserError, match="is not the vocabulary of"):
        read_initial_model(str(tmp_path / "model"), str(tmp_path / "reversed.txt"))
    with pytest.raises(UserError, match="contradicts"):
        official_bert.TextClassifier.from_checkpoint(str(tmp_path / "model"), do_lower_case=False)


def test_random_weights_take_the_casing_that_the_vocabulary_has(tiny_config: BertConfig, tmp_path: pathlib.Path):
    (tmp_path / "cased.txt").write_text("\n".join([*WORDS[:-3], "Angela", "Merkel", "X"]))
    for source in (tiny_config, str(tmp_path / "config.json")):
        (tmp_path / "config.json").write_text(tiny_config.to_json())
        assert not read_initial_model(source, str(tmp_path / "cased.txt")).casing.do_lower_case


@pytest.mark.parametrize("part", [SEQUENCE_CLASSIFIER, TOKEN_CLASSIFIER])
def test_classes_in_another_order_are_those_of_the_checkpoint(part: str, tiny_config: BertConfig, tmp_path, capsys):
    folder = classifier(tiny_config, tmp_path / "hf", part, labels=("neg", "pos", "neither"))
    model_class = official_bert.TextClassifier if part == SEQUENCE_CLASSIFIER else official_bert.TokenTagger
    same, other = (
        model_class.from_checkpoint(folder),
        model_class.from_checkpoint(folder, labels=["pos", "neither", "neg"]),
    )
    assert same.labels == ("neg", "pos", "neither")
    assert capsys.readouterr().out.count("the head is the checkpoint's") == 2
    ids = same.preprocessor(TEXTS)
    logits, reordered = (model.predict_on_batch(ids) for model in (same, other))
    np.testing.assert_array_equal(reordered, logits[..., [1, 2, 0]])


def test_classes_of_a_fine_tuned_model_may_have_another_order(tiny_config: BertConfig, vocab_file, tmp_path):
    model = official_bert.TextClassifier.from_checkpoint(tiny_config, labels=["a", "b", "c"], vocab_file=vocab_file)
    model.save_checkpoint(str(tmp_path / "model"))
    other = official_bert.TextClassifier.from_checkpoint(str(tmp_path / "model"), labels=["c", "a", "b"])
    np.testing.assert_allclose(other.predict(TEXTS), model.predict(TEXTS)[:, [2, 0, 1]], rtol=1e-6)
    initial = read_initial_model(str(tmp_path / "model"))
    assert select_head_weights(initial, ClassificationSpec(labels=("b", "a", "c"))) is not None
    assert select_head_weights(initial, ClassificationSpec(labels=("b", "a", "d"))) is None
    assert (
        select_head_weights(initial, ClassificationSpec(labels=("a", "b", "c"), head_input=HeadInput("bilstm"))) is None
    )


@pytest.mark.parametrize(("labels", "is_noted"), [(["b", "a"], False), (["a", "b", "c"], True)])
def test_a_note_reports_a_fine_tuned_model_whose_head_is_not_used(
    labels: list[str], is_noted: bool, tiny_config: BertConfig, vocab_file, tmp_path, capsys
):
    model = official_bert.TextClassifier.from_checkpoint(tiny_config, labels=["a", "b"], vocab_file=vocab_file)
    model.save_checkpoint(str(tmp_path / "model"))
    capsys.readouterr()
    official_bert.TextClassifier.from_checkpoint(str(tmp_path / "model"), labels=labels)
    note = "note: the encoder comes from a model fine-tuned on text_classifier\n"
    assert (note in capsys.readouterr().out) == is_noted


@pytest.mark.parametrize("labels", [["x", "y"], ["neg", "pos", "neither"]])
def test_a_classifier_of_other_classes_is_not_taken(labels: list[str], tiny_config: BertConfig, tmp_path, capsys):
    folder = classifier(tiny_config, tmp_path / "hf", labels=("neg", "pos"))
    model = official_bert.TextClassifier.from_checkpoint(folder, labels=labels)
    told = capsys.readouterr().out
    assert (
        f"classifier has 2 classes (neg, pos), but the model has {', '.join(labels)}; the classifier is not used"
        in told
    )
    assert "the head is new: train it before you predict" in told
    assert model.output_shape == (None, len(labels))


def test_classes_without_names_are_said_to_be_taken_in_order(tiny_config: BertConfig, tmp_path, capsys):
    folder = classifier(tiny_config, tmp_path / "hf")
    official_bert.TextClassifier.from_checkpoint(folder, labels=["bad", "good"])
    told = capsys.readouterr().out
    assert "classifier has 2 classes without names, which are assumed to be bad, good in this order" in told
    assert "the head is the checkpoint's" in told


def test_a_classifier_s_kind_is_what_its_configuration_says(tiny_config: BertConfig, tmp_path, capsys):
    several = classifier(tiny_config, tmp_path / "several", labels=("a", "b"), kind="multi_label")
    assert (
        json.loads((tmp_path / "several" / "config.json").read_text())["problem_type"] == "multi_label_classification"
    )
    assert official_bert.TextClassifier.from_checkpoint(several).head.kind == "multi_label"
    assert "the head is the checkpoint's" in capsys.readouterr().out
    official_bert.TextClassifier.from_checkpoint(several, multi_label=False)
    assert "it is for multi label; the classifier is not used" in capsys.readouterr().out
    value = classifier(tiny_config, tmp_path / "value", labels=("stars",), kind="regression")
    official_bert.TextRegressor.from_checkpoint(value)
    assert "the head is the checkpoint's" in capsys.readouterr().out
    (tmp_path / "several" / "checksums.json").unlink()
    config_file = tmp_path / "several" / "config.json"
    config_file.write_text(config_file.read_text().replace("multi_label_classification", "ranking"))
    with pytest.raises(UserError, match="problem_type 'ranking'; expected one of single_label_classification"):
        official_bert.TextClassifier.from_checkpoint(several)
