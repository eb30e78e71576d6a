"""Formats numbers of things for messages."""


def pluralize(number: int, noun: str) -> str:
    """Returns "1 step" or "2,000 steps", for a noun whose plural ends in s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
