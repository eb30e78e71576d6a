"""Tokenizers in Hugging Face folders: BERT's rules give the same ids, and errors name rules that would not."""

import dataclasses
import json
import pathlib
from typing import Any

import pytest

from official_bert.checkpoints import conversion, loading, parity
from official_bert.checkpoints.checkpoint import LoadOverrides
from official_bert.checkpoints.formats import hugging_face, hugging_face_tokenizer, tf1
from official_bert.checkpoints.formats.format import Framework
from official_bert.checkpoints.loading import open_model
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.tokenization.added_tokens import AddedToken
from official_bert.tokenization.exact import FullTokenizer
from tests.checkpoints.checkpoint_samples import conversion_options, sample
from tests.conftest import WORDS
from tests.golden import make_added_tokens as golden


def write_folder(folder: pathlib.Path, config: BertConfig, changes: dict[str, dict[str, Any]]) -> None:
    """Writes a folder as Hugging Face does, with changed JSON values ("model/unk_token" is a nested key)."""
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
    (SETTINGS, "added_tokens_decoder", {"78": {**ADDED, "single_word": True}}, r"has added token '\[E1\]' with single"),
    (SETTINGS, "auto_map", {"AutoTokenizer": ["mine.Mine", None]}, "has auto_map"),
    ("added_tokens.json", "[E1]\n", 78, r"has added token '\[E1\]\\n' .it must not"),
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


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        (SETTINGS, {"added_tokens_decoder": {"7": ADDED}}, r"has added token '\[E1\]' with id 7 in place of 78"),
        ("added_tokens.json", {"[E1]": 79}, r"has added token '\[E1\]' with id 79 in place of 78"),
        ("added_tokens.json", {"[E1]": 78}, "has 79 tokens, but the configuration has vocab_size 78"),
        ("added_tokens.json", {"[E1]": "x"}, "the added tokens of the tokenizer in .* are damaged: ValueError"),
        (
            SETTINGS,
            {"added_tokens_decoder": [3]},
            "the added tokens of the tokenizer in .* are damaged: AttributeError",
        ),
    ],
)
def test_added_tokens_that_have_no_row_of_their_own_are_rejected(
    name: str, values: dict[str, Any], message: str, tiny_config: BertConfig, tmp_path: pathlib.Path
):
    write_folder(tmp_path, tiny_config, {name: values})
    with pytest.raises(UserError, match=message):
        open_model(str(tmp_path))


def make_layout(name: str, folder: pathlib.Path) -> None:
    """Writes a tokenizer with added tokens in the layout of a given transformers version."""
    golden.write_folder(folder, True, None)
    settings = json.loads((folder / SETTINGS).read_text())
    decoder = {int(index): token for index, token in settings["added_tokens_decoder"].items()}
    ids = {token["content"]: index for index, token in decoder.items()}
    extra = [token["content"] for token in golden.ADDED if token["special"]]
    if name.startswith("5"):
        import transformers

        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        for path in folder.iterdir():
            path.unlink()
        tokenizer.save_pretrained(folder)
    elif name.startswith("4 slow"):
        (folder / "added_tokens.json").write_text(json.dumps(ids))
        (folder / SETTINGS).write_text(json.dumps({**settings, "additional_special_tokens": extra}))
    elif name.startswith("4 fast"):
        make_layout("5", folder)
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in golden.VOCABULARY))
        (folder / SETTINGS).write_text(json.dumps(settings))
    else:  # Before version 4.34, token flags were not stored.
        settings = {"do_lower_case": True, "additional_special_tokens": extra}
        (folder / "added_tokens.json").write_text(json.dumps(ids))
        (folder / SETTINGS).write_text(json.dumps(settings))
    (folder / CONFIG).write_text('{"model_type": "bert"}')


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["5", "4 fast", "4 slow", "4.33 slow"])
def test_added_tokens_of_each_layout_get_the_ids_of_transformers(
    layout: str, tiny_config: BertConfig, tmp_path: pathlib.Path
):
    make_layout(layout, tmp_path)
    texts = golden.make_texts()
    expected = hugging_face.encode_with_transformers(str(tmp_path), texts)
    config = dataclasses.replace(tiny_config, vocab_size=300)
    vocab, casing, *_ = hugging_face_tokenizer.read_tokenizer(str(tmp_path), config, LoadOverrides())
    ours = FullTokenizer.from_vocab(vocab, **casing._asdict())
    assert [ours.convert_tokens_to_ids(ours.tokenize(text, special_tokens=True)) for text in texts] == expected
    # Writing it for Hugging Face and reading it back changes nothing.
    written = tmp_path / "written"
    model = dataclasses.replace(sample(config), vocab=vocab, casing=casing)
    hugging_face.write(model, str(written))
    assert hugging_face.encode_with_transformers(str(written), texts) == expected
    again = open_model(str(written))
    assert (again.vocab, set(again.casing.added_tokens)) == (vocab, set(casing.added_tokens))
    (written / TOKENIZER).unlink()
    assert hugging_face.encode_with_transformers(str(written), texts) == expected


@pytest.mark.slow
def test_a_conversion_compares_texts_with_added_tokens(tiny_config: BertConfig, tmp_path: pathlib.Path):
    model = sample(dataclasses.replace(tiny_config, vocab_size=len(WORDS) + 2))
    token = AddedToken("<user>")
    vocab, casing = f"{model.vocab}<user>\n", model.casing._replace(added_tokens=(token,))
    hugging_face.write(dataclasses.replace(model, vocab=vocab, casing=casing), str(tmp_path / "theirs"))
    lines = conversion.convert(conversion_options(tmp_path / "theirs", tmp_path / "own", to_format="tf1"))
    assert "tokenizer: 7 fixed texts get the ids of transformers" in lines
    own = open_model(str(tmp_path / "own"))
    assert (own.vocab, own.casing) == (vocab, casing)
    assert own.tokenizer.tokenize("the <USER>") == ["the", "<user>"]
    with pytest.raises(UserError, match="a keras-hub preset cannot store added tokens, and the model has <user>"):
        conversion.convert(conversion_options(tmp_path / "own", tmp_path / "preset", to_format="keras_hub"))
    lines = conversion.convert(conversion_options(tmp_path / "own", tmp_path / "again", to_format="hugging_face"))
    assert "tokenizer: 7 fixed texts get the ids of transformers" in lines


def test_a_text_with_other_ids_in_the_framework_is_named(tiny_config: BertConfig):
    framework = Framework("another library", lambda *_: {}, lambda _, texts: [[WORDS.index("the"), 999] for _ in texts])
    with pytest.raises(
        UserError, match=r"another library splits the text 'The quick .*!' into the 999 with the tokenizer"
    ):
        parity.compare_texts(sample(tiny_config), framework, "folder")


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
