"""Formats numbers, lists and suggestions for messages, and rejects unknown names of arguments."""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence

from official_bert.errors import UserError


def pluralize(number: int, noun: str) -> str:
    """Returns "1 step" or "2,000 steps", for a noun whose plural ends in s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def join_words(words: Sequence[str], conjunction: str = "and") -> str:
    """Joins words as in a sentence: "a", "a and b" or "a, b and c"."""
    return f" {conjunction} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def join_first(words: Sequence[str], number: int) -> str:
    """Joins the first `number` words with commas, and counts the others: "a, b and 3 more"."""
    num_hidden = len(words) - number
    return ", ".join(words[:number]) + (f" and {num_hidden:,} more" if num_hidden > 0 else "")


def suggest(name: str, known: Iterable[str], dashes: str = "") -> str:
    """Returns "; did you mean NAME?" with the known name that is most similar to `name`, or "" if none is similar."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {dashes}{close[0]}?" if close else ""


def refuse_unknown(owner: str, names: Iterable[str], valid: Collection[str], synonyms: Mapping[str, str]) -> None:
    """Raises a UserError if a Python function or class has no argument of one of these names.

    Args:
        owner: Name of the function or class.
        names: The names of the arguments that were passed.
        valid: The valid names.
        synonyms: Valid names by the names that other libraries use, for suggestions.
    """
    for name in names:
        if name not in valid:
            hint = suggest(synonyms.get(name, name), sorted(valid)) or "."
            raise UserError(f"{owner} has no argument {name}{hint} Valid arguments: {', '.join(sorted(valid))}")
