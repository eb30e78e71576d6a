"""Starting from another model: folders written by save_checkpoint, and .keras files."""

import functools
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.checkpoints import conversion
from official_bert.checkpoints.checkpoint import PRETRAINING
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.options import ConversionOptions
from official_bert.errors import UserError
from official_bert.finetuning.initial_model import describe_initial_model, read_initial_model
from tests.conftest import WORDS
from tests.make import VOCAB, refusal, tiny_config

CONFIG = tiny_config(num_hidden_layers=1, max_position_embeddings=16)
TEXTS = ["the cat sat", "a dog ran in the sun"]


def read_weights(model) -> dict:
    return {variable.path: np.asarray(variable) for variable in model.variables}


def assert_has(model, weights: dict, parts: tuple[str, ...] = ("",)) -> None:
    for path, value in read_weights(model).items():
        if path.startswith(parts):
            np.testing.assert_array_equal(value, weights[path], err_msg=path)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> str:
    """A folder with all pre-training heads."""
    folder = str(tmp_path_factory.mktemp("pretrained") / "model")
    official_bert.MaskedLM(CONFIG, VOCAB, seed=7).save_checkpoint(folder)
    return folder


def test_a_masked_lm_that_has_learned_is_a_folder_for_every_next_step(pretrained, tmp_path, capsys):
    folder = str(tmp_path / "adapted")
    model = official_bert.MaskedLM.from_checkpoint(pretrained)
    before = read_weights(model)
    model.compile("sgd", run_eagerly=True)
    model.fit(TEXTS, verbose=0)
    model.save_checkpoint(folder)
    checkpoint = open_model(folder)
    assert set(checkpoint.parts) == PRETRAINING  # includes the parts that a masked LM does not use
    assert_has(model, checkpoint.weights)
    assert any((before[path] != value).any() for path, value in checkpoint.weights.items() if path in before)
    kept = open_model(pretrained).weights
    for path in ("pooler/kernel", "next_sentence/kernel"):
        np.testing.assert_array_equal(checkpoint.weights[path], kept[path])
    assert official_bert.load_pretraining_model(folder)[1] == CONFIG
    assert read_initial_model(folder).vocab == VOCAB
    conversion.convert(ConversionOptions(from_=folder, to=str(tmp_path / "google"), to_format="tf1"))
    capsys.readouterr()
    for name, settings in (("TextClassifier", {"labels": ["a", "b"]}), ("MaskedLM", {}), ("TextEncoder", {})):
        loaded = getattr(official_bert, name).from_checkpoint(folder, **settings)
        assert_has(loaded, checkpoint.weights, ("layer_", "word_embeddings", "pooler", "masked_lm"))
    assert "random" not in capsys.readouterr().out


def test_a_folder_is_written_again_and_others_are_left_alone(tmp_path):
    folder = str(tmp_path / "model")
    for seed in (1, 2):
        model = official_bert.MaskedLM(CONFIG, VOCAB, seed=seed)
        model.save_checkpoint(folder)
        assert_has(official_bert.MaskedLM.from_checkpoint(folder), read_weights(model))
    assert len([name for name in os.listdir(folder) if name.endswith(".index")]) == 1
    other = tiny_config(max_position_embeddings=16)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "task.json").write_text("{}")
    for each, path, name in (
        (official_bert.MaskedLM(other, VOCAB), folder, "bert_config.json"),
        (model, str(tmp_path / "mine"), "task.json"),
    ):
        assert f"contains {name}, which does not belong to this model" in refusal(each.save_checkpoint, path)
    model.get_layer("word_embeddings").embeddings.assign(np.full((len(WORDS), 8), np.nan))
    message = refusal(model.save_checkpoint, folder)
    assert "word_embeddings/embeddings of the model has values that are not finite" in message


def test_a_save_that_is_stopped_leaves_the_earlier_weights(tmp_path, monkeypatch):
    folder, first = str(tmp_path / "model"), official_bert.MaskedLM(CONFIG, VOCAB, seed=1)
    first.save_checkpoint(folder)

    def stopped(self, path):
        (tmp_path / "model" / f"{os.path.basename(path)}.data-00000-of-00001").write_bytes(b"half")
        raise KeyboardInterrupt

    second = official_bert.MaskedLM(CONFIG, VOCAB, seed=2)
    with monkeypatch.context() as patched:
        patched.setattr(tf.train.Checkpoint, "write", stopped)
        with pytest.raises(KeyboardInterrupt):
            second.save_checkpoint(folder)
    assert_has(first, open_model(folder).weights)
    second.save_checkpoint(folder)
    assert_has(second, open_model(folder).weights)
    assert len([name for name in os.listdir(folder) if name.startswith("ckpt-")]) == 2  # an index file and a data file


