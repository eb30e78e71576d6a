"""Reads and writes the tokenizer of a Hugging Face folder: vocab.txt or tokenizer.json, and tokenizer_config.json."""

import dataclasses
import json
import os
import re
from typing import Any

from official_bert.checkpoints.checkpoint import VOCAB_FILE, LoadedModel, LoadOverrides
from official_bert.checkpoints.formats.hugging_face_added_tokens import (
    ADDED_TOKENS_FILE,
    SPECIAL_TOKENS_FILE,
    append_added_tokens,
    format_added_tokens,
    list_added_tokens,
    read_json_if_exists,
)
from official_bert.checkpoints.vocabulary import FoundTokenizer, resolve_tokenizer, split_vocab
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.tokenization import exact
from official_bert.tokenization.added_tokens import AddedToken
from official_bert.tokenization.casing import Casing, make_casing
from official_bert.tokenization.exact import FullTokenizer
from official_bert.utils import files

TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"

# Values that make Hugging Face's tokenizers follow BERT's rules, by key of tokenizer_config.json or place in
# tokenizer.json. With other values they produce other tokens.
_ALLOWED: dict[str, tuple[Any, ...]] = {
    "tokenizer_class": (None, "PreTrainedTokenizerFast", "TokenizersBackend"),
    "tokenize_chinese_chars": (True,),
    "do_basic_tokenize": (True,),
    "continuing_subword_prefix": (exact.CONTINUATION,),
    "max_input_chars_per_word": (exact.MAX_CHARACTERS_PER_WORD, 100),  # transformers writes 100 for all BERT models
    "pad_token": (exact.PAD, None),
    "unk_token": (exact.UNK,),
    "cls_token": (exact.CLS,),
    "sep_token": (exact.SEP,),
    "mask_token": (exact.MASK, None),
    "normalization": (False, None),
    "word_tokenizer_type": ("basic", None),
    "subword_tokenizer_type": ("wordpiece", None),
    **dict.fromkeys(("mecab_kwargs", "sudachi_kwargs", "jumanpp_kwargs", "sp_model_kwargs"), (None, {})),
    "auto_map": (None,),
    "normalizer.clean_text": (True,),
    "pre_tokenizer": ("BertPreTokenizer",),
    "model.unk_token": (exact.UNK,),
    "post_processor": ("[CLS] A [SEP] B [SEP]",),
}
# Tokenizer classes for BERT and for models that share its tokenizer.
_BERT_CLASSES = re.compile(r"(Bert|DistilBert|Electra|MobileBert|ConvBert|SqueezeBert)Tokenizer(Fast|Legacy)?")


def read_tokenizer(
    folder: str, config: BertConfig, overrides: LoadOverrides, tokenizer_class: str | None = None
) -> LoadedModel:
    """Returns a model with the vocabulary and casing of a Hugging Face folder and notes for the user, without weights.

    Args:
        folder: The folder of the checkpoint.
        config: The model's configuration.
        overrides: The user's settings. If they contain a vocabulary file, it is used with BERT's standard rules, and
            rules in the folder that differ from them only cause a note.
        tokenizer_class: The value of tokenizer_class in config.json, or None. A value in tokenizer_config.json takes
            precedence.

    Raises:
        UserError: If the files are damaged, contradict each other, the configuration or the user's settings, or contain
            rules that differ from BERT's.
    """
    vocab_file, tokenizer_file = os.path.join(folder, VOCAB_FILE), os.path.join(folder, TOKENIZER_FILE)
    settings_file = os.path.join(folder, SETTINGS_FILE)
    notes: tuple[str, ...] = ()
    settings: dict[str, Any] = {}
    vocabularies = {vocab_file: files.read_text(vocab_file)} if files.exists(vocab_file) else {}
    if files.exists(tokenizer_file):
        try:
            settings, tokens = _read_tokenizer_json(tokenizer_file, vocabularies.get(vocab_file, ""))
            vocabularies[tokenizer_file] = "".join(f"{token}\n" for token in tokens)
        except UserError as error:
            if not overrides.vocab_file:
                raise
            notes = (f"{error}: --vocab_file replaces it with BERT's rules",)
    more = read_json_if_exists(settings_file)
    _check_accents(settings, more, tokenizer_file, settings_file)
    settings |= read_json_if_exists(os.path.join(folder, SPECIAL_TOKENS_FILE)) | more
    added_ids = read_json_if_exists(os.path.join(folder, ADDED_TOKENS_FILE))
    added, problems = list_added_tokens(settings, added_ids, folder)
    if not overrides.vocab_file:
        vocabularies = {
            path: append_added_tokens(vocab, added, config.vocab_size, problems) for path, vocab in vocabularies.items()
        }
    accents = settings.get("strip_accents")
    for key, value in (("do_lower_case", settings.get("do_lower_case")), ("strip_accents", accents)):
        if not isinstance(value, bool | None):
            raise UserError(f"the tokenizer in {folder} has {key} {value!r}; expected true or false")
    lower = settings.get("do_lower_case")
    if lower is None and overrides.strip_accents is None:
        overrides = dataclasses.replace(overrides, strip_accents=accents)
    # Stripping accents without lower-casing is rejected below, unless the user asks for BERT's own rules.
    casing = None if lower is None else make_casing(lower, accents if lower else None, added)
    found = FoundTokenizer(folder, vocabularies, casing, settings_file, tuple(added))
    model = resolve_tokenizer(found, overrides, config)
    model = dataclasses.replace(model, notes=notes + model.notes)
    problems = sorted({*problems, *_find_other_rules({"tokenizer_class": tokenizer_class} | settings, model)})
    if not problems:
        return model
    text = f"the tokenizer in {folder} has {'; '.join(problems)}, which BERT's own rules lack"
    if not overrides.vocab_file:
        raise UserError(f"{text}; give --vocab_file to take the vocabulary with BERT's rules")
    return model.add_notes(f"{text}: --vocab_file replaces them with BERT's rules")


