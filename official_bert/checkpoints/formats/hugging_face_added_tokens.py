"""Reads and writes the added tokens of a Hugging Face folder, in the layouts of all versions of transformers.

An added token is one that the tokenizer never splits, such as [E1]. tokenizer_config.json lists them as
added_tokens_decoder, and tokenizer.json as added_tokens. Before version 4.34, added_tokens.json contained their ids,
and special_tokens_map.json listed the special ones. Their ids may lie beyond the last line of vocab.txt. In memory and
in our other formats, the vocabulary has a line for each of them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from official_bert.checkpoints.vocabulary import split_vocab
from official_bert.errors import UserError
from official_bert.tokenization.added_tokens import AddedToken, parse_added_token
from official_bert.tokenization.exact import SPECIAL_TOKENS, parse_vocab
from official_bert.utils import files

ADDED_TOKENS_FILE = "added_tokens.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"

# The id of each added token, or None if a special token has no id.
AddedIds = dict[AddedToken, int | None]


def read_json_if_exists(path: str) -> dict[str, Any]:
    """Returns the object in a JSON file, or an empty object if the file does not exist."""
    return files.read_json_object(path) if files.exists(path) else {}


def list_added_tokens(settings: Mapping[str, Any], ids: Mapping[str, Any], folder: str) -> tuple[AddedIds, list[str]]:
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
            if content in SPECIAL_TOKENS or content in added:
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
    arguments are the same as for `list_added_tokens`.
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


def append_added_tokens(vocab: str, added: AddedIds, vocab_size: int, problems: list[str]) -> str:
    """Returns the text of a vocab.txt with a line appended for each added token that it lacks.

    A token without an id gets the next free one. If the word embeddings have no row left for it, it is not added, and
    the tokenizer treats it as ordinary text.

    Args:
        vocab: The text of a vocab.txt.
        added: The id of each added token, or None.
        vocab_size: Number of rows of the word embeddings.
        problems: List to which descriptions of tokens with impossible ids are appended.
    """
    ids, count = parse_vocab(vocab), len(split_vocab(vocab))
    vocab = vocab.removesuffix("\n") + "\n" if added else vocab
    for token, index in sorted(added.items(), key=lambda each: vocab_size if each[1] is None else each[1]):
        expected = ids.get(token.content, count)
        if index not in (None, expected):
            problems.append(f"added token {token.content!r} with id {index} in place of {expected}")
        elif token.content not in ids and (index is not None or count < vocab_size):
            vocab += f"{token.content}\n"
            ids[token.content], count = count, count + 1
    return vocab


def format_added_tokens(ids: Mapping[str, int], added_tokens: Iterable[AddedToken]) -> list[dict[str, Any]]:
    """Returns the added tokens as a tokenizer.json lists them, ordered by id.

    Args:
        ids: The id of each token, by content.
        added_tokens: The added tokens.
    """
    return [
        {"id": ids[token.content], "content": token.content, "single_word": False} | token._asdict()
        for token in sorted(added_tokens, key=lambda token: ids[token.content])
    ]
