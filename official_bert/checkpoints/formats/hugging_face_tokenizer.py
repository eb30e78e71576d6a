"""Reads and writes the tokenizer of a Hugging Face folder: vocab.txt or tokenizer.json, and tokenizer_config.json.

Added tokens, which the tokenizer never splits, such as [E1], are read in the layouts of all versions of transformers.
tokenizer_config.json lists them as added_tokens_decoder, and tokenizer.json as added_tokens. Before version 4.34,
added_tokens.json contained their ids, and special_tokens_map.json listed the special ones. Their ids may lie beyond the
last line of vocab.txt. In memory and in our other formats, the vocabulary has a line for each of them.
"""

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from official_bert.checkpoints.checkpoint import VOCAB_FILE, LoadedModel, LoadOverrides
from official_bert.checkpoints.vocabulary import FoundTokenizer, resolve_tokenizer, split_vocab
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.tokenization import exact
from official_bert.tokenization.added_tokens import AddedToken, parse_added_token
from official_bert.tokenization.casing import Casing, make_casing
from official_bert.tokenization.exact import FullTokenizer
from official_bert.utils import files

TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"
_ADDED_TOKENS_FILE = "added_tokens.json"
_SPECIAL_TOKENS_FILE = "special_tokens_map.json"

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

# The id of each added token, or None if a special token has no id.
_AddedIds = dict[AddedToken, int | None]


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
    more = _read_json_if_exists(settings_file)
    _check_accents(settings, more, tokenizer_file, settings_file)
    lower, used = settings.get("do_lower_case"), more.get("do_lower_case")
    if None not in (lower, used) and lower != used:
        first, second = json.dumps(used), json.dumps(lower)
        notes += (f"{settings_file} has do_lower_case {first}, {tokenizer_file} lowercase {second}: {first} is used",)
    settings |= _read_json_if_exists(os.path.join(folder, _SPECIAL_TOKENS_FILE)) | more
    added_ids = _read_json_if_exists(os.path.join(folder, _ADDED_TOKENS_FILE))
    added, problems = _list_added_tokens(settings, added_ids, folder)
    if not overrides.vocab_file:
        vocabularies = {
            path: _append_added_tokens(vocab, added, config.vocab_size, problems)
            for path, vocab in vocabularies.items()
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
        raise UserError(f"{text}; pass --vocab_file to use the vocabulary with BERT's rules")
    return model.add_notes(f"{text}: --vocab_file replaces them with BERT's rules")


def _read_json_if_exists(path: str) -> dict[str, Any]:
    """Returns the object in a JSON file, or an empty object if the file does not exist."""
    return files.read_json_object(path) if files.exists(path) else {}


def _list_added_tokens(settings: Mapping[str, Any], ids: Mapping[str, Any], folder: str) -> tuple[_AddedIds, list[str]]:
    """Returns the added tokens in a folder's JSON files, without [PAD], [UNK], [CLS], [SEP] and [MASK].

    Args:
        settings: The merged contents of tokenizer.json, special_tokens_map.json and tokenizer_config.json.
        ids: The contents of added_tokens.json: the id of each token.
        folder: The folder, for error messages.

    Returns:
        The id of each added token (None if the files do not state it), and descriptions of tokens that are not
        supported.

    Raises:
        UserError: If a value has a type that transformers does not write.
    """
    added: dict[str, tuple[AddedToken, int | None]] = {}
    problems = []
    try:
        for value, index in _list_values(settings, ids):
            content = value["content"] if isinstance(value, dict) else value
            if content in exact.SPECIAL_TOKENS or content in added:
                continue
            try:
                added[content] = parse_added_token(value), None if index is None else int(index)
            except UserError as error:
                problems.append(str(error))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"the added tokens of the tokenizer in {folder} are damaged: {error!r}") from error
    return dict(added.values()), problems


def _list_values(settings: Mapping[str, Any], ids: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Returns all entries for added tokens in the files as pairs of description and id.

    A description is a string or a dict with "content". If a token occurs several times, the first entry counts. The
    arguments are the same as for `_list_added_tokens`.
    """
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    special = [value for key, value in settings.items() if key.endswith("_token") and isinstance(value, str | dict)]
    special += extra.values() if isinstance(extra, dict) else extra
    special_contents = [each["content"] if isinstance(each, dict) else each for each in special]
    return [
        *((value, index) for index, value in (settings.get("added_tokens_decoder") or {}).items()),
        *((value, value.get("id")) for value in settings.get("added_tokens") or []),
        *(({"content": token, "special": token in special_contents}, index) for token, index in ids.items()),
        *(({**each, "special": True} if isinstance(each, dict) else each, None) for each in special),
    ]


def _append_added_tokens(vocab: str, added: _AddedIds, vocab_size: int, problems: list[str]) -> str:
    """Returns the text of a vocab.txt with a line appended for each added token that it lacks.

    A token without an id gets the next free one. If the word embeddings have no row left for it, it is not added, and
    the tokenizer treats it as ordinary text.

    Args:
        vocab: The text of a vocab.txt.
        added: The id of each added token, or None.
        vocab_size: Number of rows of the word embeddings.
        problems: List to which descriptions of tokens with impossible ids are appended.
    """
    ids, count = exact.parse_vocab(vocab), len(split_vocab(vocab))
    vocab = vocab.removesuffix("\n") + "\n" if added else vocab
    for token, index in sorted(added.items(), key=lambda each: vocab_size if each[1] is None else each[1]):
        expected = ids.get(token.content, count)
        if index is not None and index >= vocab_size:
            problems.append(f"added token {token.content!r} with id {index}, which needs a vocab_size of {index + 1}")
        elif index not in (None, expected):
            problems.append(f"added token {token.content!r} with id {index} in place of {expected}")
        elif token.content not in ids and (index is not None or count < vocab_size):
            vocab += f"{token.content}\n"
            ids[token.content], count = count, count + 1
    return vocab


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
            f"{json.dumps(second['strip_accents'])}; set both to the value that the model was trained with"
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
            raise UserError(f"the ids in {path} do not run from 0 to {len(tokens) - 1}, each once; pass --vocab_file")
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
    contents = {VOCAB_FILE: vocab, SETTINGS_FILE: _settings_json(checkpoint, _format_added_tokens(ids, added))}
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
        "added_tokens": _format_added_tokens(numbers, (*special, *casing.added_tokens)),
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


def _format_added_tokens(ids: Mapping[str, int], added_tokens: Iterable[AddedToken]) -> list[dict[str, Any]]:
    """Returns the added tokens as a tokenizer.json lists them, ordered by id.

    Args:
        ids: The id of each token, by content.
        added_tokens: The added tokens.
    """
    return [
        {"id": ids[token.content], "content": token.content, "single_word": False} | token._asdict()
        for token in sorted(added_tokens, key=lambda token: ids[token.content])
    ]
