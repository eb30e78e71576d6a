"""Tokenizers in Hugging Face folders: BERT's rules give the same ids, and errors name rules that would not."""

import dataclasses
import json

import pytest

from official_bert.checkpoints import loading
from official_bert.checkpoints.checkpoint import LoadOverrides
from official_bert.checkpoints.formats import hugging_face, hugging_face_tokenizer, tf1
from official_bert.checkpoints.loading import open_model
from official_bert.tokenization.added_tokens import AddedToken
from official_bert.tokenization.exact import FullTokenizer
from tests.checkpoints import checkpoint_samples as samples
from tests.golden import make_added_tokens as golden
from tests.make import WORDS, assert_rejected, write_vocab

SETTINGS, TOKENIZER, CONFIG, ADDED = "tokenizer_config.json", "tokenizer.json", "config.json", "added_tokens.json"
# Settings that no tokenizer of BERT has.
KINDS = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab", "normalization": True}
KINDS |= {"subword_tokenizer_type": "character", "mecab_kwargs": {"mecab_dic": "ipadic"}}
KINDS |= {"do_basic_tokenize": False, "cls_token": "<s>"}
TOKENS = {"78": {"id": 7, "content": "[E2]", "special": True, "single_word": True}}
SPLIT = {"never_split": ["[MASK]", "[E1]"], "added_tokens_decoder": TOKENS, "auto_map": {"AutoTokenizer": ["a.A"]}}
RULES = {"normalizer/clean_text": False, "post_processor": None, "model/unk_token": "<unk>"}
RULES |= {"model/continuing_subword_prefix": "@@", "model/max_input_chars_per_word": 5}
TEMPLATE = {"post_processor/single": [{"Sequence": {"id": "A", "type_id": 0}}], "pre_tokenizer": {"type": "Whitespace"}}


@pytest.mark.parametrize(("name", "values", "names"), [
    (SETTINGS, KINDS, None),
    (SETTINGS, {"unk_token": {"content": "<unk>"}}, ("unk_token", "'<unk>'")),
    (SETTINGS, SPLIT, ("never_split", "'[E1]'", "'[E2]'", "single_word", "auto_map")),
    (ADDED, {"[E1]\n": 78}, (r"'[E1]\n'",)),
    (TOKENIZER, RULES, None),
    (TOKENIZER, TEMPLATE, ("post_processor", "pre_tokenizer", "'Whitespace'")),
])  # fmt: skip
def test_other_rules_are_named_and_a_vocabulary_replaces_them(name, values, names, tiny_config, tmp_path):
    names = names or [part for key, value in values.items() for part in (key.split("/")[-1], repr(value))]
    samples.write_hugging_face(samples.sample(tiny_config), tmp_path)
    samples.change_json(tmp_path / name, **values)
    samples.assert_unreadable(tmp_path, tmp_path, *names, "--vocab_file")
    checkpoint = open_model(str(tmp_path), LoadOverrides(vocab_file=str(tmp_path / "vocab.txt")))
    assert checkpoint.weights.keys() == samples.sample(tiny_config).weights.keys()
    assert "--vocab_file replaces them with BERT's rules" in "".join(checkpoint.notes)


def test_another_class_of_tokenizers_is_named(tiny_config, tmp_path):
    samples.write_hugging_face(samples.sample(tiny_config), tmp_path)
    samples.change_json(tmp_path / CONFIG, tokenizer_class="BertJapaneseTokenizer")
    open_model(str(tmp_path))  # tokenizer_config.json has another class
    (tmp_path / SETTINGS).write_text('{"do_lower_case": true}')
    samples.assert_unreadable(tmp_path, "tokenizer_class", "'BertJapaneseTokenizer'")
    samples.change_json(tmp_path / CONFIG, tokenizer_class=None)
    samples.change_json(tmp_path / TOKENIZER, **{"model/type": "BPE"})
    samples.assert_unreadable(tmp_path, tmp_path / TOKENIZER, "BPE")
    checkpoint = open_model(str(tmp_path), LoadOverrides(vocab_file=str(tmp_path / "vocab.txt")))
    assert "--vocab_file replaces it with BERT's rules" in "".join(checkpoint.notes)


@pytest.mark.parametrize(("name", "values"), [
    (SETTINGS, {"added_tokens_decoder": ["[E1]"]}),
    (SETTINGS, {"added_tokens_decoder": {"78": {"id": 78}}}),
    (SETTINGS, {"added_tokens_decoder": {"78": {"content": ["[E1]"]}}}),
    (SETTINGS, {"added_tokens_decoder": {"last": {"content": "[E1]"}}}),
    (TOKENIZER, {"model": "WordPiece"}),
    (TOKENIZER, {"added_tokens": 1}),
    (TOKENIZER, {"normalizer": {"type": "BertNormalizer"}}),
])  # fmt: skip
def test_values_of_other_types_are_reported_as_damage(name, values, tiny_config, tmp_path):
    samples.write_hugging_face(samples.sample(tiny_config), tmp_path)
    samples.change_json(tmp_path / name, **values)
    samples.assert_unreadable(tmp_path, tmp_path)


