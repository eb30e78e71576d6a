"""Hugging Face checkpoints are read and written, and transformers computes the same outputs."""

import contextlib
import dataclasses
import json
import pathlib
import unicodedata
from typing import Any

import numpy as np
import pytest

import official_bert
from official_bert.checkpoints import conversion, parity
from official_bert.checkpoints.checkpoint import (
    ENCODER,
    MASKED_LM,
    NEXT_SENTENCE,
    POOLER,
    PRETRAINING,
    LoadedModel,
    LoadOverrides,
)
from official_bert.checkpoints.formats import hugging_face, hugging_face_config, hugging_face_files, hugging_face_names
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.vocabulary import split_vocab
from official_bert.errors import UserError
from official_bert.finetuning.initial_model import read_initial_model
from official_bert.modeling.config import BertConfig
from official_bert.tokenization.casing import UNCASED, Casing, make_casing
from official_bert.tokenization.exact import SPECIAL_TOKENS, FullTokenizer
from tests.checkpoints.checkpoint_samples import HEADS, assert_equal, conversion_options, sample
from tests.conftest import WORDS
from tests.make import refusal, tiny_config
from tests.tokenization.test_exact import ACCENTED, CASINGS, REAL_VOCABULARIES


def read(folder: pathlib.Path, **overrides: Any) -> LoadedModel:
    return open_model(str(folder), LoadOverrides(**overrides))


def write_as_others(checkpoint: LoadedModel, folder: pathlib.Path) -> None:
    """Writes a checkpoint without checksums."""
    hugging_face.write(checkpoint, str(folder))
    (folder / "checksums.json").unlink()


@pytest.mark.parametrize("prefix", ["bert.", ""])
def test_old_names_of_hugging_face_are_read(prefix: str, exact_config: BertConfig, tmp_path: pathlib.Path):
    from safetensors.numpy import load_file, save_file

    checkpoint = sample(exact_config)
    write_as_others(checkpoint, tmp_path)
    tensors = {}
    for name, value in load_file(tmp_path / "model.safetensors").items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        tensors[name.replace("bert.", prefix)] = value
    save_file(tensors, tmp_path / "model.safetensors")
    assert_equal(checkpoint, read(tmp_path))


def test_weights_have_the_permissions_of_the_other_files(exact_config: BertConfig, tmp_path: pathlib.Path):
    hugging_face.write(sample(exact_config), str(tmp_path))
    modes = {path.name: path.stat().st_mode for path in tmp_path.iterdir()}
    assert modes["model.safetensors"] == modes["config.json"]


def test_sharded_weights_are_read(exact_config: BertConfig, tmp_path: pathlib.Path):
    from safetensors.numpy import load_file, save_file

    checkpoint = sample(exact_config)
    write_as_others(checkpoint, tmp_path)
    tensors = list(load_file(tmp_path / "model.safetensors").items())
    (tmp_path / "model.safetensors").unlink()
    weight_map = {}
    for number in (1, 2):
        shard, held = f"model-0000{number}-of-00002.safetensors", dict(tensors[number - 1 :: 2])
        save_file(held, tmp_path / shard)
        weight_map |= dict.fromkeys(held, shard)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    for path in (tmp_path, index):
        assert_equal(checkpoint, open_model(str(path)))


def test_an_untied_output_layer_is_rejected_and_a_copy_is_accepted(exact_config: BertConfig, tmp_path: pathlib.Path):
    from safetensors.numpy import load_file, save_file

    checkpoint = sample(exact_config)
    write_as_others(checkpoint, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["bert.embeddings.position_ids"] = np.arange(32)[None]
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].copy()
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].copy()
    save_file(tensors, tmp_path / "model.safetensors")
    assert_equal(checkpoint, read(tmp_path))
    tensors["cls.predictions.decoder.weight"][3, 2] += 1
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="decoder.weight in .* differs from bert.embeddings.word_embeddings.weight"):
        read(tmp_path)


WIDE_CLASSIFIER = {"classifier.weight": (5, 16), "classifier.bias": (5,)}  # reads more than the encoder's output


