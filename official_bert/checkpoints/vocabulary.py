"""Checks of a checkpoint's vocabulary."""

import re

from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.tokenization.exact import check_special_tokens


def lines_of(vocab: str) -> list[str]:
    """Returns the tokens of a vocab.txt's text, one a line."""
    return [line.strip() for line in vocab.removesuffix("\n").split("\n")]


def check_vocabulary(vocab: str, config: BertConfig, path: str) -> tuple[str, ...]:
    """Compares a vocab.txt's number of tokens with the rows of the word table; returns a note where they differ.

    A table may have more rows than the vocabulary has tokens, in training and in every format: some pad it for the
    speed of their devices, and some train a released configuration with a vocabulary of their own. The other rows are
    kept and never used. The other way round there are tokens without a row.

    Raises:
        UserError: there are more tokens than rows, or a special token is missing.
    """
    tokens = lines_of(vocab)
    check_special_tokens({token: index for index, token in enumerate(tokens)}, path)
    if len(tokens) > config.vocab_size:
        raise UserError(
            f"{path} has {len(tokens)} tokens, but the configuration has vocab_size {config.vocab_size}; they must "
            "belong together"
        )
    if len(tokens) == config.vocab_size:
        return ()
    unused = config.vocab_size - len(tokens)
    note = f"the vocabulary has {len(tokens):,} tokens, the word table {config.vocab_size:,} rows (vocab_size)"
    return (f"{note}: the other {unused:,} are never used",)


def is_uncased(vocab: str) -> bool:
    """Whether a vocabulary looks uncased: fewer than one token in a thousand has a capital from A to Z.

    Tokens in brackets, as [MASK], do not count. The released uncased ones have up to two others.
    """
    tokens = lines_of(vocab)
    return sum(bool(re.search("[A-Z]", token)) and not token.startswith("[") for token in tokens) * 1000 < len(tokens)
