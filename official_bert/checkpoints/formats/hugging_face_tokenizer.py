"""The tokenizer of a Hugging Face folder: vocab.txt or tokenizer.json, and tokenizer_config.json."""

import contextlib
import dataclasses
import json
import os
from typing import Any

from official_bert.checkpoints.checkpoint import VOCAB_FILE, Checkpoint, LoadOverrides
from official_bert.checkpoints.vocabulary import FoundTokenizer, Tokenizer, lines_of, resolve_tokenizer
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.tokenization import exact
from official_bert.tokenization.casing import Casing, casing_of
from official_bert.utils import files

TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"

# Settings under which their tokenizer follows BERT's rules.
_REQUIRED = {
    "tokenize_chinese_chars": True, "do_basic_tokenize": True, "never_split": None,
    "continuing_subword_prefix": exact.CONTINUATION, "max_input_chars_per_word": exact.MAX_CHARACTERS_PER_WORD,
}  # fmt: skip
_THEIR_MOST_CHARACTERS = 100  # in a word; theirs say so of all BERT models


def read_tokenizer(folder: str, config: BertConfig, overrides: LoadOverrides) -> Tokenizer:
    """Returns the vocabulary, its casing, and notes.

    Raises:
        UserError: the files are damaged, contradict each other, the configuration or the user, or have rules that BERT
            has not.
    """
    vocab_file, tokenizer_file = os.path.join(folder, VOCAB_FILE), os.path.join(folder, TOKENIZER_FILE)
    settings_file = os.path.join(folder, SETTINGS_FILE)
    settings: dict[str, Any] = {}
    vocabularies = {vocab_file: files.read_text(vocab_file)} if files.exists(vocab_file) else {}
    if files.exists(tokenizer_file):
        with contextlib.suppress(UserError) if overrides.vocab_file else contextlib.nullcontext():
            settings, tokens = _read_tokenizer_json(tokenizer_file)
            vocabularies[tokenizer_file] = "".join(f"{token}\n" for token in tokens)
    if files.exists(settings_file):
        more = files.read_json_object(settings_file)
        _check_accents(settings, more, tokenizer_file, settings_file)
        settings |= more
    accents = settings.get("strip_accents")
    for key, value in (("do_lower_case", settings.get("do_lower_case")), ("strip_accents", accents)):
        if not isinstance(value, bool | None):
            raise UserError(f"the tokenizer in {folder} has {key} {value!r}; expected true or false")
    lower = settings.get("do_lower_case")
    if lower is None and overrides.strip_accents is None:
        overrides = dataclasses.replace(overrides, strip_accents=accents)
    # Accents that go where capital letters stay are refused below, unless the user asks for BERT's own rules.
    casing = None if lower is None else casing_of(lower, accents if lower else None)
    tokenizer = resolve_tokenizer(FoundTokenizer(folder, vocabularies, casing, settings_file), overrides, config)
    required = _REQUIRED if tokenizer.casing.do_lower_case else _REQUIRED | {"strip_accents": None}
    also = {"strip_accents": False, "max_input_chars_per_word": _THEIR_MOST_CHARACTERS}
    for key, expected in () if overrides.vocab_file else required.items():
        value = settings.get(key, expected)
        if value not in (expected, also.get(key, expected)):
            raise UserError(
                f"the tokenizer in {folder} has {key} {value!r}, which BERT's own rules have not; give --vocab_file to "
                "take the vocabulary with BERT's rules"
            )
    return tokenizer


def _check_accents(first: dict[str, Any], second: dict[str, Any], first_file: str, second_file: str) -> None:
    """Raises a UserError if two files say different things of accents; null says to go by lower case."""
    if "strip_accents" not in first or "strip_accents" not in second:
        return
    lower = second.get("do_lower_case", first.get("do_lower_case"))
    values = [lower if each["strip_accents"] is None else each["strip_accents"] for each in (first, second)]
    if values[0] != values[1]:
        raise UserError(
            f"{first_file} has strip_accents {json.dumps(first['strip_accents'])}, {second_file} "
            f"{json.dumps(second['strip_accents'])}; give both files the value that the model was trained with"
        )


def _read_tokenizer_json(path: str) -> tuple[dict[str, Any], list[str]]:
    """The settings, under tokenizer_config.json's keys, and the tokens in a tokenizer.json."""
    contents = files.read_json_object(path)
    try:
        model, normalizer = contents["model"], contents["normalizer"] or {}
        if model.get("type", "WordPiece") != "WordPiece" or normalizer.get("type") != "BertNormalizer":
            raise UserError(
                f"{path} holds a {normalizer.get('type')} and a {model.get('type')} model; expected BertNormalizer and "
                "WordPiece, as BERT has"
            )
        numbers = {**model["vocab"], **{token["content"]: token["id"] for token in contents.get("added_tokens") or []}}
        tokens = sorted(numbers, key=numbers.__getitem__)
        if [numbers[token] for token in tokens] != list(range(len(tokens))):
            raise UserError(f"the ids in {path} do not run from 0 to {len(tokens) - 1}, each once")
        settings = {
            "do_lower_case": normalizer["lowercase"],
            "strip_accents": normalizer["strip_accents"],
            "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
            **{key: model[key] for key in _REQUIRED if key in model},
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is damaged or no tokenizer of BERT: {error!r}") from error
    return settings, tokens


def tokenizer_files(checkpoint: Checkpoint) -> dict[str, str]:
    """Returns the files that make their tokenizers give our ids, by name; none without a vocabulary."""
    if checkpoint.vocab is None:
        return {}
    return {
        VOCAB_FILE: checkpoint.vocab,
        TOKENIZER_FILE: _tokenizer_json(lines_of(checkpoint.vocab), checkpoint.casing),
        SETTINGS_FILE: _settings_json(checkpoint),
    }


def _settings_json(checkpoint: Checkpoint) -> str:
    values = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": checkpoint.casing.do_lower_case,
        "strip_accents": checkpoint.casing.settings.get("strip_accents"),
        "tokenize_chinese_chars": True,
        "model_max_length": checkpoint.config.max_position_embeddings,
        "pad_token": exact.PAD,
        "unk_token": exact.UNK,
        "cls_token": exact.CLS,
        "sep_token": exact.SEP,
        "mask_token": exact.MASK,
    }
    return json.dumps(values, indent=2) + "\n"


def _tokenizer_json(tokens: list[str], casing: Casing) -> str:
    numbers = {token: number for number, token in enumerate(tokens)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    first = [
        {"SpecialToken": {"id": exact.CLS, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": exact.SEP, "type_id": 0}},
    ]
    second = [{"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": exact.SEP, "type_id": 1}}]
    values = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": numbers[token], "content": token, **flags}
            for token in sorted(exact.SPECIAL_TOKENS, key=numbers.__getitem__)
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": casing.settings.get("strip_accents"),
            "lowercase": casing.do_lower_case,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": first,
            "pair": first + second,
            "special_tokens": {
                token: {"id": token, "ids": [numbers[token]], "tokens": [token]} for token in (exact.CLS, exact.SEP)
            },
        },
        "decoder": {"type": "WordPiece", "prefix": exact.CONTINUATION, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": exact.UNK,
            "continuing_subword_prefix": exact.CONTINUATION,
            "max_input_chars_per_word": exact.MAX_CHARACTERS_PER_WORD,
            "vocab": numbers,
        },
    }
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"
