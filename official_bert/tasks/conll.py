"""Sentences of words with tags: from CoNLL's columns, CoNLL-U's, and the rows of tables.

The last of CoNLL's columns is the tag by default. In CoNLL-U the syntactic words are tagged: the lines of contractions
(1-2) and of empty nodes (1.1) are passed over. A table may have a word in each row: its column "Sentence #" then has a
value in the first row of each sentence.
"""

import collections
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.kinds.tagging.spec import Sentence
from official_bert.utils import files, tables
from official_bert.utils.bad_rows import SKIP, BadRows
from official_bert.utils.counting import pluralize

_CONLLU_COLUMNS = {"upos": 3, "xpos": 4}
_DOCUMENT_START = "-DOCSTART-"
_SENTENCE_COLUMN, _WORD_COLUMN = "Sentence #", "Word"

_Row = tuple[int, list[str]]  # the number of a line, and its columns


def read(
    path: str, bad_rows: BadRows, tag_column: str = "", word_column: int = 0, known_tags: Collection[str] | None = None
) -> list[Sentence]:
    """Reads a file of one word a line, with an empty line between sentences.

    A file named *.conllu is read as CoNLL-U, any other as columns between tabs or, in lines without one, blanks; a
    *.csv file whose first column is "Sentence #" as a table with a word in each row.

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
    if path.lower().endswith(".csv") and files.read_text(path).lstrip('"').startswith(_SENTENCE_COLUMN):
        _, first = next(tables.read_rows(path, BadRows(SKIP, silent=True)), (0, {}))
        tag_name = None if tag_at is None else _at(list(first), tag_at) or str(tag_at)
        return from_rows(tables.read_rows(path, bad_rows), path, bad_rows, _WORD_COLUMN, tag_name, known_tags)
    blocks = list(_blocks(path, is_conllu))
    _check_separator(path, blocks)
    widths = collections.Counter(len(row) for block in blocks for _, row in block if not _may_be_comment(row))
    usual = widths.most_common(1)[0][0] if widths else 0
    if not is_conllu:
        blocks, comments = _without_comments(blocks, usual, tag_at, known_tags)
        if comments and not bad_rows.silent:
            count = pluralize(len(comments), "comment line")
            print(f"note: {path}: {count} before sentences left out (the first is line {comments[0]})")
    sentences = []
    for block in blocks:
        widest = max(len(row) for _, row in block)
        for line, row in block:
            tag = None if tag_at is None else _at(row, tag_at)
            is_uneven = len(row) != usual and (len(row) < widest or (tag_at is not None and tag_at < 0))
            problem = ""
            if not _at(row, word_at):
                problem = f"no word in column {word_at} of {len(row)}"
            elif is_uneven and not is_conllu:
                problem = f"{pluralize(len(row), 'column')}; expected {usual}, as in the file's other rows"
            elif tag == "" or (is_conllu and tag == "_"):
                problem = f"no tag in column {tag_at} of {len(row)}"
            elif tag_at is not None and word_at % len(row) == tag_at % len(row):
                problem = f"column {word_at} of {len(row)} is both the word and the tag; expected a column for each"
            elif tag is not None and known_tags is not None and tag not in known_tags:
                problem = f"unknown tag {tag!r}; expected one of {tables.format_names(sorted(known_tags))}"
            if problem:
                bad_rows.add(path, line, problem)
                break
        else:
            tags = None if tag_at is None else tuple(row[tag_at] for _, row in block)
            sentences.append(Sentence(tuple(row[word_at] for _, row in block), tags, block[0][0]))
    if not sentences:
        reason = bad_rows.first_reason(path)
        raise UserError(f"{path} has no sentences; expected one word a line, an empty line between sentences{reason}")
    return sentences


def _check_separator(path: str, blocks: Iterable[Sequence[_Row]]) -> None:
    """Raises a UserError if the columns are separated by something else than tabs or blanks."""
    rows = [row for block in blocks for row in block]
    for separator in ",;|":
        joined = [(line, row[0]) for line, row in rows if separator in row[0] and row[0] != separator]
        if 2 * len(joined) > len(rows):
            line, text = joined[0]
            raise UserError(
                f"{path}, line {line}: the columns seem to be separated by {separator!r} ({text[:60]!r}); expected "
                "tabs or blanks. Convert the file, or read it as a table: finetune --task=table --label_kind=tagging "
                f'for one with a sentence in each row, a .csv file with "{_SENTENCE_COLUMN}", Word, Tag for a word in '
                "each row"
            )


def _may_be_comment(row: Sequence[str]) -> bool:
    return row[0] == "#" and len(row) > 1


def _without_comments(
    blocks: list[list[_Row]], usual: int, tag_at: int | None, known_tags: Collection[str] | None
) -> tuple[list[list[_Row]], list[int]]:
    """Returns the blocks without the comments at their beginnings, and the lines of these.

    A line that begins with "# " or "#<tab>" is a word only if it has the usual number of columns and a known tag.
    """
    starts = [next((i for i, (_, row) in enumerate(block) if not _may_be_comment(row)), len(block)) for block in blocks]
    known = set(known_tags or ())
    kept, comments = [], []
    if tag_at is not None:
        rows = [row for block, start in zip(blocks, starts, strict=True) for _, row in block[start:]]
        known |= {_at(row, tag_at) for row in rows if len(row) == usual}
    for block, start in zip(blocks, starts, strict=True):
        is_word = [len(row) == usual and tag_at is not None and _at(row, tag_at) in known for _, row in block[:start]]
        first = is_word.index(True) if True in is_word else start
        comments += [line for line, _ in block[:first]]
        if first < len(block):
            kept.append(block[first:])
    return kept, comments


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
        rows: where each row stands, and its values by column. With a column "Sentence #" they are words, else
            sentences.
        path: the table, for errors.
        bad_rows: gets the bad rows.
        word_column: the column of the words.
        tag_column: of the tags; None for text without tags.
        known_tags: the tags that there may be; None for any.

    Raises:
        UserError: there is no good sentence, or no such column.
    """
    sentences = []
    for number, (line, row) in enumerate(_by_sentence(rows), start=1):
        absent = [name for name in (word_column, tag_column) if name is not None and name not in row]
        if absent:
            raise UserError(
                f"{path}, {f'line {line}' if isinstance(line, int) else line}: no column {', '.join(absent)} among "
                f"{tables.format_names(list(row))}{'; see --text_column and --label_column' * bad_rows.has_flags}"
            )
        words = _several(row[word_column])
        tags = None if tag_column is None else _several(row[tag_column])
        unknown = sorted({tag for tag in tags or () if known_tags is not None and tag not in known_tags})
        if not words or (tags is not None and len(tags) != len(words)):
            bad_rows.add(path, line, f"{len(words)} words and {len(tags or ())} tags; expected a tag for each word")
        elif unknown:
            known = tables.format_names(sorted(known_tags or ()))
            problem = f"unknown tag {tables.format_names(unknown)}; expected one of {known}"
            bad_rows.add(path, line, problem)
        else:
            sentences.append(Sentence(words, tags, line if isinstance(line, int) else number))
    if not sentences:
        raise UserError(f"{path} has no sentences{bad_rows.first_reason(path)}")
    return sentences


