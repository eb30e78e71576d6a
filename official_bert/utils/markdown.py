"""Formats plain text as Markdown: escaped text, code spans and tables."""

import html
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

Table = Sequence[Sequence[str]]  # rows of cells; the first row is the header


def escape(text: str) -> str:
    """Puts text on one line and escapes all markup characters."""
    escaped = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`*\[\]#|]|\b_|_\b)", r"\\\1", escaped)  # _ within a word is not markup


def code(text: str) -> str:
    """Formats text as a code span. It is enclosed in more backticks than the text contains in a row."""
    fence = next(fence for fence in ("`" * count for count in itertools.count(1)) if fence not in text)
    return f"{fence} {text} {fence}" if len(fence) > 1 else f"`{text}`"


def table(rows: Table) -> str:
    """Formats a header and rows as a table of escaped cells. Returns "" if the header has no rows below it."""
    if len(rows) < 2:
        return ""
    lines = [f"| {' | '.join(map(escape, row))} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def flag_table(flags: Mapping[str, Any]) -> list[list[str]]:
    """Returns the rows of a table with the name and value of each flag that has a value."""
    rows = [
        [f"--{name}", ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)]
        for name, value in flags.items()
        if value is not None and value != []
    ]
    return [["flag", "value"], *rows]