@pytest.mark.slow
def test_a_keras_file_of_any_model_is_taken_as_other_checkpoints_are(pretrained, tmp_path, capsys):
    classifier = official_bert.TextClassifier(CONFIG, VOCAB, labels=["a", "b"], pair=True, max_seq_length=12, seed=3)
    masked = official_bert.MaskedLM.from_checkpoint(pretrained)
    for name, model in (("classifier", classifier), ("masked", masked)):
        model.save(tmp_path / f"{name}.keras")
    of_classifier, path = read_weights(classifier), tmp_path / "classifier.keras"
    same = official_bert.TextClassifier.from_checkpoint(path)
    assert (same.labels, same.head.pair, same.max_seq_length) == (("a", "b"), True, 12)
    assert_has(same, of_classifier)
    turned = official_bert.TextClassifier.from_checkpoint(path, labels=["b", "a"])
    np.testing.assert_array_equal(
        turned.get_layer("sequence_classifier").kernel, of_classifier["sequence_classifier/kernel"][:, ::-1]
    )
    assert "the head is the checkpoint's" in capsys.readouterr().out
    for name, settings in (("TextClassifier", {"labels": ["x", "y"]}), ("TextRegressor", {}), ("MaskedLM", {})):
        loaded = getattr(official_bert, name).from_checkpoint(path, **settings)
        assert_has(loaded, of_classifier, ("layer_", "word_embeddings", "pooler"))
        assert "head is new: train it" in capsys.readouterr().out
    # The file of a masked LM also contains the pooler and the next-sentence head.
    all_weights = open_model(pretrained).weights
    assert_has(official_bert.TextEncoder.from_checkpoint(tmp_path / "masked.keras"), all_weights)
    official_bert.MaskedLM.from_checkpoint(tmp_path / "masked.keras").save_checkpoint(str(tmp_path / "again"))
    again = open_model(str(tmp_path / "again")).weights
    for name, value in all_weights.items():
        np.testing.assert_array_equal(again[name], value)
    assert "random" not in capsys.readouterr().out


def test_thresholds_go_with_their_classes_and_not_with_a_new_head(tmp_path, capsys):
    settings = {"multi_label": True, "thresholds": [0.1, 0.5, 0.9], "temperature": 2.0}
    model = official_bert.TextClassifier(CONFIG, VOCAB, labels=["a", "b", "c"], **settings)
    model.save_checkpoint(str(tmp_path / "model"))
    model.save(tmp_path / "model.keras")
    for source in (tmp_path / "model", tmp_path / "model.keras"):
        read = functools.partial(official_bert.TextClassifier.from_checkpoint, source)
        turned = read(labels=["c", "a", "b"])
        decided = turned.head.settings
        assert (decided["thresholds"], decided["temperature"]) == ([0.9, 0.1, 0.5], 2.0)
        np.testing.assert_allclose(turned.predict(TEXTS), model.predict(TEXTS)[:, [2, 0, 1]], rtol=1e-6)
        given = read(labels=["b", "a", "c"], thresholds=[0.3, 0.2, 0.1])
        assert given.head.settings["thresholds"] == [0.3, 0.2, 0.1]
        assert "the head is new" not in capsys.readouterr().out
        for other in ({"labels": ["x", "y", "z"]}, {"labels": ["x", "y"]}, {"multi_label": False}):
            assert not {"thresholds", "temperature"} & read(**other).head.settings.keys()
            assert "the head is new" in capsys.readouterr().out


def test_a_model_without_a_pooler_says_that_the_next_one_s_is_random(tmp_path, capsys):
    official_bert.TokenTagger(CONFIG, VOCAB, labels=["D", "N"]).save(tmp_path / "tagger.keras")
    official_bert.TokenTagger.from_checkpoint(tmp_path / "tagger.keras")
    assert "no pooler" not in capsys.readouterr().out
    official_bert.TextClassifier.from_checkpoint(tmp_path / "tagger.keras", labels=["a", "b"])
    assert "the checkpoint has no pooler; its weights are random" in capsys.readouterr().out