@pytest.mark.parametrize("own", [{"crf.transitions": (3, 3), "bert.lstm.weight": (8, 4)}, WIDE_CLASSIFIER])
def test_custom_heads_are_ignored_and_listed(own: dict, exact_config: BertConfig, tmp_path: pathlib.Path, capsys):
    from safetensors.numpy import load_file, save_file

    checkpoint = sample(exact_config)
    write_as_others(checkpoint, tmp_path / "theirs")
    path = tmp_path / "theirs" / "model.safetensors"
    save_file(load_file(path) | {name: np.ones(shape, np.float32) for name, shape in own.items()}, path)
    line = f"ignored 2 tensors of heads or programs that BERT does not have: {', '.join(sorted(own))}"
    found = read(tmp_path / "theirs")
    assert_equal(checkpoint, found)
    assert line in found.notes
    assert line in read_initial_model(str(tmp_path / "theirs")).notes
    official_bert.load(str(tmp_path / "theirs"))
    assert f"note: {line}" in capsys.readouterr().out
    report = conversion.convert(conversion_options(tmp_path / "theirs", tmp_path / "ours"))
    assert f"note: {line}" in report


def test_activations_are_translated(tiny_config: BertConfig):
    base = {"model_type": "bert", "vocab_size": 9}
    exact = dict.fromkeys(("gelu", "gelu_python"), "gelu_exact")
    kinds = {**exact, **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu"), "relu": "relu"}
    for theirs, ours in kinds.items():
        assert hugging_face_config.read_config({**base, "hidden_act": theirs}, "x").hidden_act == ours
    for ours, theirs in hugging_face_config.ACTIVATIONS.items():
        assert hugging_face_config.read_config({**base, "hidden_act": theirs}, "x").hidden_act == ours


@pytest.mark.parametrize(("change", "message"), [
    ({"model_type": "roberta"}, "model_type 'roberta'; only a BERT with 'bert' is supported"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
    ({"is_decoder": True}, "is_decoder True"),
    ({"hidden_act": "silu"}, "hidden_act 'silu'; expected one of"),
    ({"vocab_size": "many"}, "config.json: vocab_size is 'many'; expected a whole number"),
])  # fmt: skip
def test_models_other_than_bert_are_rejected(change: dict, message: str):
    config = {"model_type": "bert", "vocab_size": 9, **change}
    assert message in refusal(hugging_face_config.read_config, config, "config.json")


def test_the_vocabulary_is_read_from_tokenizer_json_if_it_is_the_only_file(
    tiny_config: BertConfig, tmp_path: pathlib.Path
):
    checkpoint = dataclasses.replace(sample(tiny_config), casing=make_casing(False))
    hugging_face.write(checkpoint, str(tmp_path))
    for name in ("checksums.json", "vocab.txt", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    assert_equal(checkpoint, read(tmp_path))
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text().replace('"strip_accents": null', '"strip_accents": true'))
    assert "has strip_accents True, which BERT's own rules lack; give --vocab_file" in refusal(read, tmp_path)
    path.write_text(path.read_text().replace('"WordPiece"', '"BPE"'))
    assert "a BPE model; expected BertNormalizer and WordPiece" in refusal(read, tmp_path)


@pytest.mark.parametrize(("change", "message"), [
    ({"continuing_subword_prefix": "@@"}, "has continuing_subword_prefix '@@', which BERT's own rules lack"),
    ({"max_input_chars_per_word": 5}, "has max_input_chars_per_word 5, which BERT's own rules lack"),
    ({"max_input_chars_per_word": 100}, None),
])  # fmt: skip
def test_a_tokenizer_json_with_other_rules_is_rejected(change, message, tiny_config, tmp_path):
    write_as_others(sample(tiny_config), tmp_path)
    path = tmp_path / "tokenizer.json"
    contents = json.loads(path.read_text())
    contents["model"] |= change
    path.write_text(json.dumps(contents))
    with pytest.raises(UserError, match=message) if message else contextlib.nullcontext():
        read(tmp_path)


def test_unsupported_number_types_are_named(tmp_path: pathlib.Path):
    path = tmp_path / "model.safetensors"
    header = json.dumps({"weight": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(2))
    message = refusal(hugging_face_files.open_safetensors(str(path)).read, "weight")
    assert all(part in message for part in ("weight", str(path), "F8_E4M3"))


def transformers_models():
    import transformers

    transformers.utils.logging.disable_progress_bar()
    return transformers


@pytest.mark.slow
@pytest.mark.parametrize("size", [(8, 1, 2, 16), (32, 3, 4, 64), (48, 2, 6, 100)])
@pytest.mark.parametrize(
    "name", ["BertForPreTraining", "BertForSequenceClassification", "BertModel", "BertForMaskedLM"]
)
def test_models_of_transformers_give_the_same_outputs_after_conversion(name: str, size: tuple[int, ...], tmp_path):
    transformers = transformers_models()
    import torch

    torch.manual_seed(0)
    hidden, layers, heads, intermediate = size
    sizes = tiny_config(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=intermediate
    )
    changes = {"hidden_act": "gelu", "initializer_range": 0.3, "layer_norm_eps": 1e-7, "num_labels": 3}
    config = transformers.BertConfig(**{**sizes.to_dict(), **changes})
    getattr(transformers, name)(config).save_pretrained(tmp_path / "theirs")
    checkpoint = read(tmp_path / "theirs")
    assert checkpoint.config.hidden_act == "gelu_exact"
    assert checkpoint.config.layer_norm_eps == 1e-7
    hugging_face.write(checkpoint, str(tmp_path / "ours"))
    _, info = getattr(transformers, name).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    for folder in ("theirs", "ours"):
        difference = parity.compare_forward_pass(checkpoint, hugging_face.FORMAT.framework, str(tmp_path / folder))
        assert difference is not None
        assert difference <= 1e-4


@pytest.mark.slow
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
def test_transformers_loads_our_models_and_gives_the_same_outputs(parts, outputs, exact_config, tmp_path):
    transformers = transformers_models()
    checkpoint = hugging_face.write(sample(exact_config, frozenset(parts)), str(tmp_path))
    name = hugging_face_names.CLASSES[frozenset(parts)]
    extra = {"add_pooling_layer": False} if parts == {ENCODER} else {}
    _, info = getattr(transformers, name).from_pretrained(tmp_path, output_loading_info=True, **extra)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    theirs = hugging_face.transformers_outputs(checkpoint, str(tmp_path), parity.make_fixed_input(checkpoint.config))
    assert theirs.keys() >= outputs | {"hidden_0", "hidden_1"}
    difference = parity.compare_forward_pass(checkpoint, hugging_face.FORMAT.framework, str(tmp_path))
    assert difference is not None
    assert difference <= 1e-4


def all_tokenizers(vocab_file: pathlib.Path, casing: Casing, folder: pathlib.Path):
    """Returns our tokenizer, and the fast and slow transformers tokenizers of a folder we wrote, as functions."""
    transformers = transformers_models()
    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

    vocab = vocab_file.read_text(encoding="utf-8")
    config = BertConfig(len(split_vocab(vocab)), 4, 1, 2, 8, max_position_embeddings=10**6)
    checkpoint = sample(config, frozenset({ENCODER}))
    hugging_face.write(dataclasses.replace(checkpoint, vocab=vocab, casing=casing), str(folder))
    ours = FullTokenizer(str(vocab_file), *casing)
    fast, slow = transformers.AutoTokenizer.from_pretrained(folder), BertTokenizerLegacy.from_pretrained(folder)
    return (
        lambda text: ours.convert_tokens_to_ids(ours.tokenize(text)),
        lambda text: fast.encode(text, add_special_tokens=False),
        lambda text: slow.encode(text, add_special_tokens=False),
    )


@pytest.mark.slow
@pytest.mark.parametrize("every", [29, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "casing"), REAL_VOCABULARIES)
def test_their_tokenizers_give_our_ids_on_real_text(name: str, casing: Casing, every: int, test_data, tmp_path):
    ours, fast, slow = all_tokenizers(test_data / "vocab" / name, casing, tmp_path)
    texts = [path.read_text(encoding="utf-8") for path in sorted((test_data / "text").glob("*.txt"))]
    lines = "\n".join(texts).split("\n")[::every]
    assert len(lines) > 300
    for line in lines:
        ids = ours(line)
        assert fast(line) == ids
        # The slow transformers tokenizer normalizes text to Unicode NFC first, unlike BERT. This makes no difference if
        # accents are removed.
        assert slow(line) == (ids if casing.strip_accents else ours(unicodedata.normalize("NFC", line)))


HARD = """
Über ÅNGSTRÖM ångström A\u030a a\u030a é e\u0301 E\u0323\u0301 E\u0301\u0323 İSTANBUL ıI ẞ ß ﬁ Ǆ ǅ
Ελλάς ΆΝΕΜΟΣα Ё Й й И\u0306 हिन्दी การ שָׁלוֹם سَلَام 각 \u1100\u1161 Ｆｕｌｌ ℃ 中文Über漢字é,É.é!—É
a\u200dé\ufeff é\u00ad\u0301
\u0301 \u0301a x\ufffd\u0301 \t\u3000Ö\u00a0ö \u1e9e\u0307 \ud55c\uae00
"""


@pytest.mark.slow
@pytest.mark.parametrize("casing", CASINGS)
def test_their_tokenizers_give_our_ids_on_hard_text(casing: Casing, tmp_path: pathlib.Path):
    letters = sorted({letter for form in ("NFC", "NFD") for letter in unicodedata.normalize(form, HARD + HARD.lower())})
    pieces = [start + letter for letter in letters if letter.strip() for start in ("", "##")]
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIAL_TOKENS, *pieces]) + "\n", encoding="utf-8")
    ours, fast, slow = all_tokenizers(path, casing, tmp_path / "hf")
    for text in [*HARD.split("\n"), *HARD.split(" ")]:
        assert fast(text) == ours(text), ascii(text)
        assert slow(text) == (ours(text) if casing.strip_accents else ours(unicodedata.normalize("NFC", text)))


