"""Checks a checkpoint's vocabulary and casing, and compares them with the user's settings."""

import dataclasses
import json
import re
from collections.abc import Mapping

from official_bert.checkpoints.checkpoint import LoadedModel, LoadOverrides
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.tokenization.added_tokens import AddedToken
from official_bert.tokenization.casing import (
    Casing,
    describe_contradiction,
    detect_lower_case,
    find_contradiction,
    has_accents,
    infer_casing,
    make_casing,
)
from official_bert.tokenization.exact import check_special_tokens
from official_bert.utils import files

UNUSED = re.compile(r"\[unused\d+\]")


@dataclasses.dataclass(frozen=True)
class FoundTokenizer:
    """The vocabulary and tokenizer settings that were found in a checkpoint's folder.

    Attributes:
        folder: The folder of the checkpoint.
        vocabularies: The text of each vocabulary, one token per line, by the path of its file.
        casing: The casing that the folder states, or None if it states none.
        added_tokens: The added tokens, for a folder without a casing. Otherwise they are in `casing`.
        settings_file: The path of the file that states the casing, or of the file that should.
    """

    folder: str
    vocabularies: Mapping[str, str]
    casing: Casing | None
    settings_file: str
    added_tokens: tuple[AddedToken, ...] = ()


def resolve_tokenizer(found: FoundTokenizer, overrides: LoadOverrides, config: BertConfig) -> LoadedModel:
    """Decides on a checkpoint's vocabulary and casing, from its files and the user's settings.

    What the folder states has priority over the user's settings, unless `overrides.replace` is true. A casing that
    neither states is inferred from the vocabulary.

    Args:
        found: What the folder contains.
        overrides: The user's settings.
        config: The model's configuration.

    Returns:
        A LoadedModel with the configuration, vocabulary, casing and notes, and without weights.

    Raises:
        UserError: If the user contradicts the folder and `overrides.replace` is false, files contradict each other, or
            the vocabulary does not fit the configuration.
    """
    notes: tuple[str, ...] = ()
    if overrides.vocab_file:
        path, vocab = overrides.vocab_file, files.read_text(overrides.vocab_file)
        problems = [find_vocabulary_difference(own, vocab) for own in found.vocabularies.values()]
        if problems and all(problems):
            problem = f"{path} is not the vocabulary of {found.folder} ({problems[0]})"
            if not overrides.replace:
                raise UserError(f"{problem}, whose weights belong to its own vocabulary; remove --vocab_file")
            notes += (f"{problem}: it replaces that vocabulary",)
    elif found.vocabularies:
        (path, vocab), *others = found.vocabularies.items()
        for other, text in others:
            if split_vocab(text) != split_vocab(vocab):
                raise UserError(f"{path} and {other} contain different vocabularies; pass one as --vocab_file")
    else:
        note = f"{found.folder} has no vocabulary; pass --vocab_file to write one with the model"
        casing = make_casing(overrides.do_lower_case is not False, overrides.strip_accents)
        return LoadedModel(config, {}, casing=casing, notes=(note,))
    notes += check_vocabulary(vocab, config, path)
    casing, casing_notes = _resolve_casing(found, overrides, vocab, path)
    tokens = set(split_vocab(vocab))
    added = found.casing.added_tokens if found.casing else found.added_tokens
    kept = tuple(token for token in added if token.content in tokens)
    if dropped := [token.content for token in added if token not in kept]:
        notes += (f"{path} has no line for the added tokens {', '.join(dropped)}: they are ordinary text",)
    casing = casing._replace(added_tokens=kept)
    return LoadedModel(config, {}, vocab, casing, found.casing is not None, notes=notes + casing_notes)


