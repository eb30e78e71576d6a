"""What a tokenizer does to letters: lower case, and whether accents go or stay."""

import unicodedata
from collections.abc import Iterable
from typing import Any, NamedTuple

from official_bert.errors import UserError

# The help of the flag, where a checkpoint may say it.
STRIP_ACCENTS = "Whether lower-cased texts lose their accents, where the files do not say it; by default they do."


NO_RULE = "BERT's rules delete accents in lower-cased text alone"


class Casing(NamedTuple):
    """What the texts of a vocabulary are brought to; there are three kinds, which `make_casing` makes."""

    do_lower_case: bool = True  # whether the vocabulary is uncased
    strip_accents: bool = True  # whether accents are deleted; never without lower case

    @property
    def kind(self) -> str:
        """The name of its kind in lines for the user."""
        if not self.do_lower_case:
            return "cased"
        return "uncased" if self.strip_accents else "uncased, accented"

    @property
    def texts(self) -> str:
        """What is done to texts, in words."""
        if not self.do_lower_case:
            return "not lower-cased"
        return "lower-cased" if self.strip_accents else "lower-cased with their accents kept"

    @property
    def settings(self) -> dict[str, Any]:
        """What files say of it; strip_accents stands there only where it is not what do_lower_case says."""
        kept = self.do_lower_case and not self.strip_accents
        return {"do_lower_case": self.do_lower_case, **({"strip_accents": False} if kept else {})}


UNCASED = Casing()


def make_casing(do_lower_case: bool = True, strip_accents: bool | None = None) -> Casing:
    """Returns what a tokenizer of these arguments does; strip_accents None is the original's rule: with lower case.

    Raises:
        UserError: accents are to go where capital letters stay, for which BERT has no rule.
    """
    if strip_accents and not do_lower_case:
        raise UserError(f"strip_accents is true, but do_lower_case is false: {NO_RULE}; leave strip_accents out")
    return Casing(do_lower_case, do_lower_case if strip_accents is None else strip_accents)


def has_accents(vocab: str) -> bool:
    """Returns whether a vocabulary's text has an accent. A model whose texts lose their accents has none."""
    return any(unicodedata.category(each) == "Mn" for each in unicodedata.normalize("NFD", vocab))


def detect_lower_case(tokens: Iterable[str]) -> tuple[bool | None, str]:
    """Returns whether a vocabulary is uncased, and a piece that shows it.

    True if most pieces have letters with two cases and none has a capital. False if more than one in fifty of those
    pieces has a capital. None otherwise, since the vocabulary may be used either way: a Chinese one, for example, or an
    uncased one to which the user added some names. Tokens in brackets, such as [MASK] and <S>, do not count.
    """
    pieces = [token for token in tokens if not token.startswith(("[", "<"))]
    with_case = [piece for piece in pieces if piece.lower() != piece.title()]  # title(): Georgian text has no capitals
    capitalized = [piece for piece in with_case if piece != piece.lower()]
    if 50 * len(capitalized) > len(with_case):
        return False, capitalized[0]
    if with_case and not capitalized and 2 * len(with_case) > len(pieces):
        return True, with_case[0]
    return None, ""


def infer_casing(tokens: Iterable[str], do_lower_case: bool | None, strip_accents: bool | None = None) -> Casing:
    """Returns what `make_casing` does. If do_lower_case is None, the vocabulary decides; lower case if it does not."""
    if do_lower_case is None:
        do_lower_case = detect_lower_case(tokens)[0] is not False
    return make_casing(do_lower_case, strip_accents)


def resolve_casing(
    tokens: Iterable[str], do_lower_case: "bool | Casing | None", strip_accents: bool | None = None
) -> Casing:
    """Returns the casing that the arguments of a Keras model or layer describe.

    Args:
        tokens: The vocabulary's tokens.
        do_lower_case: Whether the vocabulary is uncased. None lets the vocabulary decide. A Casing, which a checkpoint
            or file states, is returned unchanged.
        strip_accents: Whether accents are deleted. None follows do_lower_case.

    Raises:
        UserError: If the arguments contradict the vocabulary or each other.
    """
    if isinstance(do_lower_case, Casing):
        return do_lower_case
    tokens = list(tokens)
    if do_lower_case is not None and (problem := find_contradiction(tokens, do_lower_case)):
        raise UserError(f"do_lower_case is {do_lower_case}, but the vocabulary {problem}; leave do_lower_case out")
    return infer_casing(tokens, do_lower_case, strip_accents)


def find_contradiction(tokens: Iterable[str], do_lower_case: bool) -> str | None:
    """Returns what is wrong with the vocabulary for text that is lower-cased or not, or None."""
    is_uncased, piece = detect_lower_case(tokens)
    if is_uncased in (None, do_lower_case):
        return None
    if is_uncased:
        return f"has no piece with a capital letter ({piece!r} is there in lower case only): such words become [UNK]"
    return f"has pieces with capital letters, such as {piece!r}, which never occur in lower-cased text"


def describe_contradiction(tokens: Iterable[str], do_lower_case: bool, vocab_file: str, remedy: str) -> str | None:
    """Returns what is wrong with text of this casing for a vocabulary, or None.

    Args:
        tokens: The vocabulary's tokens.
        do_lower_case: Whether the text is lower-cased.
        vocab_file: Path of the vocabulary, for the message.
        remedy: The verb that precedes the flag in the message, such as "pass".
    """
    if problem := find_contradiction(tokens, do_lower_case):
        return f"{vocab_file} {problem}; {remedy} --do_lower_case={str(not do_lower_case).lower()}"
    return None