def _find_other_rules(settings: dict[str, Any], model: LoadedModel) -> list[str]:
    """Returns descriptions of the settings that make the folder's tokenizer produce other tokens than BERT's rules.

    Args:
        settings: The merged settings of tokenizer.json and tokenizer_config.json.
        model: The model with the vocabulary and casing that were read.
    """
    allowed = _ALLOWED if model.casing.do_lower_case else _ALLOWED | {"strip_accents": (None, False)}
    problems = []
    for key in allowed.keys() & settings.keys():
        value = settings[key]
        if key.endswith("_token") and isinstance(value, dict):
            value = value.get("content")
        is_class_of_bert = key == "tokenizer_class" and _BERT_CLASSES.fullmatch(str(value))
        if value not in allowed[key] and not is_class_of_bert:
            problems.append(f"{key} {value!r}")
    if model.vocab is not None and settings.get("never_split"):
        ours = FullTokenizer.from_vocab(model.vocab, **model.casing._asdict())
        whole = [str(token) for token in settings["never_split"]]
        problems += [f"never_split {token!r}" for token in whole if ours.tokenize(token, True) != [token]]
    return problems


def _check_accents(first: dict[str, Any], second: dict[str, Any], first_file: str, second_file: str) -> None:
    """Raises a UserError if two files contradict each other about strip_accents. Null means do_lower_case's value."""
    if "strip_accents" not in first or "strip_accents" not in second:
        return
    lower = second.get("do_lower_case", first.get("do_lower_case"))
    values = [lower if each["strip_accents"] is None else each["strip_accents"] for each in (first, second)]
    if values[0] != values[1]:
        raise UserError(
            f"{first_file} has strip_accents {json.dumps(first['strip_accents'])}, {second_file} "
            f"{json.dumps(second['strip_accents'])}; give both files the value that the model was trained with"
        )


