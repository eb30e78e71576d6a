"""Starting from another model: folders written by save_checkpoint, and .keras files."""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.checkpoints import conversion, loading, options
from official_bert.checkpoints.checkpoint import PRETRAINING
from official_bert.finetuning.initial_model import describe_initial_model, read_initial_model
from official_bert.tokenization.added_tokens import AddedToken
from official_bert.tokenization.casing import UNCASED
from tests.make import VOCAB, assert_rejected, compile_eagerly, list_weights, tiny_config, write_text
from tests.make import build_text_model as build

TEXTS = ["the cat sat", "a dog ran in the sun"]
take = official_bert.TextClassifier.from_checkpoint


def assert_has(model, weights: dict, parts: tuple[str, ...] = ("",)) -> None:
    for path, value in list_weights(model).items():
        if path.startswith(parts):
            np.testing.assert_array_equal(value, weights[path], err_msg=path)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> str:
    """A folder with all pre-training heads."""
    folder = str(tmp_path_factory.mktemp("pretrained") / "model")
    build("MaskedLM", seed=7).save_checkpoint(folder)
    return folder


def test_a_trained_masked_lm_is_saved_as_a_complete_pretraining_checkpoint(pretrained, tmp_path, capsys):
    folder, kept = str(tmp_path / "adapted"), loading.open_model(pretrained).weights
    model = compile_eagerly(official_bert.MaskedLM.from_checkpoint(pretrained), "sgd")
    model.fit(TEXTS, verbose=0)
    model.save_checkpoint(folder)
    checkpoint = loading.open_model(folder)
    assert set(checkpoint.parts) == PRETRAINING  # includes the parts that a masked LM does not use
    assert_has(model, checkpoint.weights)
    assert any((kept[path] != value).any() for path, value in checkpoint.weights.items())
    for path in ("pooler/kernel", "next_sentence/kernel"):
        np.testing.assert_array_equal(checkpoint.weights[path], kept[path])
    assert official_bert.load_pretraining_model(folder)[1] == model.bert_config
    assert read_initial_model(folder).vocab == VOCAB
    conversion.convert(options.ConversionOptions(from_=folder, to=str(tmp_path / "google"), to_format="tf1"))
    capsys.readouterr()
    for name, settings in (("TextClassifier", {"labels": ["a", "b"]}), ("MaskedLM", {}), ("TextEncoder", {})):
        loaded = getattr(official_bert, name).from_checkpoint(folder, **settings)
        assert_has(loaded, checkpoint.weights, ("layer_", "word_embeddings", "pooler", "masked_lm"))
    assert "random" not in capsys.readouterr().out


def test_save_checkpoint_replaces_its_own_folder_but_no_other_files(tmp_path, monkeypatch):
    folder, mine = tmp_path / "model", tmp_path / "mine"
    first, model = build("MaskedLM", seed=1), build("MaskedLM", seed=2)
    first.save_checkpoint(str(folder))

    def stopped(self, path):
        (folder / f"{os.path.basename(path)}.data-00000-of-00001").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(tf.train.Checkpoint, "write", stopped)
        with pytest.raises(KeyboardInterrupt):
            model.save_checkpoint(str(folder))
    assert_has(first, loading.open_model(str(folder)).weights)  # a save that is stopped leaves the earlier weights
    model.save_checkpoint(str(folder))
    assert_has(official_bert.MaskedLM.from_checkpoint(str(folder)), list_weights(model))
    assert len(list(folder.glob("ckpt-*"))) == 2  # an index file and a data file
    write_text(mine / "task.json", "{}")
    for each, path, name in (
        (build("MaskedLM", tiny_config()), folder, "bert_config.json"),
        (model, mine, "task.json"),
    ):
        assert_rejected((path, name), each.save_checkpoint, str(path))
    embeddings = model.get_layer("word_embeddings").embeddings
    embeddings.assign(embeddings * np.nan)
    assert_rejected(("word_embeddings/embeddings", "finite"), model.save_checkpoint, str(folder))


def test_from_checkpoint_accepts_keras_files_of_all_models(pretrained, tmp_path, capsys):
    path, masked = tmp_path / "model.keras", tmp_path / "masked.keras"
    model = build(pair=True, max_seq_length=12, seed=3)
    model.save(path)
    same = take(path)
    assert (same.labels, same.spec.pair, same.max_seq_length) == (("a", "b"), True, 12)
    assert_has(same, list_weights(model))
    told = capsys.readouterr().out
    assert all(text in told for text in ("the head is the checkpoint's", "labels=['a', 'b'] is taken from"))
    encoder_parts = ("layer_", "word_embeddings", "pooler")
    assert_has(official_bert.TextRegressor.from_checkpoint(path), list_weights(model), encoder_parts)
    assert "head is new: train it" in capsys.readouterr().out
    # The file of a masked LM also contains the pooler and the next-sentence head.
    official_bert.MaskedLM.from_checkpoint(pretrained).save(masked)
    official_bert.MaskedLM.from_checkpoint(masked).save_checkpoint(str(tmp_path / "again"))
    again = loading.open_model(str(tmp_path / "again")).weights
    assert_has(official_bert.TextEncoder.from_checkpoint(masked), again)
    keras.tree.map_structure(np.testing.assert_array_equal, again, loading.open_model(pretrained).weights)
    told = capsys.readouterr().out
    assert told.count("the masked-LM head is the checkpoint's") == 2
    assert "random" not in told


