"""Tables in files: the rows of CSV, TSV, JSON lines, plain text and files of rows, with the position of each."""

import collections
import csv
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.utils import files, row_files, streams
from official_bert.utils.bad_rows import BadRows, format_position
from official_bert.utils.counting import pluralize

_MOST_SHOWN, _LONGEST_SHOWN = 10, 60  # names in a message, and characters of each
csv.field_size_limit(2**31 - 1)  # of characters; Python's own limit is shorter than some documents

# Of a text: more than any book has. Tokenizing takes some hundred bytes of memory for each.
MAX_CHARACTERS = 4_000_000

TEXT = "text"  # the column of a .txt file
RENAMING_ADVICE = "rename the columns"
_TABLES, _JSON = (".csv", ".tsv"), (".jsonl", ".json")
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
_JSON_ROWS = "pandas writes such lines with to_json(path, orient='records', lines=True)"
_JSON_LAYOUTS = ({"columns", "index", "data"}, {"schema", "data"})  # pandas' "split" and "table"
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


def read_rows(
    path: str,
    bad_rows: BadRows,
    columns: Sequence[str] | None = None,
    wanted: Sequence[str] = (),
    *,
    has_longer_rows: bool = False,
    as_text: bool = False,
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
        wanted: Columns that a header must have.
        has_longer_rows: Whether further values at the end of a row are ignored instead of being an error.
        as_text: Whether to read the file as .txt, whatever its name. Such a file may be a pipe.

    Raises:
        UserError: the file is missing, damaged or of another kind, or it has no header.
    """
    extension = ".txt" if as_text else _extension(path)
    if not row_files.is_data_set(path) and (not as_text or files.is_folder(path)):
        files.check_regular(path)
    if extension == ".txt":
        rows: Iterator[tuple[int | str, dict[str, Any]]] = _texts(path)
    elif extension in _JSON:
        rows = _json_rows(path, _read(path), bad_rows)
    elif extension in _TABLES:
        rows = _table_rows(path, extension, bad_rows, columns, wanted, has_longer_rows)
    else:
        rows = _stored_rows(path, extension)
    for line, row in rows:
        long = [name for name, value in row.items() if isinstance(value, str) and len(value) > MAX_CHARACTERS]
        if long:
            length = f"{long[0]} has {len(row[long[0]]):,} characters"
            bad_rows.add(path, line, f"{length}; expected at most {MAX_CHARACTERS:,}: cut it into several texts")
        else:
            yield line, row


def check_columns(
    path: str,
    wanted: Sequence[str],
    columns: Sequence[str],
    advice: str = RENAMING_ADVICE,
    has_header: bool = True,
) -> None:
    """Raises a UserError if a table lacks some wanted columns. The rows of JSON files may have different columns.

    Args:
        path: The table.
        wanted: The columns to look for.
        columns: The table's columns.
        advice: The end of the error message.
        has_header: Whether the columns are named in the file.
    """
    absent, extension = [name for name in wanted if name not in columns], _extension(path)
    if not absent or extension in _JSON:
        return
    if extension == ".txt":
        raise UserError(f"{path}: a .txt file has a text on each line, and no column {', '.join(absent)}")
    where = f"{path}, line 1" if has_header and extension in _TABLES else path
    if len(columns) == 1 and (";" in columns[0] or "\t" in columns[0]):
        between = "semicolons" if ";" in columns[0] else "tabs"
        raise UserError(
            f"{where}: there is one column, {columns[0][:60]!r}; are the columns separated by {between}? Expected "
            "commas in .csv and tabs in .tsv"
        )
    raise UserError(f"{where}: no column {', '.join(absent)} among {format_names(columns)}; {advice}")


def find_text_problem(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Returns why the values in some columns of a row are not texts; "" if they are.

    Of several columns, which are joined, some may be null.
    """
    absent = [name for name in columns if name not in row]
    if absent:
        return f"no key {', '.join(absent)}; the keys are {format_names(list(row)) or 'none'}"
    has_text = any(isinstance(row[name], str) for name in columns)
    for name in columns:
        if not isinstance(row[name], str) and not (has_text and row[name] is None):
            return f"{name} is {json.dumps(row[name])[:_LONGEST_SHOWN]}; expected a text"
        if half := _HALF_CHARACTER.search(row[name] or ""):
            return f"{name} has half a surrogate, \\u{ord(half[0]):04x}, which is no character; remove it"
    return ""


def join_texts(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Returns the texts in some columns of a row, with spaces between. Empty ones are left out."""
    return " ".join(row[name] for name in columns if row[name])


def is_table(path: str) -> bool:
    """Whether `read_rows` finds columns in a file, rather than a text on each line."""
    extension = _extension(path)
    return extension in (*_TABLES, *_JSON) or (
        extension != ".txt" and any(map(row_files.detect_kind, list_files(path)))
    )


def list_files(path: str) -> list[str]:
    """Returns the files that a name of a table stands for: itself, or those of a folder or a data set.

    Raises:
        UserError: the folder has several splits, or the data set cannot be had.
    """
    return row_files.expand([path], "input_file") if row_files.is_data_set(path) else [path]


def _extension(path: str) -> str:
    stem, last = os.path.splitext(path.lower())
    return os.path.splitext(stem)[1] if last in _COMPRESSED else last


def _stored_rows(path: str, extension: str) -> Iterator[tuple[str, dict[str, Any]]]:
    paths = list_files(path)
    for each in paths:
        kind = row_files.detect_kind(each)
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


def _read(path: str) -> str:
    with streams.explain_read_errors(path, "byte", lambda: 0), streams.open_decompressed(path) as stream:
        return files.decode(path, stream.read())


def _texts(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(streams.decode_lines(path, streams.read_lines(path)), 1):
        yield number, {TEXT: line.removesuffix("\n").removesuffix("\r")}


def _table_rows(
    path: str,
    extension: str,
    bad_rows: BadRows,
    columns: Sequence[str] | None,
    wanted: Sequence[str],
    has_longer_rows: bool,
) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, values in _csv_values(path, bad_rows) if extension == ".csv" else _tsv_values(path):
        if columns is None:
            columns = values
            twice = sorted(name for name, count in collections.Counter(columns).items() if count > 1)
            if twice:
                raise UserError(
                    f"{path}, line 1: two columns are named {format_names(twice)}; name each once (is the first line "
                    "the header? finetune takes files without one: --columns)"
                )
            check_columns(path, wanted, columns)
        elif line == 1 and _folded(values) == _folded(columns):
            if not bad_rows.silent:
                print(f"note: {path}, line 1 has the names of the columns; it is read as a header, not as a row")
        elif len(values) == len(columns) or (has_longer_rows and len(values) > len(columns)):
            yield line, dict(zip(columns, values, strict=False))
        else:
            problem = f"{pluralize(len(values), 'column')}; expected {len(columns)}: {format_names(columns)}"
            if extension == ".tsv" and any(value.count('"') % 2 for value in values):
                problem += ". Quotes mean nothing in .tsv; save a table with line ends or tabs in its cells as .csv"
            bad_rows.add(path, line, problem)
    if columns is None:
        raise UserError(f"{path} is empty; expected a header with the columns' names")


def _tsv_values(path: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(_read(path).split("\n"), 1):
        if line := line.removesuffix("\r"):
            yield number, line.split("\t")


def _csv_values(path: str, bad_rows: BadRows) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(_read(path), newline=""), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            if values := next(reader):
                yield line, values
        except StopIteration:
            return
        except csv.Error as error:
            problem = f"{error}; a quote within a quoted text is written twice"
            if reader.line_num > line:
                problem += f"; all up to line {reader.line_num} was read as one text"
            bad_rows.add(path, line, problem)


def _folded(names: Sequence[str]) -> list[str]:
    return [name.strip().casefold() for name in names]


def format_names(names: Sequence[str]) -> str:
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
            raise UserError(f"{format_position(path, line)}: this is a whole table, not a row; {_JSON_ROWS}")
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
