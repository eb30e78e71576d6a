"""Tokenizers in Hugging Face's folders: rules that give other tokens are named, and BERT's give its ids."""

import json
import pathlib
from typing import Any

import pytest

from official_bert.checkpoints import conversion, loading
from official_bert.checkpoints.checkpoint import LoadOverrides
from official_bert.checkpoints.formats import hugging_face, tf1
from official_bert.checkpoints.loading import open_model
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from tests.checkpoints.checkpoint_samples import conversion_options, sample
from tests.conftest import WORDS


def write_folder(folder: pathlib.Path, config: BertConfig, changes: dict[str, dict[str, Any]]) -> None:
    """Writes a folder as Hugging Face does, with other values in its JSON files ("model/unk_token" is nested)."""
    hugging_face.write(sample(config), str(folder))
    (folder / "checksums.json").unlink()
    for name, values in changes.items():
        path = folder / name
        contents = json.loads(path.read_text()) if path.exists() else {}
        for key, value in values.items():
            *outer, last = key.split("/")
            target = contents
            for each in outer:
                target = target[each]
            target[last] = value
        path.write_text(json.dumps(contents))


SETTINGS, TOKENIZER, CONFIG = "tokenizer_config.json", "tokenizer.json", "config.json"
ADDED = {"id": 7, "content": "[E1]", "special": True}


@pytest.mark.parametrize(("name", "key", "value", "message"), [
    (SETTINGS, "tokenizer_class", "BertJapaneseTokenizer", "has tokenizer_class 'BertJapaneseTokenizer', which BERT's"),
    (SETTINGS, "tokenizer_class", "BertweetTokenizer", "has tokenizer_class 'BertweetTokenizer'"),
    (SETTINGS, "tokenizer_class", "RobertaTokenizerFast", "has tokenizer_class 'RobertaTokenizerFast'"),
    (SETTINGS, "word_tokenizer_type", "mecab", "has word_tokenizer_type 'mecab'"),
    (SETTINGS, "subword_tokenizer_type", "character", "has subword_tokenizer_type 'character'"),
    (SETTINGS, "mecab_kwargs", {"mecab_dic": "ipadic"}, "has mecab_kwargs {'mecab_dic': 'ipadic'}"),
    (SETTINGS, "normalization", True, "has normalization True"),
    (SETTINGS, "do_basic_tokenize", False, "has do_basic_tokenize False"),
    (SETTINGS, "cls_token", "<s>", "has cls_token '<s>'"),
    (SETTINGS, "unk_token", {"content": "<unk>"}, "has unk_token '<unk>'"),
    (SETTINGS, "never_split", ["[MASK]", "[E1]"], r"has never_split '\[E1\]'"),
    (SETTINGS, "added_tokens_decoder", {"7": ADDED}, r"has added_tokens_decoder '\[E1\]'"),
    (SETTINGS, "auto_map", {"AutoTokenizer": ["mine.Mine", None]}, "has auto_map"),
    ("added_tokens.json", "[E1]", 7, r"has added_tokens.json '\[E1\]'"),
    (TOKENIZER, "normalizer/clean_text", False, "has normalizer.clean_text False"),
    (TOKENIZER, "pre_tokenizer", {"type": "Whitespace"}, "has pre_tokenizer 'Whitespace'"),
    (TOKENIZER, "post_processor", None, "has post_processor None"),
    (TOKENIZER, "post_processor/single", [{"Sequence": {"id": "A", "type_id": 0}}], "has post_processor"),
    (TOKENIZER, "model/unk_token", "<unk>", "has model.unk_token '<unk>'"),
])  # fmt: skip
def test_rules_that_bert_does_not_have_are_named_and_a_vocabulary_replaces_them(
    name: str, key: str, value: Any, message: str, tiny_config: BertConfig, tmp_path: pathlib.Path
):
    write_folder(tmp_path, tiny_config, {name: {key: value}})
    with pytest.raises(UserError, match=f"{message}.*; give --vocab_file to take the vocabulary with BERT's rules"):
        open_model(str(tmp_path))
    checkpoint = open_model(str(tmp_path), LoadOverrides(vocab_file=str(tmp_path / "vocab.txt")))
    assert checkpoint.weights.keys() == sample(tiny_config).weights.keys()
    assert "--vocab_file replaces them with BERT's rules" in "".join(checkpoint.notes)