def _read_tokenizer_json(path: str, vocab: str) -> tuple[dict[str, Any], list[str]]:
    """Reads a tokenizer.json.

    Args:
        path: Path of the tokenizer.json.
        vocab: The text of the folder's vocab.txt, or "". If the tokenizer.json has the same ids, its tokens are taken
            from here, because duplicate lines of a vocab.txt leave gaps in the ids.

    Returns:
        The settings under the keys of tokenizer_config.json, and the tokens in the order of their ids.

    Raises:
        UserError: If the file is damaged or its tokenizer is not BERT's.
    """
    contents = files.read_json_object(path)
    try:
        model, normalizer = contents["model"], contents["normalizer"] or {}
        if model.get("type", "WordPiece") != "WordPiece" or normalizer.get("type") != "BertNormalizer":
            raise UserError(
                f"{path} holds a {normalizer.get('type')} and a {model.get('type')} model; expected BertNormalizer and "
                "WordPiece, as BERT has"
            )
        added = contents.get("added_tokens") or []
        special = {each["content"]: each["id"] for each in added if each["content"] in exact.SPECIAL_TOKENS}
        numbers = {**model["vocab"], **special}
        tokens = sorted(numbers, key=numbers.__getitem__)
        if vocab and exact.parse_vocab(vocab) == numbers:
            tokens = split_vocab(vocab)
        elif [numbers[token] for token in tokens] != list(range(len(tokens))):
            raise UserError(f"the ids in {path} do not run from 0 to {len(tokens) - 1}, each once; give --vocab_file")
        processor = contents.get("post_processor")
        cls, sep = numbers.get(exact.CLS), numbers.get(exact.SEP)
        bert = [_post_processor(numbers), {"type": "BertProcessing", "sep": [exact.SEP, sep], "cls": [exact.CLS, cls]}]
        settings = {
            "do_lower_case": normalizer["lowercase"],
            "strip_accents": normalizer["strip_accents"],
            "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
            **{key: model[key] for key in ("continuing_subword_prefix", "max_input_chars_per_word") if key in model},
            "normalizer.clean_text": normalizer.get("clean_text", True),
            "model.unk_token": model.get("unk_token", exact.UNK),
            "pre_tokenizer": (contents.get("pre_tokenizer") or {}).get("type"),
            "post_processor": processor if processor not in bert else _ALLOWED["post_processor"][0],
            "added_tokens": added,
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is damaged or no tokenizer of BERT: {error!r}") from error
    return settings, tokens


def tokenizer_files(checkpoint: LoadedModel) -> dict[str, str]:
    """Returns the tokenizer files for transformers, as texts by file name. Empty if the model has no vocabulary."""
    if checkpoint.vocab is None:
        return {}
    tokens, added = split_vocab(checkpoint.vocab), checkpoint.casing.added_tokens
    ids = exact.parse_vocab(checkpoint.vocab)
    num_pieces = 1 + max(exact.select_word_pieces(ids, added, VOCAB_FILE).values())
    vocab = checkpoint.vocab if num_pieces == len(tokens) else "".join(f"{token}\n" for token in tokens[:num_pieces])
    contents = {VOCAB_FILE: vocab, SETTINGS_FILE: _settings_json(checkpoint, format_added_tokens(ids, added))}
    if len(set(tokens)) == len(tokens):  # it cannot contain duplicates; without it, transformers reads vocab.txt
        contents[TOKENIZER_FILE] = format_tokenizer_json(tokens, checkpoint.casing)
    return contents


def _settings_json(checkpoint: LoadedModel, added_tokens: list[dict[str, Any]]) -> str:
    values: dict[str, Any] = {
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
    if added_tokens:
        values["added_tokens_decoder"] = {str(token.pop("id")): token for token in added_tokens}
    return json.dumps(values, indent=2) + "\n"


def _post_processor(numbers: dict[str, int]) -> dict[str, Any]:
    """Returns the post_processor of a tokenizer.json, which forms [CLS] A [SEP] or [CLS] A [SEP] B [SEP].

    Args:
        numbers: The ids of the tokens.
    """
    first = [
        {"SpecialToken": {"id": exact.CLS, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": exact.SEP, "type_id": 0}},
    ]
    second = [{"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": exact.SEP, "type_id": 1}}]
    return {
        "type": "TemplateProcessing",
        "single": first,
        "pair": first + second,
        "special_tokens": {
            token: {"id": token, "ids": [numbers.get(token)], "tokens": [token]} for token in (exact.CLS, exact.SEP)
        },
    }


def format_tokenizer_json(tokens: list[str], casing: Casing) -> str:
    """Returns the text of a tokenizer.json.

    Args:
        tokens: The tokens in the order of their ids, without duplicates.
        casing: Lower-casing, stripping of accents, and added tokens.
    """
    numbers = {token: number for number, token in enumerate(tokens)}
    special = [AddedToken(token, special=True, normalized=False) for token in exact.SPECIAL_TOKENS]
    values = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": format_added_tokens(numbers, (*special, *casing.added_tokens)),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": casing.settings.get("strip_accents"),
            "lowercase": casing.do_lower_case,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": _post_processor(numbers),
        "decoder": {"type": "WordPiece", "prefix": exact.CONTINUATION, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": exact.UNK,
            "continuing_subword_prefix": exact.CONTINUATION,
            "max_input_chars_per_word": exact.MAX_CHARACTERS_PER_WORD,
            "vocab": exact.select_word_pieces(numbers, casing.added_tokens, VOCAB_FILE),
        },
    }
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"
