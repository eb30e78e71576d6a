"""The settings of a tokenizer: lower-casing, deletion of accents, and added tokens."""

import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

from official_bert.errors import UserError
from official_bert.tokenization.added_tokens import AddedToken, parse_added_token

# The help of the flag in commands that read checkpoints.
STRIP_ACCENTS = (
    "Whether accents are deleted in lower-cased text, if the checkpoint's files do not state it. Defaults to true."
)

NO_RULE = "BERT's rules delete accents only in lower-cased text"
ADDED_TOKENS = "added_tokens"


class Casing(NamedTuple):
    """The settings of a tokenizer. Create them with `make_casing`, which checks them.

    Attributes:
        do_lower_case: Whether texts are lower-cased, for uncased vocabularies.
        strip_accents: Whether accents are deleted. Requires do_lower_case.
        added_tokens: Tokens that are found in a text before it is split into words.
    """

    do_lower_case: bool = True
    strip_accents: bool = True
    added_tokens: tuple[AddedToken, ...] = ()

    @property
    def kind(self) -> str:
        """The name of the casing in messages: "cased", "uncased", or "uncased, accented"."""
        if not self.do_lower_case:
            return "cased"
        return "uncased" if self.strip_accents else "uncased, accented"

    @property
    def texts(self) -> str:
        """A description of the settings for messages, which follows the words "texts are"."""
        added = f", with the added tokens {', '.join(token.content for token in self.added_tokens)}"
        accents = "" if self.strip_accents or not self.do_lower_case else " with their accents kept"
        return f"{'' if self.do_lower_case else 'not '}lower-cased{accents}{added if self.added_tokens else ''}"

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as JSON values. Settings with the default value are left out, except for do_lower_case."""
        settings: dict[str, Any] = {"do_lower_case": self.do_lower_case}
        if self.do_lower_case and not self.strip_accents:
            settings["strip_accents"] = False
        if self.added_tokens:
            settings[ADDED_TOKENS] = [token._asdict() for token in self.added_tokens]
        return settings

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Creates a Casing from the JSON values of `Casing.settings`.

        Raises:
            KeyError: If do_lower_case is missing.
            UserError: If a setting has an invalid value.
        """
        lower, accents = settings["do_lower_case"], settings.get("strip_accents")
        if not isinstance(lower, bool) or not isinstance(accents, bool | None):
            raise UserError(f"do_lower_case is {lower!r} and strip_accents {accents!r}; expected true or false")
        added = settings.get(ADDED_TOKENS) or []
        return cls(*make_casing(lower, accents, map(parse_added_token, added)))


UNCASED = Casing()


def make_casing(
    do_lower_case: bool = True, strip_accents: bool | None = None, added_tokens: Iterable[AddedToken] = ()
) -> Casing:
    """Creates a Casing after checking the settings.

    Args:
        do_lower_case: Whether texts are lower-cased.
        strip_accents: Whether accents are deleted. None means the value of do_lower_case, as in the original.
        added_tokens: Tokens that are found in a text before it is split into words.

    Raises:
        UserError: If strip_accents is true and do_lower_case is false.
    """
    if strip_accents and not do_lower_case:
        raise UserError(f"strip_accents is true, but do_lower_case is false: {NO_RULE}; remove strip_accents")
    return Casing(do_lower_case, do_lower_case if strip_accents is None else strip_accents, tuple(added_tokens))


def has_accents(vocab: str) -> bool:
    """Returns whether a vocab.txt contains an accented letter.

    Args:
        vocab: Contents of the file.
    """
    return any(unicodedata.category(each) == "Mn" for each in unicodedata.normalize("NFD", vocab))


def is_marker(token: str) -> bool:
    """Returns whether a token is in brackets, such as [MASK] and <S>. Its letters say nothing about the casing."""
    return token.startswith(("[", "<"))


def detect_lower_case(tokens: Iterable[str]) -> tuple[bool | None, str]:
    """Guesses whether a vocabulary is uncased, and returns the guess and a word piece that justifies it.

    True if most pieces have letters with two cases and none has a capital. False if more than one in fifty of those
    pieces has a capital. None (with "") otherwise, because the vocabulary may be used either way: a Chinese one, for
    example, or an uncased one to which the user added some names. Tokens in brackets, such as [MASK] and <S>, do not
    count.
    """
    pieces = [token for token in tokens if not is_marker(token)]
    with_case = [piece for piece in pieces if piece.lower() != piece.title()]  # title(): Georgian text has no capitals
    capitalized = [piece for piece in with_case if piece != piece.lower()]
    if 50 * len(capitalized) > len(with_case):
        return False, capitalized[0]
    if with_case and not capitalized and 2 * len(with_case) > len(pieces):
        return True, with_case[0]
    return None, ""


def infer_casing(tokens: Iterable[str], do_lower_case: bool | None, strip_accents: bool | None = None) -> Casing:
    """Creates a Casing.

    If do_lower_case is None, it is guessed from the vocabulary (true if the vocabulary fits both).
    """
    if do_lower_case is None:
        do_lower_case = detect_lower_case(tokens)[0] is not False
    return make_casing(do_lower_case, strip_accents)


def resolve_casing(
    tokens: Iterable[str], do_lower_case: "bool | Casing | None", strip_accents: bool | None = None
) -> Casing:
    """Creates a Casing from the arguments of a Keras model or layer.

    Args:
        tokens: The tokens of the vocabulary.
        do_lower_case: Whether the vocabulary is uncased. None guesses it from the vocabulary. A Casing is returned
            unchanged, without a check against the vocabulary.
        strip_accents: Whether accents are deleted. None means the value of do_lower_case.

    Raises:
        UserError: If the arguments contradict the vocabulary or each other.
    """
    if isinstance(do_lower_case, Casing):
        return do_lower_case
    tokens = list(tokens)
    if do_lower_case is not None and (problem := find_contradiction(tokens, do_lower_case)):
        raise UserError(f"do_lower_case is {do_lower_case}, but the vocabulary {problem}; remove do_lower_case")
    return infer_casing(tokens, do_lower_case, strip_accents)


def restore_casing(config: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the config of a Keras model or layer to constructor arguments.

    The entries of `Casing.settings` are replaced by a Casing object as do_lower_case.
    """
    others = {name: value for name, value in config.items() if name not in ("strip_accents", ADDED_TOKENS)}
    return others | {"do_lower_case": Casing.from_settings(config)}


def find_contradiction(tokens: Iterable[str], do_lower_case: bool) -> str | None:
    """Returns a description of why a vocabulary does not fit the casing of a text, or None if it fits.

    Args:
        tokens: The tokens of the vocabulary.
        do_lower_case: Whether the text is lower-cased.
    """
    is_uncased, piece = detect_lower_case(tokens)
    if is_uncased in (None, do_lower_case):
        return None
    if is_uncased:
        return f"has no piece with a capital letter ({piece!r} is there in lower case only): such words become [UNK]"
    return f"has pieces with capital letters, such as {piece!r}, which never occur in lower-cased text"


def describe_contradiction(tokens: Iterable[str], do_lower_case: bool, vocab_file: str, remedy: str) -> str | None:
    """Returns an error message if a vocabulary does not fit the casing of a text, or None if it fits.

    Args:
        tokens: The tokens of the vocabulary.
        do_lower_case: Whether the text is lower-cased.
        vocab_file: Path of the vocabulary, for the message.
        remedy: The verb that precedes the flag in the message, such as "pass".
    """
    if problem := find_contradiction(tokens, do_lower_case):
        return f"{vocab_file} {problem}; {remedy} --do_lower_case={str(not do_lower_case).lower()}"
    return None
