"""The starting point of fine-tuning: vocabulary and casing of the checkpoint, and the head of the model."""

import dataclasses
import pathlib

import numpy as np
import pytest

from official_bert import TextClassifier, TextRegressor, TokenTagger
from official_bert.checkpoints.checkpoint import (
    ENCODER,
    PRETRAINING,
    SEQUENCE_CLASSIFIER,
    TOKEN_CLASSIFIER,
    LoadOverrides,
)
from official_bert.checkpoints.conversion import convert
from official_bert.checkpoints.formats import hugging_face, tf1
from official_bert.checkpoints.options import ConversionOptions
from official_bert.finetuning.initial_model import NO_POOLER, read_initial_model, select_head_weights
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.modeling.head_input import HeadInput
from tests.checkpoints.checkpoint_samples import sample
from tests.make import WORDS, assert_rejected, build_text_model, tiny_config, write_text, write_vocab

CONFIG = tiny_config(num_hidden_layers=1)


@pytest.fixture
def pretrained(tmp_path: pathlib.Path) -> str:
    """A Google release: a vocab.txt, and no file that says whether it is uncased."""
    folder = tmp_path / "release"
    folder.mkdir()
    tf1.write(sample(CONFIG), str(folder))
    (folder / "tokenizer_config.json").unlink()
    (folder / "checksums.json").unlink()
    return str(folder)


def write_classifier(folder: pathlib.Path, part: str = SEQUENCE_CLASSIFIER, labels=None, **fields) -> str:
    """Writes a Hugging Face folder with a classifier."""
    parts = (PRETRAINING | {part}) - {"masked-LM head", "next-sentence head"}
    checkpoint = sample(CONFIG, parts, classes=len(labels or "ab"))
    folder.mkdir()
    hugging_face.write(dataclasses.replace(checkpoint, labels=labels, **fields), str(folder))
    return str(folder)