def _by_sentence(rows: Iterable[tuple[int | str, dict[str, Any]]]) -> Iterator[tuple[int | str, dict[str, Any]]]:
    """Yields sentences: the rows themselves, or lists of the values of those that have one word each."""
    sentence: tuple[int | str, dict[str, Any]] | None = None
    number = None
    for line, row in rows:
        if _SENTENCE_COLUMN not in row:
            yield line, row
            continue
        if sentence is None or row[_SENTENCE_COLUMN] not in (None, "", number):
            if sentence is not None:
                yield sentence
            number = row[_SENTENCE_COLUMN]
            sentence = line, {name: [] for name in row}
        for name, values in sentence[1].items():
            values.append(row.get(name))
    if sentence is not None:
        yield sentence


def _several(value: Any) -> tuple[str, ...]:
    """The words or tags of a cell; none where one of them is not known."""
    values = value if isinstance(value, list) else str("" if value is None else value).split()
    return () if None in values or "" in values else tuple(map(str, values))


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


def _blocks(path: str, is_conllu: bool) -> Iterator[list[_Row]]:
    """Yields the rows of each sentence's words."""
    rows: list[_Row] = []
    for number, line in enumerate(files.read_text(path).split("\n"), start=1):
        line = line.removesuffix("\r").rstrip(" ")
        if not line.strip(" \t"):
            if rows:
                yield rows
            rows = []
        elif is_conllu and line.startswith("#"):
            continue
        else:
            row = line.split("\t") if "\t" in line else re.split(" +", line.lstrip(" "))
            is_word = re.fullmatch(r"\d+", row[0]) if is_conllu else row[0] != _DOCUMENT_START
            if is_word or (is_conllu and not re.fullmatch(r"\d+[-.]\d+", row[0])):
                rows.append((number, row))
    if rows:
        yield rows


def tags_of(sentences: Iterable[Sentence]) -> list[str]:
    """Returns the tags that there are, sorted: the labels of a model, by number."""
    return sorted({tag for sentence in sentences for tag in sentence.tags or ()})