def test_another_class_in_config_json_is_named_unless_the_tokenizer_has_its_own(
    tiny_config: BertConfig, tmp_path: pathlib.Path
):
    write_folder(tmp_path, tiny_config, {CONFIG: {"tokenizer_class": "BertJapaneseTokenizer"}})
    open_model(str(tmp_path))
    (tmp_path / SETTINGS).write_text('{"do_lower_case": true}')
    with pytest.raises(UserError, match="has tokenizer_class 'BertJapaneseTokenizer'"):
        open_model(str(tmp_path))


def test_a_vocabulary_replaces_a_tokenizer_of_another_kind_with_a_note(tiny_config: BertConfig, tmp_path: pathlib.Path):
    write_folder(tmp_path, tiny_config, {TOKENIZER: {"model/type": "BPE"}})
    checkpoint = open_model(str(tmp_path), LoadOverrides(vocab_file=str(tmp_path / "vocab.txt")))
    assert "a BPE model; expected BertNormalizer and WordPiece, as BERT has: --vocab_file replaces it" in "".join(
        checkpoint.notes
    )


TRUNCATION = {"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
BERT_PROCESSING = {
    "type": "BertProcessing",
    "sep": ["[SEP]", WORDS.index("[SEP]")],
    "cls": ["[CLS]", WORDS.index("[CLS]")],
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "values"), [
    (SETTINGS, {"never_split": []}),
    (SETTINGS, {"never_split": ["[MASK]", "[SEP]", "the"]}),
    (SETTINGS, {"tokenizer_class": "DistilBertTokenizerFast", "word_tokenizer_type": "basic", "mecab_kwargs": None}),
    (SETTINGS, {"mask_token": {"__type": "AddedToken", "content": "[MASK]"}, "additional_special_tokens": []}),
    (SETTINGS, {"added_tokens_decoder": {"0": {"content": "[PAD]"}}, "name_or_path": "x", "padding_side": "left"}),
    (TOKENIZER, {"post_processor": BERT_PROCESSING, "truncation": TRUNCATION}),
])  # fmt: skip
def test_settings_that_change_no_token_give_the_ids_of_transformers(
    name: str, values: dict[str, Any], tiny_config: BertConfig, tmp_path: pathlib.Path
):
    import transformers

    write_folder(tmp_path, tiny_config, {name: values})
    ours = loading.load(str(tmp_path)).tokenizer
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
    text = "The cat, no play"
    assert theirs.encode(text, add_special_tokens=False) == ours.convert_tokens_to_ids(ours.tokenize(text))


@pytest.mark.slow
@pytest.mark.parametrize("repeated", [["the", "the"], ["", ""], ["", "the"]])
def test_a_vocabulary_with_equal_or_blank_lines_converts_with_its_ids(
    repeated: list[str], tiny_config: BertConfig, tmp_path: pathlib.Path
):
    import transformers

    replaced = dict(zip(("un", "##able"), repeated, strict=True))
    words = [replaced.get(word, word) for word in WORDS]
    tf1.write(sample(tiny_config), str(tmp_path / "google"))
    (tmp_path / "google" / "checksums.json").unlink()
    (tmp_path / "google" / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    conversion.convert(conversion_options(tmp_path / "google", tmp_path / "theirs", to_format="hugging_face"))
    before, after = (open_model(str(tmp_path / name)) for name in ("google", "theirs"))
    assert before.vocab == after.vocab
    ours = after.tokenizer
    ids = ours.convert_tokens_to_ids(ours.tokenize("The cat, no play"))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    assert theirs.encode("The cat, no play", add_special_tokens=False) == ids
    theirs.save_pretrained(tmp_path / "theirs")  # a tokenizer.json with gaps in its ids
    assert (tmp_path / "theirs" / "tokenizer.json").exists()
    (tmp_path / "theirs" / "checksums.json").unlink()
    assert open_model(str(tmp_path / "theirs")).vocab == before.vocab