def change(path: pathlib.Path, before: str, after: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")


def test_what_files_say_of_accents_is_read_and_compared(tiny_config: BertConfig, tmp_path: pathlib.Path):
    write_as_others(dataclasses.replace(sample(tiny_config), casing=ACCENTED), tmp_path)
    settings, tokenizer = tmp_path / "tokenizer_config.json", tmp_path / "tokenizer.json"

    def casing(**given: Any) -> Casing:
        return read(tmp_path, **given).casing

    assert casing() == casing(do_lower_case=True) == casing(strip_accents=False) == ACCENTED
    message = refusal(casing, strip_accents=True)
    assert f"--strip_accents contradicts {settings}, which states how the model was" in message
    assert casing(strip_accents=True, replace=True) == UNCASED
    assert "--nodo_lower_case contradicts" in refusal(casing, do_lower_case=False)
    change(settings, '"strip_accents": false', '"strip_accents": null')
    with pytest.raises(UserError, match=r"tokenizer.json has strip_accents false, .*tokenizer_config.json null; give"):
        casing()
    change(settings, '  "strip_accents": null,\n', "")
    assert casing() == ACCENTED
    tokenizer.unlink()
    assert casing() == UNCASED
    change(settings, '"do_lower_case": true', '"strip_accents": false')
    assert casing() == ACCENTED
    change(settings, '"strip_accents": false', '"strip_accents": "no"')
    assert "has strip_accents 'no'; expected true or false" in refusal(casing)


@pytest.mark.slow
def test_their_tokenizers_differ_from_ours_where_the_docs_say(vocab_file: str, tmp_path: pathlib.Path):
    ours, fast, slow = all_tokenizers(pathlib.Path(vocab_file), UNCASED, tmp_path / "hf")
    unknown, mask, a, b = (WORDS.index(word) for word in ("[UNK]", "[MASK]", "a", "b"))
    assert fast("a [MASK] b") == slow("a [MASK] b") == [a, mask, b]
    assert ours("a [MASK] b") == [a, unknown, WORDS.index("m"), *(WORDS.index(f"##{c}") for c in "ask"), unknown, b]
    assert fast("a" * 101) == slow("a" * 101) == [unknown]
    assert ours("a" * 101) == [a, *[WORDS.index("##a")] * 100]
    assert ours("a\u061db") == slow("a\u061db") == [a, unknown, b]  # the Arabic question mark, added in Unicode 14
    assert fast("a\u061db") == [unknown]


@pytest.mark.slow
def test_their_tokenizer_joins_pairs_as_ours_does(vocab_file: str, tmp_path: pathlib.Path):
    transformers = transformers_models()
    hugging_face.write(sample(BertConfig(len(WORDS), 4, 1, 2, 8)), str(tmp_path / "hf"))
    ours = FullTokenizer(vocab_file)
    pair = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")("the cat", "no play")
    joined = ["[CLS]", *ours.tokenize("the cat"), "[SEP]", *ours.tokenize("no play"), "[SEP]"]
    assert pair["input_ids"] == ours.convert_tokens_to_ids(joined)
    assert pair["token_type_ids"] == [0] * 4 + [1] * (len(joined) - 4)