def test_thresholds_follow_their_classes_and_are_dropped_with_a_new_head(tmp_path, capsys):
    settings = {"multi_label": True, "thresholds": [0.1, 0.5, 0.9], "temperature": 2.0}
    model = build(labels=["a", "b", "c"], **settings)
    expected = model.predict(TEXTS)[:, [2, 0, 1]]
    folder, file = tmp_path / "model", tmp_path / "model.keras"
    model.save_checkpoint(str(folder))
    model.save(file)
    for source in (folder, file):
        turned = take(source, labels=["c", "a", "b"])
        assert turned.spec.settings == {"thresholds": [0.9, 0.1, 0.5], "temperature": 2.0}
        np.testing.assert_allclose(turned.predict(TEXTS), expected, rtol=1e-6)
    given = take(folder, labels=["b", "a", "c"], thresholds=[0.3, 0.2, 0.1])
    assert given.spec.settings["thresholds"] == [0.3, 0.2, 0.1]
    told = capsys.readouterr().out
    assert not [text for text in ("the head is new", "labels=") if text in told]
    for other in ({"labels": ["x", "y", "z"]}, {"multi_label": False}):
        assert not {"thresholds", "temperature"} & take(folder, **other).spec.settings.keys()
        assert "the head is new" in capsys.readouterr().out
    build(thresholds=[0.25, 0.75]).save_checkpoint(str(tmp_path / "two"))
    assert take(tmp_path / "two", labels=["b", "a"]).thresholds == (0.75, 0.25)


def test_a_note_reports_a_missing_pooler(tmp_path, capsys):
    build("TokenTagger").save(tmp_path / "tagger.keras")
    official_bert.TokenTagger.from_checkpoint(tmp_path / "tagger.keras")
    take(tiny_config(), vocab_file=write_text(tmp_path / "vocab.txt", VOCAB), labels=["a", "b"])  # has no weights
    assert "no pooler" not in capsys.readouterr().out
    take(tmp_path / "tagger.keras", labels=["a", "b"])
    assert "the checkpoint has no pooler; its weights are random" in capsys.readouterr().out


def test_lora_updates_are_merged_into_the_saved_weights(tmp_path):
    for name in ("TextEncoder", "MaskedLM"):  # folders of a fine-tuned model and of a pre-trained one
        model, folder = build(name), str(tmp_path / name)
        layer = model.get_layer("layer_0_output")
        layer.enable_lora(2)
        layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))
        model.save_checkpoint(folder)
        np.testing.assert_array_equal(loading.open_model(folder).weights["layer_0_output/kernel"], layer.kernel)


def test_errors_about_unsupported_files_say_what_is_supported(tmp_path, pause_collection):
    path, model = str(tmp_path / "model.keras"), build()
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(tmp_path / "other.keras")
    model.save(path)
    model.quantize("int8")
    model.save(tmp_path / "small.keras")
    assert_rejected((tmp_path / "other.keras", "Sequential", "TextClassifier"), take, tmp_path / "other.keras")
    assert_rejected(tmp_path / "none.keras", take, tmp_path / "none.keras", labels=["a", "b"])
    for function, small in ((take, "small.keras"), (model.save_checkpoint, "folder")):
        assert_rejected(("8-bit", ".keras", "saved_model", "quantize"), function, str(tmp_path / small))
    assert_rejected(("--nodo_lower_case", path), take, path, do_lower_case=False)
    assert_rejected((path, "from_checkpoint", "TextClassifier", "save_checkpoint(FOLDER)"), official_bert.load, path)


def test_accents_and_added_tokens_survive_all_ways_to_save_a_model(tmp_path):
    added = (AddedToken("[E1]", special=True, normalized=False),)
    casing = UNCASED._replace(strip_accents=False, added_tokens=added)
    vocab = VOCAB.replace("\nsun\n", "\nsün\n").replace("\na\n", "\n[E1]\n")
    model, path, folder = build(vocab=vocab, do_lower_case=casing), tmp_path / "model.keras", tmp_path / "folder"
    model.save(path)
    model.save_checkpoint(str(folder))
    for taken in (type(model).load(str(path)), take(path), take(folder)):
        assert taken.casing == casing
        ids = taken.preprocessor(np.array(["SÜN[E1] SUN"]))["input_ids"].numpy()[0, 1:-1]
        assert [taken.vocab.splitlines()[index] for index in ids] == ["sün", "[E1]", "s", "##u", "##n"]
        assert taken.get_config()["strip_accents"] is False
    for source in (path, folder):
        assert_rejected(("--strip_accents", source), take, source, strip_accents=True)
    description = describe_initial_model(read_initial_model(str(folder)), "x", has_head=False)
    assert "uncased, accented vocabulary" in description
    assert build(vocab=vocab, strip_accents=False).casing == casing._replace(added_tokens=())