def test_added_tokens_are_converted_where_the_format_can_store_them(tiny_config, tmp_path):
    model = samples.sample(dataclasses.replace(tiny_config, vocab_size=len(WORDS) + 2))
    vocab, casing = f"{model.vocab}<user>\n", model.casing._replace(added_tokens=(AddedToken("<user>"),))
    hugging_face.write(dataclasses.replace(model, vocab=vocab, casing=casing), str(tmp_path / "theirs"))
    samples.convert(tmp_path / "theirs", tmp_path / "own", to_format="tf1")
    samples.convert(tmp_path / "own", tmp_path / "again", to_format="hugging_face")
    for name in ("own", "again"):
        own = open_model(str(tmp_path / name))
        assert (own.vocab, own.casing) == (vocab, casing)
        assert own.tokenizer.tokenize("the <USER>") == ["the", "<user>"]
    assert_rejected("<user>", samples.convert, tmp_path / "own", tmp_path / "preset", to_format="keras_hub")


def make_layout(name, folder):
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
        (folder / ADDED).write_text(json.dumps(ids))
        (folder / SETTINGS).write_text(json.dumps({**settings, "additional_special_tokens": extra}))
    elif name.startswith("4 fast"):
        make_layout("5", folder)
        write_vocab(folder / "vocab.txt", golden.VOCABULARY)
        (folder / SETTINGS).write_text(json.dumps(settings))
    else:  # Before version 4.34, token flags were not stored.
        settings = {"do_lower_case": True, "additional_special_tokens": extra}
        (folder / ADDED).write_text(json.dumps(ids))
        (folder / SETTINGS).write_text(json.dumps(settings))
    (folder / CONFIG).write_text('{"model_type": "bert"}')


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["5", "4 fast", "4 slow", "4.33 slow"])
def test_added_tokens_of_each_layout_get_the_ids_of_transformers(layout, tiny_config, tmp_path):
    make_layout(layout, tmp_path)
    texts = golden.make_texts()
    expected = hugging_face.encode_with_transformers(str(tmp_path), texts)
    config = dataclasses.replace(tiny_config, vocab_size=300)
    found = hugging_face_tokenizer.read_tokenizer(str(tmp_path), config, LoadOverrides())
    vocab, casing = found.require_vocab(), found.casing
    ours = FullTokenizer.from_vocab(vocab, **casing._asdict())
    assert [ours.convert_tokens_to_ids(ours.tokenize(text, special_tokens=True)) for text in texts] == expected
    # Writing it for Hugging Face and reading it back changes nothing.
    written = tmp_path / "written"
    hugging_face.write(dataclasses.replace(samples.sample(config), vocab=vocab, casing=casing), str(written))
    assert hugging_face.encode_with_transformers(str(written), texts) == expected
    again = open_model(str(written))
    assert (again.vocab, set(again.casing.added_tokens)) == (vocab, set(casing.added_tokens))
    (written / TOKENIZER).unlink()
    assert hugging_face.encode_with_transformers(str(written), texts) == expected


TRUNCATION = {"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
SEP, CLS = ([token, WORDS.index(token)] for token in ("[SEP]", "[CLS]"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "values"), [
    (SETTINGS, {"never_split": []}),
    (SETTINGS, {"never_split": ["[MASK]", "[SEP]", "the"]}),
    (SETTINGS, {"tokenizer_class": "DistilBertTokenizerFast", "word_tokenizer_type": "basic", "mecab_kwargs": None}),
    (SETTINGS, {"mask_token": {"__type": "AddedToken", "content": "[MASK]"}, "additional_special_tokens": []}),
    (SETTINGS, {"added_tokens_decoder": {"0": {"content": "[PAD]"}}, "name_or_path": "x", "padding_side": "left"}),
    (TOKENIZER, {"post_processor": {"type": "BertProcessing", "sep": SEP, "cls": CLS}, "truncation": TRUNCATION}),
])  # fmt: skip
def test_settings_that_change_no_token_give_the_ids_of_transformers(name, values, tiny_config, tmp_path):
    import transformers

    samples.write_hugging_face(samples.sample(tiny_config), tmp_path)
    samples.change_json(tmp_path / name, **values)
    ours = loading.load(str(tmp_path)).tokenizer
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
    text = "The cat, no play"
    assert theirs.encode(text, add_special_tokens=False) == ours.convert_tokens_to_ids(ours.tokenize(text))


@pytest.mark.slow
@pytest.mark.parametrize("repeated", [["the", "the"], ["", ""], ["", "the"]])
def test_a_vocabulary_with_equal_or_blank_lines_converts_with_its_ids(repeated, tiny_config, tmp_path):
    import transformers

    replaced = dict(zip(("un", "##able"), repeated, strict=True))
    vocab = "".join(f"{replaced.get(word, word)}\n" for word in WORDS)
    tf1.write(dataclasses.replace(samples.sample(tiny_config), vocab=vocab), str(tmp_path / "google"))
    lines = samples.convert(tmp_path / "google", tmp_path / "theirs", to_format="hugging_face")
    assert any(line.startswith("tokenizer: ") for line in lines)
    assert open_model(str(tmp_path / "theirs")).vocab == vocab
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    theirs.save_pretrained(tmp_path / "theirs")  # a tokenizer.json with gaps in its ids
    (tmp_path / "theirs" / "checksums.json").unlink()
    assert open_model(str(tmp_path / "theirs")).vocab == vocab
