"""Added tokens: strings, such as [E1] or <user>, that are found in a text before it is split into words.

They follow the rules of Hugging Face's fast tokenizers. If several tokens match, the one that starts first is taken,
then the longest one.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from official_bert.errors import UserError


class AddedToken(NamedTuple):
    """A token of the vocabulary that is found in a text as a whole, with the fields of Hugging Face's class AddedToken.

    Attributes:
        content: The token.
        lstrip: Whether Hugging Face's offsets include the white space before the token. The ids do not depend on it.
        rstrip: Whether Hugging Face's offsets include the white space after the token. The ids do not depend on it.
        normalized: Whether the token is searched in the normalized text, which is lower-cased in uncased models.
            Otherwise, it is searched in the text as the user wrote it.
        special: Whether Hugging Face's decoder omits the token if it skips special tokens. The ids do not depend on it.
    """

    content: str
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False


def parse_added_token(value: Any) -> AddedToken:
    """Converts an added token in a JSON file to an AddedToken.

    Args:
        value: The content of a special token, or an object with Hugging Face's keys.

    Raises:
        UserError: If the value is not a token, or has a setting that this package does not implement.
    """
    values = value if isinstance(value, Mapping) else {"content": value, "special": True}
    content, special = values.get("content"), bool(values.get("special", False))
    if not isinstance(content, str) or not content:
        raise UserError(f"added token {value!r}, which has no content")
    if values.get("single_word"):
        raise UserError(f"added token {content!r} with single_word (set it to false, or remove the token)")
    if content.startswith("##") or content != content.strip() or any(map(_is_control, content)):
        raise UserError(
            f"added token {content!r} (it must not begin with ##, begin or end with white space, or contain control "
            "characters)"
        )
    normalized = bool(values.get("normalized", not special))
    return AddedToken(content, bool(values.get("lstrip")), bool(values.get("rstrip")), normalized, special)


def _is_control(character: str) -> bool:
    return unicodedata.category(character) == "Cc"


def make_pattern(contents: Iterable[str]) -> str | None:
    """Returns a regular expression, for Python and RE2, that matches any of the strings.

    None if there are no strings.
    """
    return "|".join(re.escape(content) for content in sorted(contents, key=len, reverse=True)) or None
