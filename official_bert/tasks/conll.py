"""Reads sentences whose words have tags from CoNLL files, CoNLL-U files and tables.

In CoNLL files, the tag is in the last column by default. In CoNLL-U files, lines of contractions (1-2) and empty nodes
(1.1) are ignored. A table has one sentence per row, or one word per row and a column "Sentence #" that has a value in
the first row of each sentence.
"""

import collections
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.kinds.tagging.spec import Sentence
from official_bert.utils import files, tables
from official_bert.utils.bad_rows import SKIP, BadRows, format_position
from official_bert.utils.counting import pluralize

_CONLLU_COLUMNS = {"upos": 3, "xpos": 4}
_DOCUMENT_START = "-DOCSTART-"
_SENTENCE_COLUMN, _WORD_COLUMN = "Sentence #", "Word"

_Row = tuple[int, list[str]]  # The number of a line and its columns.


def read(
    path: str, bad_rows: BadRows, tag_column: str = "", word_column: int = 0, known_tags: Collection[str] | None = None
) -> list[Sentence]:
    """Reads a file with one word per line and an empty line between sentences.

    A *.conllu file is read as CoNLL-U. A *.csv file whose first column is "Sentence #" is read as a table with one word
    per row. In other files, tabs separate the columns, or spaces in lines without tabs.

    Args:
        path: The file.
        bad_rows: Handles invalid sentences. For each, it is called with the first invalid line.
        tag_column: In CoNLL-U files: "upos" (the default) or "xpos". In other files: the index of the column, by
            default -1, the last. "none" for text without tags.
        word_column: Index of the word's column. Ignored for CoNLL-U files.
        known_tags: Allowed tags. None to allow any tag.

    Raises:
        UserError: If `tag_column` is invalid, or the file has no valid sentence.
    """
    is_conllu = path.endswith(".conllu")
    word_index, tag_index = _parse_columns(is_conllu, word_column, tag_column)
    if path.lower().endswith(".csv") and files.read_text(path).lstrip('"').startswith(_SENTENCE_COLUMN):
        _, first = next(tables.read_rows(path, BadRows(SKIP, silent=True)), (0, {}))
        tag_name = None if tag_index is None else _get_cell(list(first), tag_index) or str(tag_index)
        return read_rows(tables.read_rows(path, bad_rows), path, bad_rows, _WORD_COLUMN, tag_name, known_tags)
    blocks = list(_read_blocks(path, is_conllu))
    _check_separator(path, blocks)
    widths = collections.Counter(len(row) for block in blocks for _, row in block if not _may_be_comment(row))
    usual = widths.most_common(1)[0][0] if widths else 0
    if not is_conllu:
        blocks, comments = _remove_comments(blocks, usual, tag_index, known_tags)
        if comments and not bad_rows.silent:
            count = pluralize(len(comments), "comment line")
            print(f"note: {path}: ignored {count} before sentences (the first is line {comments[0]})")
    sentences = []
    for block in blocks:
        widest = max(len(row) for _, row in block)
        for line, row in block:
            tag = None if tag_index is None else _get_cell(row, tag_index)
            is_uneven = len(row) != usual and (len(row) < widest or (tag_index is not None and tag_index < 0))
            problem = ""
            if not _get_cell(row, word_index):
                problem = f"no word in column {word_index} of {len(row)}"
            elif is_uneven and not is_conllu:
                problem = f"{pluralize(len(row), 'column')}; expected {usual}, as in the file's other rows"
            elif tag == "" or (is_conllu and tag == "_"):
                problem = f"no tag in column {tag_index} of {len(row)}"
            elif tag_index is not None and word_index % len(row) == tag_index % len(row):
                problem = f"column {word_index} of {len(row)} is both the word and the tag; they need two columns"
            elif tag is not None and known_tags is not None and tag not in known_tags:
                problem = f"unknown tag {tag!r}; expected one of {tables.format_names(sorted(known_tags))}"
            if problem:
                bad_rows.add(path, line, problem)
                break
        else:
            tags = None if tag_index is None else tuple(row[tag_index] for _, row in block)
            sentences.append(Sentence(tuple(row[word_index] for _, row in block), tags, block[0][0]))
    if not sentences:
        reason = bad_rows.first_reason(path)
        raise UserError(f"{path} has no sentences; expected one word per line, an empty line between sentences{reason}")
    return sentences


def _check_separator(path: str, blocks: Iterable[Sequence[_Row]]) -> None:
    """Raises a UserError if commas, semicolons or vertical bars seem to separate the columns."""
    rows = [row for block in blocks for row in block]
    for separator in ",;|":
        joined = [(line, row[0]) for line, row in rows if separator in row[0] and row[0] != separator]
        if 2 * len(joined) > len(rows):
            line, text = joined[0]
            raise UserError(
                f"{path}, line {line}: the columns seem to be separated by {separator!r} ({text[:60]!r}); expected "
                "tabs or spaces. Convert the file, or use a table: finetune --task=table --label_kind=tagging for one "
                f'sentence per row, or a .csv file with the columns "{_SENTENCE_COLUMN}", Word and Tag for one word '
                "per row"
            )


