"""Formats numbers and lists for messages."""

from collections.abc import Sequence


def pluralize(number: int, noun: str) -> str:
    """Returns "1 step" or "2,000 steps", for a noun whose plural ends in s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def join_words(words: Sequence[str], conjunction: str = "and") -> str:
    """Joins words as in a sentence: "a", "a and b" or "a, b and c"."""
    return f" {conjunction} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