def _resolve_casing(
    found: FoundTokenizer, overrides: LoadOverrides, vocab: str, path: str
) -> tuple[Casing, tuple[str, ...]]:
    wanted = overrides.do_lower_case
    flag = "--do_lower_case" if wanted else "--nodo_lower_case"
    accents = overrides.strip_accents
    if (stated := found.casing) is not None:
        same_case = wanted in (None, stated.do_lower_case)
        if same_case and accents in (None, stated.strip_accents):
            problem = find_contradiction(split_vocab(vocab), stated.do_lower_case)
            note = f"{found.settings_file} says {stated.kind}, but {path} {problem}"
            return stated, (f"{note}; if the file is wrong, correct it with official-bert convert",) if problem else ()
        if same_case:
            wanted, flag = stated.do_lower_case, "--strip_accents" if accents else "--nostrip_accents"
        problem = f"{flag} contradicts {found.settings_file}"
        if not overrides.replace:
            raise UserError(
                f"{problem}, which states how the model was trained; remove the flag or, if "
                f"the file is wrong, write a corrected copy of the model with official-bert convert {flag}"
            )
        return make_casing(bool(wanted), accents), (f"{problem}: the flag is used",)
    tokens = split_vocab(vocab)
    if wanted is None:
        casing = infer_casing(tokens, None, accents)
        note = f"the vocabulary looks {casing.kind}"
        if detect_lower_case(tokens)[0] is None:
            note = "the vocabulary may be cased: text is lower-cased, unless you pass --do_lower_case=false"
        if casing.do_lower_case and accents is None and has_accents(vocab):
            note += "; it has pieces with accents, which --nostrip_accents keeps in texts"
        return casing, (note,)
    casing = make_casing(wanted, accents)
    contradiction = describe_contradiction(tokens, wanted, path, "pass")
    if not contradiction:
        return casing, ()
    if overrides.replace:
        return casing, (contradiction,)
    if found.settings_file:
        contradiction += (
            f"; or, if the model was trained so, write {json.dumps(casing.settings)} to {found.settings_file}"
        )
    raise UserError(contradiction)


def find_vocabulary_difference(own: str, other: str) -> str | None:
    """Returns a description of the first difference between two vocabularies, or None if they are compatible.

    They are compatible if `other` differs only in [unused...] tokens that it replaces and tokens that it appends.

    Args:
        own: The text of the model's own vocab.txt.
        other: The text of another vocab.txt, to be used with the model.
    """
    own_tokens, other_tokens = split_vocab(own), split_vocab(other)
    for number, token in enumerate(own_tokens):
        if UNUSED.fullmatch(token):
            continue
        if number >= len(other_tokens):
            return f"it has {len(other_tokens):,} tokens instead of {len(own_tokens):,}"
        if other_tokens[number] != token:
            return f"line {number + 1:,} is {other_tokens[number][:60]!r} instead of {token!r}"
    return None


def split_vocab(vocab: str) -> list[str]:
    """Splits the text of a vocab.txt into tokens, one per line."""
    return [line.strip() for line in vocab.removesuffix("\n").split("\n")]


def check_vocabulary(vocab: str, config: BertConfig, path: str) -> tuple[str, ...]:
    """Checks that the word embeddings have a row for each token. Returns a note if they have more rows.

    Additional rows are allowed: some models are padded for speed, and some users train a released configuration with a
    smaller vocabulary. These rows are kept.

    Raises:
        UserError: If there are more tokens than rows, or a special token such as [CLS] is missing.
    """
    tokens = split_vocab(vocab)
    check_special_tokens({token: index for index, token in enumerate(tokens)}, path)
    if len(tokens) > config.vocab_size:
        raise UserError(
            f"{path} has {len(tokens)} tokens, but the configuration has vocab_size {config.vocab_size}; "
            + ("pass the model's own vocabulary" if tokens[-1] else "remove the blank lines at the end of the file")
        )
    if len(tokens) == config.vocab_size:
        return ()
    unused = config.vocab_size - len(tokens)
    note = f"the vocabulary has {len(tokens):,} tokens, the word table {config.vocab_size:,} rows (vocab_size)"
    return (f"{note}: the other {unused:,} have no token",)