@pytest.fixture(scope="module")
def fine_tuned(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a classifier. Tests must not change it."""
    folder = tmp_path_factory.mktemp("classifier") / "fine-tuned"
    build_text_model(config=CONFIG, labels=["a", "b", "c"]).save_checkpoint(str(folder))
    return str(folder)


def test_a_vocabulary_unlike_the_checkpoints_is_rejected(pretrained: str, fine_tuned: str, tmp_path: pathlib.Path):
    swapped = [*WORDS[:10], WORDS[11], WORDS[10], *WORDS[12:]]
    cases = [(pretrained, swapped, ("line 11", "'g'", "'f'")), (fine_tuned, swapped, ("line 11",))]
    for folder, words, names in (*cases, (pretrained, WORDS[:-2], (len(WORDS) - 2, len(WORDS)))):
        own = write_vocab(tmp_path / "own.txt", words)
        names = (own, folder, "--vocab_file", *names)
        assert_rejected(names, read_initial_model, folder, LoadOverrides(vocab_file=own))
    same = LoadOverrides(vocab_file=write_vocab(tmp_path / "own.txt"))
    assert read_initial_model(pretrained, same).vocab.split() == WORDS


def test_a_casing_unlike_the_checkpoints_is_rejected(pretrained: str, fine_tuned: str, tmp_path: pathlib.Path):
    assert read_initial_model(pretrained).casing.do_lower_case
    states = f"{pretrained}/tokenizer_config.json"
    names = (f"{pretrained}/vocab.txt", "--do_lower_case=true", states)
    assert_rejected(names, read_initial_model, pretrained, LoadOverrides(do_lower_case=False))
    write_text(pathlib.Path(states), '{"do_lower_case": false}')
    assert not read_initial_model(pretrained, LoadOverrides(do_lower_case=False)).casing.do_lower_case
    names = ("--do_lower_case", states, "convert --do_lower_case")
    assert_rejected(names, read_initial_model, pretrained, LoadOverrides(do_lower_case=True))
    convert(ConversionOptions(from_=pretrained, to=str(tmp_path / "corrected"), do_lower_case=True))
    assert read_initial_model(str(tmp_path / "corrected")).casing.do_lower_case
    names = ("--nodo_lower_case", f"{fine_tuned}/tokenizer_config.json")
    assert_rejected(names, read_initial_model, fine_tuned, LoadOverrides(do_lower_case=False))


def test_random_weights_use_the_casing_of_the_vocabulary(tmp_path: pathlib.Path):
    vocab_file = write_vocab(tmp_path / "cased.txt", [*WORDS[:-3], "Angela", "Merkel", "X"])
    for source in (CONFIG, write_text(tmp_path / "config.json", CONFIG.to_json())):
        assert not read_initial_model(source, LoadOverrides(vocab_file=vocab_file)).casing.do_lower_case


@pytest.mark.parametrize("part", [SEQUENCE_CLASSIFIER, TOKEN_CLASSIFIER, "fine-tuned"])
def test_the_head_is_reordered_for_classes_in_another_order(part: str, fine_tuned: str, tmp_path, capsys):
    model_class = TokenTagger if part == TOKEN_CLASSIFIER else TextClassifier
    folder = fine_tuned if part == "fine-tuned" else write_classifier(tmp_path / "hf", part, labels=("a", "b", "c"))
    capsys.readouterr()
    same, other = (model_class.from_checkpoint(folder, **each) for each in ({}, {"labels": ["b", "c", "a"]}))
    assert (same.labels, other.labels) == (("a", "b", "c"), ("b", "c", "a"))
    told = capsys.readouterr().out
    assert "is not used" not in told
    assert part == "fine-tuned" or told.count("the head is the checkpoint's") == 2
    for one, two in zip(same.variables, other.variables, strict=True):
        np.testing.assert_array_equal(np.array(one)[..., [1, 2, 0]] if "classifier" in one.path else one, two)


def test_a_fine_tuned_head_is_not_used_for_other_classes_or_another_input(fine_tuned: str, capsys):
    for labels, name in (("bad", "linear"), ("abc", "bilstm")):
        head = ClassificationSpec(labels=tuple(labels), head_input=HeadInput(name))
        assert select_head_weights(read_initial_model(fine_tuned), head) is None
    TextClassifier.from_checkpoint(fine_tuned, labels=[*"abcd"])
    note = "the encoder comes from a model fine-tuned on text_classifier; its head, for classification, is not used"
    assert f"note: {note}\n" in capsys.readouterr().out


def test_only_a_pretrained_model_without_a_pooler_has_a_note(tmp_path: pathlib.Path):
    (tmp_path / "encoder").mkdir()
    tf1.write(sample(CONFIG, {ENCODER}), str(tmp_path / "encoder"))
    assert read_initial_model(str(tmp_path / "encoder")).notes == (NO_POOLER,)
    build_text_model("TokenTagger", config=CONFIG, labels=["a", "b"]).save_checkpoint(str(tmp_path / "tagger"))
    assert read_initial_model(str(tmp_path / "tagger")).notes == ()


_USED, _UNUSED = "the head is the checkpoint's", "the head is new: train it before you predict"


@pytest.mark.parametrize(("stored", "model_class", "settings", "fragments"), [
    ({"labels": ("neg", "pos")}, TextClassifier, {"labels": ["x", "y"]}, ["(neg, pos), but", "x, y", _UNUSED]),
    ({"labels": ("neg", "pos")}, TextClassifier, {"labels": [*"abc"]}, ["2 classes (neg, pos)", "a, b, c", _UNUSED]),
    ({}, TextClassifier, {"labels": ["bad", "good"]}, ["2 classes without names", "bad, good in this order", _USED]),
    ({"labels": ("a", "b"), "kind": "multi_label"}, TextClassifier, {},
     [_USED, "note: labels=['a', 'b'] is", "note: multi_label=True is"]),
    ({"kind": "multi_label"}, TextClassifier, {"labels": None}, ["2 classes, but", "labels=[...]", _UNUSED]),
    ({"labels": ("a", "b"), "kind": "multi_label"}, TextClassifier, {"multi_label": False},
     ["it is for multi label; the classifier is not used", _UNUSED]),
    ({"labels": ("stars",), "kind": "regression"}, TextRegressor, {}, [_USED]),
])  # fmt: skip
def test_a_head_is_reused_for_the_same_classes_and_kind(stored, model_class, settings, fragments, tmp_path, capsys):
    model = model_class.from_checkpoint(write_classifier(tmp_path / "hf", **stored), **settings)
    told = capsys.readouterr().out
    assert [each for each in fragments if each not in told] == []
    assert "unknown label" not in told
    assert model.output_shape[1:] == (() if model_class is TextRegressor else (len(model.labels or "ab"),))
    if not settings:
        assert model.spec.kind == stored["kind"]


@pytest.mark.parametrize(("part", "model_class", "kind"), [
    (TOKEN_CLASSIFIER, TextClassifier, None), (SEQUENCE_CLASSIFIER, TokenTagger, None),
    (SEQUENCE_CLASSIFIER, TextClassifier, "regression"),
])  # fmt: skip
def test_labels_are_not_taken_from_a_head_of_another_kind(part: str, model_class, kind: str | None, tmp_path):
    folder = write_classifier(tmp_path / "hf", part, labels=("B-PER", "O"), kind=kind)
    assert model_class.from_checkpoint(folder).labels is None


def test_an_unknown_kind_of_classifier_is_refused(tmp_path: pathlib.Path):
    folder = pathlib.Path(write_classifier(tmp_path / "hf", labels=("a", "b"), kind="multi_label"))
    (folder / "checksums.json").unlink()
    content = (folder / "config.json").read_text()
    write_text(folder / "config.json", content.replace("multi_label_classification", "ranking"))
    names = (folder / "config.json", "problem_type", "'ranking'", "single_label_classification")
    assert_rejected(names, TextClassifier.from_checkpoint, str(folder))
