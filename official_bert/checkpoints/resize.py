"""Adds tokens to the vocabulary of a trained model, or positions for longer sequences."""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from official_bert.checkpoints.checkpoint import Array, LoadedModel
from official_bert.checkpoints.vocabulary import UNUSED, split_vocab
from official_bert.errors import UserError
from official_bert.tokenization.added_tokens import AddedToken
from official_bert.tokenization.exact import CONTINUATION, UNK, BasicTokenizer, WordpieceTokenizer
from official_bert.utils import files

# New tokens of this form become added tokens, which the tokenizer finds in the text before it splits words.
_MARKER = re.compile(r"\[\S+\]|<\S+>")


def add_tokens(checkpoint: LoadedModel, tokens: Sequence[str], rows: str = "append") -> tuple[LoadedModel, list[str]]:
    """Adds tokens to the vocabulary, the word embeddings and the masked-LM head of a checkpoint.

    The embedding of a new token, and its bias in the masked-LM head, is the mean over the WordPiece tokens that the
    word was split into before. If the word was only [UNK], it is the mean over all rows.

    Args:
        checkpoint: A checkpoint with a vocabulary and without optimizer state.
        tokens: Words, pieces (beginning with ##) or markers, such as [E1] and <user>, which become added tokens.
        rows: Which rows of the word embeddings the tokens get. "append": new rows at the end. "unused": the rows of the
            [unused0], [unused1], ... tokens. "unused_first": those rows, then new rows.

    Returns:
        The changed checkpoint, and the new tokens that were only [UNK] before.

    Raises:
        UserError: If a token already exists, the tokenizer would split it, or there are too few [unused...] tokens.
    """
    if checkpoint.slots:
        raise UserError("tokens cannot be added to a checkpoint with the state of an optimizer; remove --optimizer")
    vocab = split_vocab(checkpoint.require_vocab())
    numbers = {token: number for number, token in enumerate(vocab)}
    casing = checkpoint.casing
    basic = BasicTokenizer(casing.do_lower_case, casing.strip_accents)
    for index, token in enumerate(tokens):
        if token in numbers or token in tokens[:index]:
            raise UserError(f"the new token {token!r} is already in the vocabulary or is listed twice; remove it")
        word = token.removeprefix(CONTINUATION)
        if not _MARKER.fullmatch(token) and basic.tokenize(word) != [word]:
            raise UserError(
                f"the new token {token!r} never occurs in tokenized text, because the "
                f"{'uncased ' if casing.do_lower_case else ''}tokenizer splits or changes it: {basic.tokenize(word)}. "
                "Write it in the form in which the tokenizer produces it, or as a marker: [...] or <...>"
            )
    unused = [] if rows == "append" else [number for number, token in enumerate(vocab) if UNUSED.fullmatch(token)]
    if rows == "unused" and len(unused) < len(tokens):
        raise UserError(
            f"there are {len(tokens)} new tokens, but only {len(unused)} [unused...] tokens in the vocabulary; pass "
            "--new_token_rows=unused_first or append"
        )
    row_numbers = [*unused, *range(len(vocab), len(vocab) + len(tokens))][: len(tokens)]
    pieces = [_get_piece_ids(token, numbers, basic) for token in tokens]
    weights = dict(checkpoint.weights)
    for name in ("word_embeddings/embeddings", "masked_lm_output/bias"):
        if name in weights:
            weights[name] = _set_rows(weights[name], row_numbers, pieces, len(vocab))
    for row_number, token in zip(row_numbers, tokens, strict=True):
        vocab[row_number : row_number + 1] = [token]
    config = dataclasses.replace(checkpoint.config, vocab_size=len(weights["word_embeddings/embeddings"]))
    markers = (AddedToken(token, special=True, normalized=False) for token in tokens if _MARKER.fullmatch(token))
    casing = casing._replace(added_tokens=(*casing.added_tokens, *markers))
    text = "".join(f"{token}\n" for token in vocab)
    unknown = [token for token, ids in zip(tokens, pieces, strict=True) if not ids]
    return dataclasses.replace(checkpoint, config=config, weights=weights, vocab=text, casing=casing), unknown


def add_tokens_from_file(checkpoint: LoadedModel, path: str, rows: str) -> tuple[LoadedModel, list[str], list[str]]:
    """Adds the tokens in a file with one token per line, like `add_tokens`.

    Returns:
        The changed checkpoint, the new tokens, and the new tokens that were only [UNK] before.

    Raises:
        UserError: If the file contains no token, or a token cannot be added.
    """
    tokens = [line.strip() for line in files.read_text(path).splitlines() if line.strip()]
    if not tokens:
        raise UserError(f"{path} contains no words; write one word or token per line")
    try:
        checkpoint, unknown = add_tokens(checkpoint, tokens, rows)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    return checkpoint, tokens, unknown


def _get_piece_ids(token: str, numbers: dict[str, int], basic: BasicTokenizer) -> list[int]:
    """Returns the ids of the WordPiece tokens that a word is split into, without [UNK].

    Args:
        token: The word, possibly with ## before it.
        numbers: The ids of the vocabulary's tokens.
        basic: The tokenizer that splits text into words.
    """
    wordpiece = WordpieceTokenizer(numbers)
    words = basic.tokenize(token.removeprefix(CONTINUATION))
    return [numbers[piece] for word in words for piece in wordpiece.pieces(word) if piece != UNK]


def _set_rows(table: Array, row_numbers: list[int], pieces: list[list[int]], used: int) -> Array:
    """Returns a copy of `table`, extended if necessary, in which the rows of new tokens are means of existing rows.

    Args:
        table: Embeddings [V, H] or biases [V].
        row_numbers: The row of each new token.
        pieces: For each new token, the rows to average. Empty for all rows.
        used: Number of rows that belong to tokens. Only these count if all rows are averaged.
    """
    grown = np.zeros((max(len(table), *(row_number + 1 for row_number in row_numbers)), *table.shape[1:]), table.dtype)
    grown[: len(table)] = table
    everything = list(range(used))
    for row_number, numbers in zip(row_numbers, pieces, strict=True):
        grown[row_number] = table[numbers or everything].mean(axis=0, dtype=np.float64)
    return grown


def extend_positions(checkpoint: LoadedModel, length: int, how: str = "tiled") -> LoadedModel:
    """Extends the position embeddings of a checkpoint for longer sequences.

    Args:
        checkpoint: A checkpoint without optimizer state.
        length: The new number of positions, in tokens.
        how: "tiled" repeats the table from its start. "interpolated" stretches it linearly: the first and last rows
            stay the first and last, and each row between is a weighted mean of two neighboring old rows.

    Raises:
        UserError: If the model already has `length` positions or more.
    """
    if checkpoint.slots:
        raise UserError("positions cannot be added to a checkpoint with optimizer state; remove --optimizer")
    table = checkpoint.weights["position_embeddings/embeddings"]  # [L, H]
    if length <= len(table):
        raise UserError(f"the model has {len(table)} positions; expected a number greater than that, received {length}")
    if how == "tiled":
        rows = table[np.arange(length) % len(table)]
    else:
        positions = np.linspace(0.0, len(table) - 1, length)
        before = np.floor(positions).astype(int)
        after = np.minimum(before + 1, len(table) - 1)
        share = (positions - before)[:, None]
        rows = ((1.0 - share) * table[before] + share * table[after]).astype(table.dtype)
    return dataclasses.replace(
        checkpoint,
        config=dataclasses.replace(checkpoint.config, max_position_embeddings=length),
        weights={**checkpoint.weights, "position_embeddings/embeddings": rows},
    )
