"""Hugging Face checkpoints are read and written, and transformers computes the same outputs."""

import dataclasses
import json
import unicodedata

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from official_bert.checkpoints import parity
from official_bert.checkpoints.checkpoint import ENCODER, POOLER, LoadOverrides
from official_bert.checkpoints.formats import hugging_face, hugging_face_config, hugging_face_files
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.vocabulary import split_vocab
from official_bert.modeling.config import BertConfig
from official_bert.tokenization.casing import UNCASED, make_casing
from official_bert.tokenization.exact import SPECIAL_TOKENS, FullTokenizer
from tests.checkpoints import checkpoint_samples as samples
from tests.make import assert_rejected
from tests.tokenization.test_exact import ACCENTED, CASINGS, REAL_VOCABULARIES


@pytest.fixture
def written(exact_config, tmp_path):
    """Writes a checkpoint to tmp_path."""
    samples.write_hugging_face(samples.sample(exact_config), tmp_path)
    return samples.sample(exact_config)


def rename_layer_norm(name):
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


@pytest.mark.parametrize("rename", [
    rename_layer_norm,
    lambda name: rename_layer_norm(name.removeprefix("bert.")),
    "module._orig_mod.model.{}".format,
])  # fmt: skip
def test_old_names_and_prefixes_of_wrappers_are_read(rename, written, tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({rename(name): value for name, value in load_file(path).items()}, path)
    samples.assert_equal(written, open_model(str(tmp_path)))


def test_a_configuration_without_model_type_is_read(written, tmp_path):
    config = json.loads((tmp_path / "config.json").read_text())
    del config["model_type"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    samples.assert_equal(written, open_model(str(tmp_path)))
    samples.change_json(tmp_path / "config.json", architectures=["RobertaModel"])
    samples.assert_unreadable(tmp_path, "'RobertaModel'")


def test_weights_have_the_permissions_of_the_other_files_and_may_be_sharded(written, tmp_path):
    modes = {path.name: path.stat().st_mode for path in tmp_path.iterdir()}
    assert modes["model.safetensors"] == modes["config.json"]
    tensors, weight_map = list(load_file(tmp_path / "model.safetensors").items()), {}
    (tmp_path / "model.safetensors").unlink()
    for shard, held in (("1.safetensors", dict(tensors[::2])), ("2.safetensors", dict(tensors[1::2]))):
        save_file(held, tmp_path / shard)
        weight_map |= dict.fromkeys(held, shard)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    for path in (tmp_path, index):
        samples.assert_equal(written, open_model(str(path)))


def test_an_untied_output_layer_is_rejected_and_a_copy_is_accepted(written, tmp_path):
    path, words = tmp_path / "model.safetensors", "bert.embeddings.word_embeddings.weight"
    tensors = load_file(path)
    tensors["bert.embeddings.position_ids"] = np.arange(32)[None]
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].copy()
    tensors["cls.predictions.decoder.weight"] = tensors[words].copy()
    save_file(tensors, path)
    samples.assert_equal(written, open_model(str(tmp_path)))
    tensors["cls.predictions.decoder.weight"][3, 2] += 1
    save_file(tensors, path)
    samples.assert_unreadable(tmp_path, path, "cls.predictions.decoder.weight", words, "save_pretrained")


def test_custom_heads_are_ignored_and_listed(written, tmp_path):
    # The classifier reads more than the encoder's output.
    own = {"bert.lstm.weight": (8, 4), "classifier.bias": (5,), "classifier.weight": (5, 16), "crf.transitions": (3, 3)}
    path = tmp_path / "model.safetensors"
    save_file(load_file(path) | {name: np.ones(shape, np.float32) for name, shape in own.items()}, path)
    found = open_model(str(tmp_path))
    samples.assert_equal(written, found)
    assert f"ignored 4 tensors of heads or programs that BERT does not have: {', '.join(own)}" in found.notes


def test_activations_are_translated():
    kinds = dict.fromkeys(("gelu", "gelu_python"), "gelu_exact")
    kinds |= {**dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu"), "relu": "relu"}
    kinds |= {theirs: ours for ours, theirs in hugging_face_config.ACTIVATIONS.items()}
    for changes, ours in (({}, "gelu_exact"), *(({"hidden_act": theirs}, ours) for theirs, ours in kinds.items())):
        config = {"model_type": "bert", "vocab_size": 9, **changes}
        assert hugging_face_config.read_config(config, "x").hidden_act == ours


def test_names_of_classes_have_one_different_name_for_each_class():
    read, named = hugging_face_config.read_labels, {"id2label": {"1": "yes", "0": "no"}}
    assert read(named, 2, "x") == read({**named, "label2id": {"yes": 1, "no": 0}}, 2, "x") == ("no", "yes")
    assert read({}, 2, "x") is read({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, 2, "x") is None
    for wrong in (["no", "yes"], {"0": "no"}, {"0": "no", "2": "yes"}, {"0": "no", "1": "no"}):
        assert_rejected(("x/config.json", "id2label", json.dumps(wrong)), read, {"id2label": wrong}, 2, "x")
    assert_rejected(("label2id", "id2label"), read, {**named, "label2id": {"yes": 0, "no": 1}}, 2, "x")


def test_models_other_than_bert_are_rejected():
    others = {"model_type": "roberta", "position_embedding_type": "relative_key", "is_decoder": True}
    for key, value in {**others, "hidden_act": "silu", "vocab_size": "many"}.items():
        names, config = ("x/config.json", key, repr(value)), {"model_type": "bert", "vocab_size": 9, key: value}
        assert_rejected(names, hugging_face_config.read_config, config, "x/config.json")


def test_the_vocabulary_is_read_from_tokenizer_json_if_it_is_the_only_file(tiny_config, tmp_path):
    checkpoint = dataclasses.replace(samples.sample(tiny_config), casing=make_casing(False))
    samples.write_hugging_face(checkpoint, tmp_path)
    for name in ("vocab.txt", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    samples.assert_equal(checkpoint, open_model(str(tmp_path)))
    samples.change_json(tmp_path / "tokenizer.json", **{"model/max_input_chars_per_word": 100})
    samples.assert_equal(checkpoint, open_model(str(tmp_path)))
    samples.change_json(tmp_path / "tokenizer.json", **{"normalizer/strip_accents": True})
    samples.assert_unreadable(tmp_path, "strip_accents", True)


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F6_E2M3"])
def test_unsupported_number_types_are_named(dtype, tmp_path):
    path = tmp_path / "model.safetensors"
    bits = int(dtype[1])
    header = json.dumps({"weight": {"dtype": dtype, "shape": [4], "data_offsets": [0, bits // 2]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(bits // 2))
    assert_rejected(("weight", path, dtype), hugging_face_files.open_safetensors(str(path)).read, "weight")


def test_a_head_that_reads_the_pooler_is_not_written_without_it(tiny_config, tmp_path):
    for head in ("next-sentence head", "sequence classifier", "multiple-choice head"):
        model = samples.sample(tiny_config, frozenset({ENCODER, head}))
        assert_rejected(("transformers", "encoder", head), hugging_face.write, model, str(tmp_path))


# The classes of other heads have no pooler.
CLASSES = samples.HUGGING_FACE_CLASSES
PARTS = [each for each in CLASSES if POOLER not in each or each == {ENCODER, POOLER} or each - {POOLER} not in CLASSES]


@pytest.mark.slow
@pytest.mark.parametrize("parts", PARTS)
def test_transformers_reads_and_writes_our_models_and_gives_the_same_outputs(parts, exact_config, tmp_path):
    import transformers

    checkpoint = hugging_face.write(samples.sample(exact_config, parts), str(tmp_path))
    extra = {"add_pooling_layer": False} if parts == {ENCODER} else {}
    loader = getattr(transformers, CLASSES[parts])
    model, info = loader.from_pretrained(tmp_path, output_loading_info=True, **extra)
    assert not info["missing_keys"] | info["unexpected_keys"]
    theirs = hugging_face.transformers_outputs(checkpoint, str(tmp_path), parity.make_fixed_input(checkpoint.config))
    not_shown = {ENCODER: "", POOLER: "pooled_output", samples.HEADS["choice"]: "logits"} if len(parts) > 2 else {}
    assert parity.compute_outputs(checkpoint).keys() - theirs.keys() <= {not_shown.get(part) for part in parts}
    assert parity.compare_forward_pass(checkpoint, hugging_face.FORMAT.framework, str(tmp_path)) <= 1e-4
    model.save_pretrained(tmp_path)
    (tmp_path / "checksums.json").unlink()
    samples.assert_equal(checkpoint, open_model(str(tmp_path)))


def assert_same_ids(vocab, casing, texts, folder):
    """Asserts that the fast and slow tokenizers of transformers, from a folder that we wrote, give the ids of ours."""
    import transformers
    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

    config = BertConfig(len(split_vocab(vocab)), 4, 1, 2, 8, max_position_embeddings=10**6)
    checkpoint = dataclasses.replace(samples.sample(config, frozenset({ENCODER})), vocab=vocab, casing=casing)
    hugging_face.write(checkpoint, str(folder))
    tokenizer = FullTokenizer.from_vocab(vocab, **casing._asdict())
    fast, slow = transformers.AutoTokenizer.from_pretrained(folder), BertTokenizerLegacy.from_pretrained(folder)
    for text in texts:
        # The slow tokenizer normalizes texts to Unicode NFC first. This makes no difference if accents are removed.
        normalized = text if casing.strip_accents else unicodedata.normalize("NFC", text)
        for other, same in ((fast, text), (slow, normalized)):
            ids = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(same))
            assert other.encode(text, add_special_tokens=False) == ids, ascii(text)
    first, second = (tokenizer.tokenize(text) for text in texts[:2])
    pair = fast(*texts[:2])
    assert pair["input_ids"] == tokenizer.convert_tokens_to_ids(["[CLS]", *first, "[SEP]", *second, "[SEP]"])
    assert pair["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "casing"), REAL_VOCABULARIES)
def test_their_tokenizers_give_our_ids_on_real_text(name, casing, test_data, tmp_path):
    texts = [path.read_text(encoding="utf-8") for path in sorted((test_data / "text").glob("*.txt"))]
    vocab = (test_data / "vocab" / name).read_text(encoding="utf-8")
    assert_same_ids(vocab, casing, "\n".join(texts).split("\n"), tmp_path)


HARD = """
Über ÅNGSTRÖM ångström A\u030a a\u030a é e\u0301 E\u0323\u0301 E\u0301\u0323 İSTANBUL ıI ẞ ß ﬁ Ǆ ǅ
Ελλάς ΆΝΕΜΟΣα Ё Й й И\u0306 हिन्दी การ שָׁלוֹם سَلَام 각 \u1100\u1161 Ｆｕｌｌ ℃ 中文Über漢字é,É.é!—É
a\u200dé\ufeff é\u00ad\u0301
\u0301 \u0301a x\ufffd\u0301 \t\u3000Ö\u00a0ö \u1e9e\u0307 \ud55c\uae00
"""


@pytest.mark.slow
@pytest.mark.parametrize("casing", CASINGS)
def test_their_tokenizers_give_our_ids_on_hard_text(casing, tmp_path):
    letters = sorted({letter for form in ("NFC", "NFD") for letter in unicodedata.normalize(form, HARD + HARD.lower())})
    pieces = [start + letter for letter in letters if letter.strip() for start in ("", "##")]
    vocab = "\n".join([*SPECIAL_TOKENS, *pieces]) + "\n"
    assert_same_ids(vocab, casing, [*HARD.split(" "), *HARD.split("\n")], tmp_path)


def test_what_files_say_of_accents_is_read_and_compared(tiny_config, tmp_path):
    samples.write_hugging_face(dataclasses.replace(samples.sample(tiny_config), casing=ACCENTED), tmp_path)
    settings, tokenizer = tmp_path / "tokenizer_config.json", tmp_path / "tokenizer.json"

    def casing(**given):
        return open_model(str(tmp_path), LoadOverrides(**given)).casing

    assert casing() == casing(do_lower_case=True) == casing(strip_accents=False) == ACCENTED
    assert casing(strip_accents=True, replace=True) == UNCASED
    for flag, given in (("--strip_accents", {"strip_accents": True}), ("--nodo_lower_case", {"do_lower_case": False})):
        assert_rejected((flag, settings), casing, **given)
    samples.change_json(settings, strip_accents=None)
    assert_rejected((tokenizer, "strip_accents", "false", settings, "null"), casing)
    settings.write_text('{"do_lower_case": false, "strip_accents": false}')
    found = open_model(str(tmp_path))
    assert not found.casing.do_lower_case, "as in transformers"
    assert f"{settings} has do_lower_case false, {tokenizer} lowercase true: false is used" in found.notes
    settings.write_text('{"do_lower_case": true}')
    assert casing() == ACCENTED
    tokenizer.unlink()
    assert casing() == UNCASED
    settings.write_text('{"strip_accents": false}')
    assert casing() == ACCENTED
    settings.write_text('{"strip_accents": "no"}')
    assert_rejected(("strip_accents", "'no'"), casing)


@pytest.mark.slow
def test_their_tokenizers_differ_where_the_docs_say(tiny_config, tmp_path):
    import transformers

    hugging_face.write(samples.sample(tiny_config), str(tmp_path))
    ours, theirs = open_model(str(tmp_path)).tokenizer, transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text, our_tokens, their_tokens in (
        ("a [MASK] b", "a [UNK] m ##a ##s ##k [UNK] b", "a [MASK] b"),
        ("a" * 101, "a" + " ##a" * 100, "[UNK]"),
        ("a\u061db", "a [UNK] b", "[UNK]"),  # the Arabic question mark, added in Unicode 14
    ):
        assert ours.tokenize(text) == our_tokens.split()
        assert theirs.tokenize(text) == their_tokens.split()
