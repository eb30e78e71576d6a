"""Sentences of words with tags: from CoNLL's columns, CoNLL-U's, and the rows of tables.

The last of CoNLL's columns is the tag by default. In CoNLL-U the syntactic words are tagged: the lines of contractions
(1-2) and of empty nodes (1.1) are passed over.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.tasks.heads.tagging import Sentence
from official_bert.utils import files, tables
from official_bert.utils.bad_rows import BadRows

_CONLLU_COLUMNS = {"upos": 3, "xpos": 4}
_DOCUMENT_START = "-DOCSTART-"


def read(
    path: str, bad_rows: BadRows, tag_column: str = "", word_column: int = 0, known_tags: Collection[str] | None = None
) -> list[Sentence]:
    """Reads a file of one word a line, with an empty line between sentences.

    A file named *.conllu is read as CoNLL-U, any other as columns between tabs or, in lines without one, spaces.

    Args:
        path: the file.
        bad_rows: gets the first bad line of each bad sentence.
        tag_column: upos (the default) or xpos in CoNLL-U; else a number, from 0, or from the end if negative: -1 by
            default. "none" for text without tags.
        word_column: where the word stands, in files that are not CoNLL-U.
        known_tags: the tags that there may be; None for any.

    Raises:
        UserError: there is no good sentence, or no such column can be.
    """
    is_conllu = path.endswith(".conllu")
    word_at, tag_at = _columns(is_conllu, word_column, tag_column)
    sentences = []
    for start, rows in _blocks(path, is_conllu):
        for line, row in rows:
            tag = None if tag_at is None else _at(row, tag_at)
            problem = ""
            if not _at(row, word_at):
                problem = f"no word in column {word_at} of {len(row)}"
            elif tag == "" or (is_conllu and tag == "_"):
                problem = f"no tag in column {tag_at} of {len(row)}"
            elif tag is not None and known_tags is not None and tag not in known_tags:
                problem = f"unknown tag {tag!r}; expected one of {tables.names_shown(sorted(known_tags))}"
            if problem:
                bad_rows.add(path, line, problem)
                break
        else:
            tags = None if tag_at is None else tuple(row[tag_at] for _, row in rows)
            sentences.append(Sentence(tuple(row[word_at] for _, row in rows), tags, start))
    if not sentences:
        raise UserError(f"{path} has no sentences; expected one word a line, and an empty line between sentences")
    return sentences


def from_rows(
    rows: Iterable[tuple[int | str, dict[str, Any]]],
    path: str,
    bad_rows: BadRows,
    word_column: str,
    tag_column: str | None,
    known_tags: Collection[str] | None = None,
) -> list[Sentence]:
    """Reads sentences that are rows of a table: words and tags are lists, or texts with spaces between.

    Args:
        rows: where each row stands, and its values by column.
        path: the table, for errors.
        bad_rows: gets the bad rows.
        word_column: the column of the words.
        tag_column: of the tags; None for text without tags.
        known_tags: the tags that there may be; None for any.

    Raises:
        UserError: there is no good sentence, or no such column.
    """
    sentences = []
    for number, (line, row) in enumerate(rows, start=1):
        absent = [name for name in (word_column, tag_column) if name is not None and name not in row]
        if absent:
            raise UserError(
                f"{path}, {f'line {line}' if isinstance(line, int) else line}: no column {', '.join(absent)} among "
                f"{tables.names_shown(list(row))}; see --text_column and --label_column"
            )
        words = _several(row[word_column])
        tags = None if tag_column is None else _several(row[tag_column])
        unknown = sorted({tag for tag in tags or () if known_tags is not None and tag not in known_tags})
        if not words or (tags is not None and len(tags) != len(words)):
            bad_rows.add(path, line, f"{len(words)} words and {len(tags or ())} tags; expected a tag for each word")
        elif unknown:
            known = tables.names_shown(sorted(known_tags or ()))
            problem = f"unknown tag {tables.names_shown(unknown)}; expected one of {known}"
            bad_rows.add(path, line, problem)
        else:
            sentences.append(Sentence(words, tags, line if isinstance(line, int) else number))
    if not sentences:
        raise UserError(f"{path} has no sentences")
    return sentences


def _several(value: Any) -> tuple[str, ...]:
    """The words or tags of a cell; none where one of them is not known."""
    values = value if isinstance(value, list) else str("" if value is None else value).split()
    return () if None in values else tuple(map(str, values))


def _columns(is_conllu: bool, word_column: int, tag_column: str) -> tuple[int, int | None]:
    if tag_column == "none":
        return (1 if is_conllu else word_column), None
    if is_conllu and (tag_column or "upos") in _CONLLU_COLUMNS:
        return 1, _CONLLU_COLUMNS[tag_column or "upos"]
    if re.fullmatch(r"-?\d+", tag_column or "-1"):
        return (1 if is_conllu else word_column), int(tag_column or -1)
    raise UserError(
        f"the tag column is {tag_column!r}; expected a column's number from 0 on, or upos or xpos in CoNLL-U"
    )


def _at(row: Sequence[str], column: int) -> str:
    return row[column] if -len(row) <= column < len(row) else ""


def _blocks(path: str, is_conllu: bool) -> Iterator[tuple[int, list[tuple[int, list[str]]]]]:
    """Yields for each sentence the number of its first line, and number and columns of each of its words."""
    rows: list[tuple[int, list[str]]] = []
    for number, line in enumerate(files.read_text(path).split("\n"), start=1):
        line = line.removesuffix("\r")
        if not line.strip():
            if rows:
                yield rows[0][0], rows
            rows = []
        elif is_conllu and line.startswith("#"):
            continue
        else:
            row = line.split("\t") if "\t" in line else line.split()
            is_word = re.fullmatch(r"\d+", row[0]) if is_conllu else row[0] != _DOCUMENT_START
            if is_word or (is_conllu and not re.fullmatch(r"\d+[-.]\d+", row[0])):
                rows.append((number, row))
    if rows:
        yield rows[0][0], rows


def tags_of(sentences: Iterable[Sentence]) -> list[str]:
    """Returns the tags that there are, sorted: the labels of a model, by number."""
    return sorted({tag for sentence in sentences for tag in sentence.tags or ()})