def test_low_rank_updates_are_part_of_the_weights(tmp_path):
    encoder = official_bert.TextEncoder(CONFIG, VOCAB)
    layer = encoder.get_layer("layer_0_output")
    layer.enable_lora(2)
    layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))
    encoder.save_checkpoint(str(tmp_path / "model"))
    loaded = official_bert.TextEncoder.from_checkpoint(str(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.get_layer("layer_0_output").kernel, layer.kernel)


@pytest.mark.usefixtures("pause_collection")
def test_files_that_cannot_be_taken_are_named_with_what_can(tmp_path):
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(tmp_path / "other.keras")
    model = official_bert.TextClassifier(CONFIG, VOCAB, labels=["a", "b"])
    model.save(tmp_path / "model.keras")
    model.quantize("int8")
    model.save(tmp_path / "small.keras")
    take = official_bert.TextClassifier.from_checkpoint
    message = refusal(take, tmp_path / "other.keras", labels=["a", "b"])
    assert "other.keras contains a Sequential" in message
    assert "TextClassifier" in message
    assert f"there is no file {tmp_path}/none.keras" in refusal(take, tmp_path / "none.keras", labels=["a", "b"])
    expected = "has 8-bit weights, which only .keras files and saved_model exports can store; save or export"
    assert expected in refusal(take, tmp_path / "small.keras")
    assert "has 8-bit weights" in refusal(model.save_checkpoint, str(tmp_path / "folder"))
    with pytest.raises(UserError, match="--nodo_lower_case contradicts .*model.keras"):
        take(tmp_path / "model.keras", do_lower_case=False)
    with pytest.raises(UserError, match=r"from_checkpoint of TextClassifier .*save_checkpoint\(FOLDER\)"):
        official_bert.load(str(tmp_path / "model.keras"))


@pytest.mark.slow
def test_accents_that_a_model_keeps_are_kept_on_every_way(tmp_path):
    vocab = VOCAB.replace("\nsun\n", "\nsün\n")

    def pieces(model) -> list[str]:
        ids = model.preprocessor(np.array(["SÜN SUN"]))["input_ids"].numpy()[0, 1:-1].tolist()
        return [vocab.splitlines()[index] for index in ids]

    kept = ["sün", "s", "##u", "##n"]
    model = official_bert.TextClassifier(CONFIG, vocab, labels=["a", "b"], strip_accents=False)
    plain = official_bert.TextClassifier(CONFIG, vocab, labels=["a", "b"])
    assert pieces(model) == kept
    assert pieces(plain) == kept[1:] * 2
    assert model.get_config() | {"name": plain.name} == plain.get_config() | {"strip_accents": False}
    model.save(tmp_path / "model.keras")
    model.save_checkpoint(str(tmp_path / "folder"))
    official_bert.MaskedLM(CONFIG, vocab, strip_accents=False).save_checkpoint(str(tmp_path / "pretrained"))
    take = official_bert.TextClassifier.from_checkpoint
    for source in ("model.keras", "folder"):
        taken = take(tmp_path / source)
        assert pieces(taken) == kept
        texts = ["SÜN", "SUN"]
        np.testing.assert_allclose(taken.predict(texts, verbose=0), model.predict(texts, verbose=0), atol=1e-8)
        assert "--strip_accents contradicts" in refusal(take, tmp_path / source, strip_accents=True)
    assert pieces(official_bert.TextClassifier.load(str(tmp_path / "model.keras"))) == kept
    assert official_bert.load(str(tmp_path / "pretrained"), strip_accents=False).tokenizer.tokenize("SÜN") == ["sün"]
    assert "uncased, accented vocabulary" in describe_initial_model(
        read_initial_model(str(tmp_path / "folder")), "x", has_head=False
    )


@pytest.mark.parametrize("name", ["TextClassifier", "MaskedLM", "TextEncoder", "MultipleChoice"])
def test_the_backbone_is_the_encoder_of_the_model(name: str, tmp_path):
    settings = {"labels": ["a", "b"]} if name == "TextClassifier" else {}
    model = getattr(official_bert, name)(tiny_config(num_hidden_layers=1), VOCAB, **settings)
    path = str(tmp_path / "model.keras")
    model.save(path)
    outputs = model.backbone(model.preprocessor(["the cat sat"]))
    assert outputs["sequence_output"].shape == (1, 5, 8)
    assert {id(each) for each in model.backbone.variables} <= {id(each) for each in model.variables}
    loaded = type(model).load(path).backbone(model.preprocessor(["the cat sat"]))
    np.testing.assert_array_equal(loaded["sequence_output"], outputs["sequence_output"])