def _may_be_comment(row: Sequence[str]) -> bool:
    return row[0] == "#" and len(row) > 1


def _remove_comments(
    blocks: list[list[_Row]], usual: int, tag_index: int | None, known_tags: Collection[str] | None
) -> tuple[list[list[_Row]], list[int]]:
    """Removes the comments at the start of each sentence.

    A line that starts with "# " or "#<tab>" is a comment, unless it has the usual number of columns and a known tag.

    Args:
        blocks: The rows of each sentence.
        usual: The usual number of columns.
        tag_index: Index of the tag's column, or None if the text has no tags.
        known_tags: Known tags, in addition to those in the file.

    Returns:
        The blocks without comments, and the line numbers of the comments.
    """
    starts = [next((i for i, (_, row) in enumerate(block) if not _may_be_comment(row)), len(block)) for block in blocks]
    known = set(known_tags or ())
    kept, comments = [], []
    if tag_index is not None:
        rows = [row for block, start in zip(blocks, starts, strict=True) for _, row in block[start:]]
        known |= {_get_cell(row, tag_index) for row in rows if len(row) == usual}
    for block, start in zip(blocks, starts, strict=True):
        is_word = [
            len(row) == usual and tag_index is not None and _get_cell(row, tag_index) in known
            for _, row in block[:start]
        ]
        first = is_word.index(True) if True in is_word else start
        comments += [line for line, _ in block[:first]]
        if first < len(block):
            kept.append(block[first:])
    return kept, comments


def read_rows(
    rows: Iterable[tuple[int | str, dict[str, Any]]],
    path: str,
    bad_rows: BadRows,
    word_column: str,
    tag_column: str | None,
    known_tags: Collection[str] | None = None,
) -> list[Sentence]:
    """Reads sentences from the rows of a table.

    The words of a sentence, and its tags, are lists or texts that are split at spaces.

    Args:
        rows: Position and values of each row. A row is one word if there is a column "Sentence #". Otherwise it is a
            sentence.
        path: The file of the table, for error messages.
        bad_rows: Handles invalid rows.
        word_column: Name of the column with the words.
        tag_column: Name of the column with the tags, or None if the text has no tags.
        known_tags: Allowed tags. None to allow any tag.

    Raises:
        UserError: If a column is missing, or the table has no valid sentence.
    """
    sentences = []
    for number, (line, row) in enumerate(_group_words(rows), start=1):
        absent = [name for name in (word_column, tag_column) if name is not None and name not in row]
        if absent:
            raise UserError(
                f"{format_position(path, line)}: no column {tables.quote_names(absent)} among "
                f"{tables.quote_names(list(row))}{'; see --text_column and --label_column' * bad_rows.has_flags}"
            )
        words = _split_cell(row[word_column])
        tags = None if tag_column is None else _split_cell(row[tag_column])
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


def _group_words(rows: Iterable[tuple[int | str, dict[str, Any]]]) -> Iterator[tuple[int | str, dict[str, Any]]]:
    """Combines rows of one word each into one row per sentence, whose values are lists. Other rows are unchanged."""
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


def _split_cell(value: Any) -> tuple[str, ...]:
    """Returns the words or tags in a cell, or () if one of them is missing."""
    values = value if isinstance(value, list) else str("" if value is None else value).split()
    return () if None in values or "" in values else tuple(map(str, values))


def _parse_columns(is_conllu: bool, word_column: int, tag_column: str) -> tuple[int, int | None]:
    if tag_column == "none":
        return (1 if is_conllu else word_column), None
    if is_conllu and (tag_column or "upos") in _CONLLU_COLUMNS:
        return 1, _CONLLU_COLUMNS[tag_column or "upos"]
    if re.fullmatch(r"-?\d+", tag_column or "-1"):
        return (1 if is_conllu else word_column), int(tag_column or -1)
    raise UserError(f"--tag_column is {tag_column!r}; expected the index of a column, or upos or xpos for CoNLL-U")


def _get_cell(row: Sequence[str], column: int) -> str:
    return row[column] if -len(row) <= column < len(row) else ""


def _read_blocks(path: str, is_conllu: bool) -> Iterator[list[_Row]]:
    """Yields the rows of each sentence: line number and columns."""
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


def collect_tags(sentences: Iterable[Sentence]) -> list[str]:
    """Returns the different tags in some sentences, sorted. They become the labels of a model."""
    return sorted({tag for sentence in sentences for tag in sentence.tags or ()})
