"""Tables in files: the rows of CSV, TSV, JSON lines, plain text and files of rows, with the position of each."""

import collections
import csv
import io
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.utils import files, row_files, streams
from official_bert.utils.bad_rows import BadRows, position

_MOST_SHOWN, _LONGEST_SHOWN = 10, 60  # names in a message, and characters of each
csv.field_size_limit(2**31 - 1)  # of characters; Python's own limit is shorter than some documents

# Of a text: more than any book has. Tokenizing takes some hundred bytes of memory for each.
MAX_CHARACTERS = 4_000_000

TEXT = "text"  # the column of a .txt file
_TABLES = (".csv", ".tsv", ".jsonl", ".json")
_EXTENSIONS = (*_TABLES, ".txt")
_JSON_ROWS = "pandas writes such lines with to_json(path, orient='records', lines=True)"
_JSON_LAYOUTS = ({"columns", "index", "data"}, {"schema", "data"})  # pandas' "split" and "table"
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


def read_rows(
    path: str, bad_rows: BadRows, columns: Sequence[str] | None = None
) -> Iterator[tuple[int | str, dict[str, Any]]]:
    """Yields the first line's number and the values of each row, by column.

    Args:
        path: .csv (commas; quotes may hold commas and line ends), .tsv (tabs; quotes mean nothing), .jsonl or .json (an
            object a line, or an array of objects) or .txt (a text a line, in a column TEXT), each also compressed (.gz,
            .bz2, .xz, .zst); or files of rows, a folder of Hugging Face's datasets or tfds:NAME (see row_files.py).
            The rows of arrays and of files of rows have no line, but a position such as "row 3".
        bad_rows: gets the rows that cannot be read, and those with a text of more than MAX_CHARACTERS.
        columns: the columns' names, for .csv and .tsv without a header; None where the first line has them. A first row
            of just these names is passed over as a header, with a note.

    Raises:
        UserError: the file is missing, damaged or of another kind, or it has no header.
    """
    extension = _extension(path)
    is_text = extension in _EXTENSIONS
    rows = _rows(path, extension, bad_rows, columns) if is_text else _stored_rows(path, extension)
    for line, row in rows:
        long = [name for name, value in row.items() if isinstance(value, str) and len(value) > MAX_CHARACTERS]
        if long:
            bad_rows.add(path, line, too_long(long[0], len(row[long[0]])))
        else:
            yield line, row


def is_table(path: str) -> bool:
    """Whether `read_rows` finds columns in a file, rather than a text on each line."""
    extension = _extension(path)
    return extension in _TABLES or (extension != ".txt" and any(map(row_files.kind_of, files_of(path))))


def files_of(path: str) -> list[str]:
    """Returns the files that a name of a table stands for: itself, or those of a folder or a data set.

    Raises:
        UserError: the folder has several splits, or the data set cannot be had.
    """
    return row_files.expand([path], "input_file") if row_files.is_data_set(path) else [path]


def _extension(path: str) -> str:
    stem, last = os.path.splitext(path.lower())
    return os.path.splitext(stem)[1] if last in _COMPRESSED else last


def _stored_rows(path: str, extension: str) -> Iterator[tuple[str, dict[str, Any]]]:
    paths = files_of(path)
    for each in paths:
        kind = row_files.kind_of(each)
        if kind is None:
            raise UserError(
                f"{path} ends in {extension or 'nothing'}; expected .csv, .tsv, .jsonl or .txt, or a file of rows such "
                "as Parquet. Save a spreadsheet (.xlsx) as CSV in UTF-8"
            )
        within = f"{os.path.basename(each)}, " if len(paths) > 1 else ""
        for place, row in row_files.read_rows(each, kind):
            yield within + place, {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    """A value as JSON has it; what JSON has not, such as a date, as text, but for bytes, which are no text."""
    if isinstance(value, bytes):
        return {"bytes": "not UTF-8"}
    return value if value is None or isinstance(value, str | int | float | list | dict) else str(value)


def too_long(name: str, characters: int) -> str:
    """Returns what is wrong with a text of more than MAX_CHARACTERS."""
    return f"{name} has {characters:,} characters; expected at most {MAX_CHARACTERS:,}: cut it into several texts"


def _rows(
    path: str, extension: str, bad_rows: BadRows, columns: Sequence[str] | None
) -> Iterator[tuple[int | str, dict[str, Any]]]:
    files.check_regular(path)
    with streams.errors_explained(path, "byte", lambda: 0), streams.opened(path) as stream:
        text = files.decode(path, stream.read())
    if extension in (".jsonl", ".json"):
        yield from _json_rows(path, text, bad_rows)
        return
    if extension == ".txt":
        for number, content in enumerate(text.removesuffix("\n").split("\n") if text else (), 1):
            yield number, {TEXT: content.removesuffix("\r")}
        return
    if extension == ".csv":
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    else:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter="\t", quoting=csv.QUOTE_NONE)
    before = 0
    while True:
        line = before + 1
        try:
            values = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            problem = f"{error}; a quote within a quoted text is written twice"
            if reader.line_num > line:
                problem += f"; all up to line {reader.line_num} was read as one text"
            bad_rows.add(path, line, problem)
            before = reader.line_num
            continue
        before = reader.line_num
        if columns is None:
            columns = values
            twice = sorted(name for name, count in collections.Counter(columns).items() if count > 1)
            if twice:
                raise UserError(
                    f"{path}, line 1: two columns are named {names_shown(twice)}; name each once (is the first line "
                    "the header? A file of your own to train on may lack one: --columns)"
                )
        elif line == 1 and _folded(values) == _folded(columns):
            if not bad_rows.silent:
                print(f"note: {path}, line 1 has the names of the columns; it is read as a header, not as a row")
        elif len(values) == len(columns):
            yield line, dict(zip(columns, values, strict=True))
        elif values:  # an empty line is none
            bad_rows.add(path, line, f"{len(values)} columns; expected {len(columns)}: {names_shown(columns)}")
    if columns is None:
        raise UserError(f"{path} is empty; expected a header with the columns' names")


def _folded(names: Sequence[str]) -> list[str]:
    return [name.strip().casefold() for name in names]


def names_shown(names: Sequence[str]) -> str:
    """Returns the names of columns or classes for a message: the first ones if there are many, long ones cut."""
    shown = [name if len(name) <= _LONGEST_SHOWN else f"{name[:_LONGEST_SHOWN]}..." for name in names[:_MOST_SHOWN]]
    return ", ".join(shown) + (", ..." if len(names) > _MOST_SHOWN else "")


def _json_rows(path: str, text: str, bad_rows: BadRows) -> Iterator[tuple[int | str, dict[str, Any]]]:
    for line, values in _json_values(path, text, bad_rows):
        if not isinstance(values, dict):
            problem = f"{type(values).__name__}; expected an object with the columns as keys; {_JSON_ROWS}"
            bad_rows.add(path, line, problem)
            continue
        is_layout = values.keys() in _JSON_LAYOUTS or {type(value) for value in values.values()} == {dict}
        if is_layout and "\n" not in text.strip():
            raise UserError(f"{position(path, line)}: this is a whole table, not a row; {_JSON_ROWS}")
        yield line, values


def _json_values(path: str, text: str, bad_rows: BadRows) -> Iterator[tuple[int | str, Any]]:
    """Yields the values of an array of objects, or the values of all lines, with their positions."""
    if re.match(r"\s*\[\s*\{", text):
        yield from ((f"row {number}", value) for number, value in enumerate(files.parse_json(text, path), 1))
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield number, files.parse_json_line(line)
            except UserError as error:
                bad_rows.add(path, number, str(error))
