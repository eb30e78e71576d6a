"""Reads the rows of tables, with their positions: CSV, TSV, JSON lines, plain text, and files such as Parquet."""

import collections
import csv
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.utils import files, row_files, streams
from official_bert.utils.bad_rows import BadRows, format_position
from official_bert.utils.counting import pluralize

_MAX_NAMES, _MAX_NAME_LENGTH = 10, 60  # in messages
csv.field_size_limit(2**31 - 1)  # Python's default limit is shorter than some documents

# The maximum length of a text, longer than any book. Tokenizing takes about a hundred bytes of memory per character.
MAX_CHARACTERS = 4_000_000

TEXT = "text"  # the column name of a .txt file
RENAMING_ADVICE = "rename the columns"
_TABLES, _JSON = (".csv", ".tsv"), (".jsonl", ".json")
_SURROGATE = re.compile("[\ud800-\udfff]")
JSON_ROWS = "pandas writes such lines with to_json(path, orient='records', lines=True)"
_JSON_LAYOUTS = ({"columns", "index", "data"}, {"schema", "data"})  # pandas' "split" and "table"
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


def read_rows(
    path: str,
    bad_rows: BadRows,
    columns: Sequence[str] | None = None,
    wanted: Sequence[str] = (),
    *,
    has_longer_rows: bool = False,
    is_plain_text: bool = False,
) -> Iterator[tuple[int | str, dict[str, Any]]]:
    """Yields each row of a table: the number of its first line, and its values by column.

    Args:
        path: A file with one of these endings, compressed (.gz, .bz2, .xz, .zst) or not; or a file or data set that
            row_files.py reads. Rows without a line number have a position such as "row 3". .csv: Separated by commas.
            Quoted values may contain commas and line ends. .tsv: Separated by tabs. Quotes have no meaning. .jsonl or
            .json: An object on each line, or an array of objects. .txt: A text on each line, in the column TEXT.
        bad_rows: Handles invalid rows, including those with a text of more than MAX_CHARACTERS.
        columns: Column names for .csv and .tsv files without a header. None reads them from the first line. A first
            line with exactly these names is skipped, with a note.
        wanted: Column names that the header must contain.
        has_longer_rows: Whether to ignore additional values at the end of a row instead of treating it as invalid.
        is_plain_text: Whether to read the file like a .txt file, whatever its extension. It may then be a pipe.

    Raises:
        UserError: If the file is missing, corrupt or not a table, or has no header.
    """
    extension = ".txt" if is_plain_text else _get_extension(path)
    if not row_files.is_data_set(path) and (not is_plain_text or files.is_folder(path)):
        files.check_regular(path)
    if extension == ".txt":
        rows: Iterator[tuple[int | str, dict[str, Any]]] = _read_plain_text(path)
    elif extension in _JSON:
        rows = _json_rows(path, _read_text(path), bad_rows)
    elif extension in _TABLES:
        rows = _table_rows(path, extension, bad_rows, columns, wanted, has_longer_rows)
    else:
        rows = _stored_rows(path, extension)
    for line, row in rows:
        long = [name for name, value in row.items() if isinstance(value, str) and len(value) > MAX_CHARACTERS]
        if long:
            length = f"{long[0]} has {len(row[long[0]]):,} characters"
            bad_rows.add(path, line, f"{length}; expected at most {MAX_CHARACTERS:,}; split it into several texts")
        else:
            yield line, row


def check_columns(
    path: str,
    wanted: Sequence[str],
    columns: Sequence[str],
    advice: str = RENAMING_ADVICE,
    has_header: bool = True,
) -> None:
    """Raises a UserError if a table lacks a required column.

    JSON files are not checked, because their rows need not have the same columns.

    Args:
        path: The file of the table.
        wanted: The required columns.
        columns: The table's columns.
        advice: The end of the error message.
        has_header: Whether the first line of the file contains the column names.
    """
    absent, extension = [name for name in wanted if name not in columns], _get_extension(path)
    if not absent or extension in _JSON:
        return
    if extension == ".txt":
        raise UserError(f"{path}: a .txt file has a text on each line, and no column {quote_names(absent)}")
    where = f"{path}, line 1" if has_header and extension in _TABLES else path
    if len(columns) == 1 and (";" in columns[0] or "\t" in columns[0]):
        between = "semicolons" if ";" in columns[0] else "tabs"
        raise UserError(
            f"{where}: there is only one column, {columns[0][:60]!r}. Are the columns separated by {between}? Expected "
            "commas in .csv and tabs in .tsv."
        )
    if similar := [name for name in columns if _fold_case([name])[0] in _fold_case(absent)]:
        advice = f"{quote_names(similar)} differs only by blanks or case; {advice}"
    raise UserError(f"{where}: no column {quote_names(absent)} among {quote_names(columns)}; {advice}")


def find_text_problem(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Checks that the values of some columns of a row are text. Returns a description of the problem, or "".

    If there are several columns, which the caller joins, some but not all of their values may be null.
    """
    absent = [name for name in columns if name not in row]
    if absent:
        return f"no key {quote_names(absent)}; the keys are {quote_names(list(row)) or 'none'}"
    has_text = any(isinstance(row[name], str) for name in columns)
    for name in columns:
        if not isinstance(row[name], str) and not (has_text and row[name] is None):
            return f"{name} is {json.dumps(row[name])[:_MAX_NAME_LENGTH]}; expected a text"
        if surrogate := _SURROGATE.search(row[name] or ""):
            return f"{name} contains the lone surrogate \\u{ord(surrogate[0]):04x}, which is not a character; remove it"
    return ""


def join_texts(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Joins the texts in some columns of a row with spaces. Empty texts and nulls are left out."""
    return " ".join(row[name] for name in columns if row[name])


def is_table(path: str) -> bool:
    """Returns whether `read_rows` reads a file as a table with columns. If not, each line is a text."""
    return has_table_extension(path) or (
        _get_extension(path) != ".txt" and any(map(row_files.detect_kind, list_files(path)))
    )


def has_table_extension(path: str) -> bool:
    """Returns whether the name of a file, without the extension of a compression, is that of a CSV or JSON table."""
    return _get_extension(path) in (*_TABLES, *_JSON)


def list_files(path: str) -> list[str]:
    """Returns the files of a table: the path itself, or the files of a data set.

    Raises:
        UserError: If the folder of a data set has several splits, or the data set cannot be loaded.
    """
    return row_files.expand([path], "input_file") if row_files.is_data_set(path) else [path]


def _get_extension(path: str) -> str:
    stem, last = os.path.splitext(path.lower())
    return os.path.splitext(stem)[1] if last in COMPRESSED else last


def _stored_rows(path: str, extension: str) -> Iterator[tuple[str, dict[str, Any]]]:
    paths = list_files(path)
    for each in paths:
        kind = row_files.detect_kind(each)
        if kind is None:
            raise UserError(
                f"{path} has the extension {extension or '(none)'}; expected .csv, .tsv, .jsonl or .txt, or a file of "
                "rows such as Parquet. Save a spreadsheet (.xlsx) as CSV in UTF-8."
            )
        prefix = f"{os.path.basename(each)}, " if len(paths) > 1 else ""
        for position, row in row_files.read_rows(each, kind):
            yield prefix + position, {name: _convert_to_json(value) for name, value in row.items()}


def _convert_to_json(value: Any) -> Any:
    """Converts a cell's value to a JSON type. Dates and similar become strings.

    Bytes, which are not valid UTF-8, become a dict, so that readers of texts report the row.
    """
    if isinstance(value, bytes):
        return {"bytes": "not UTF-8"}
    return value if value is None or isinstance(value, str | int | float | list | dict) else str(value)


def _read_text(path: str) -> str:
    with files.explain_read_errors(path), streams.open_decompressed(path) as stream:
        return files.decode(path, stream.read())


def _read_plain_text(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
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
    blank: list[int] = []
    last = 0  # the last line that is not blank
    for line, values in _csv_values(path, bad_rows) if extension == ".csv" else _tsv_values(path, bad_rows):
        if not values:
            blank.append(line)
            continue
        last = line
        if line == 1 and re.fullmatch("sep=.?", "".join(values)):
            setting = ("," if extension == ".csv" else "\t").join(values)
            raise UserError(f"{path}, line 1: {setting!r} is a setting for Excel, not column names; remove this line")
        if columns is None:
            columns = values
            # Columns without a name, such as index columns, cannot be read.
            duplicates = sorted(name for name, count in collections.Counter(columns).items() if name and count > 1)
            if duplicates:
                raise UserError(
                    f"{path}, line 1: two columns are named {quote_names(duplicates)}; use each name once. If the "
                    "file has no header, pass --columns to finetune."
                )
            check_columns(path, wanted, columns)
        elif line == 1 and _fold_case(values) == _fold_case(columns):
            if not bad_rows.silent:
                print(f"note: {path}, line 1 has the column names, so it is read as a header, not as a row")
        elif len(values) == len(columns) or (has_longer_rows and len(values) > len(columns)):
            yield line, dict(zip(columns, values, strict=False))
        else:
            problem = f"{pluralize(len(values), 'column')}; expected {len(columns)}: {format_names(columns)}"
            if extension == ".tsv" and any(value.count('"') % 2 for value in values):
                problem += ". Quotes have no meaning in .tsv; save a table with line ends or tabs in its cells as .csv"
            bad_rows.add(path, line, problem)
    if columns is None:
        raise UserError(f"{path} is empty; expected a header with the column names")
    skipped = [line for line in blank if line < last]
    if skipped and not bad_rows.silent:
        print(f"note: {path} has blank lines, which are skipped (number: {len(skipped):,}, first: line {skipped[0]})")


def _tsv_values(path: str, bad_rows: BadRows) -> Iterator[tuple[int, list[str]]]:
    quoted: list[int] = []  # the lines of cells that are quoted like in CSV
    for number, line in enumerate(_read_text(path).split("\n"), 1):
        line = line.removesuffix("\r")
        values = line.split("\t") if line else []
        yield number, values
        if '""' in line:
            quoted += [number for value in values if _is_csv_quoted(value)]
    if quoted and not bad_rows.silent:
        print(
            f"note: {path} has cells that seem to be quoted as in CSV (number: {len(quoted):,}, first in line "
            f"{quoted[0]}). Quotes have no meaning in .tsv and stay in the text; to remove them, save the table as .csv"
        )


def _is_csv_quoted(value: str) -> bool:
    """Returns whether a cell is enclosed in quotes, contains quotes, and all of these are doubled."""
    inner = value[1:-1]
    return value[:1] == value[-1:] == '"' and '""' in inner and '"' not in inner.replace('""', "")


def _csv_values(path: str, bad_rows: BadRows) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(_read_text(path), newline=""), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            yield line, next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problem = f"{error}; a quote within quoted text must be doubled"
            if reader.line_num > line:
                problem += f"; everything up to line {reader.line_num} was read as one value"
            bad_rows.add(path, line, problem)


def _fold_case(names: Sequence[str]) -> list[str]:
    return [name.strip().casefold() for name in names]


def quote_names(names: Sequence[str]) -> str:
    """Returns the names in quotes for a message, so that blanks are visible. See `format_names`."""
    return format_names([repr(name) for name in names[: _MAX_NAMES + 1]])


def format_names(names: Sequence[str]) -> str:
    """Returns the names of columns or classes for a message. Shortens long names and long lists."""
    shown = [name if len(name) <= _MAX_NAME_LENGTH else f"{name[:_MAX_NAME_LENGTH]}..." for name in names[:_MAX_NAMES]]
    return ", ".join(shown) + (", ..." if len(names) > _MAX_NAMES else "")


def parse_json_lines(path: str, lines: Iterable[str], bad_rows: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the line number, counted from 1, and the JSON object of each line that is not empty.

    Args:
        path: The file that the lines are from, for messages.
        lines: The lines.
        bad_rows: Handles lines that are not JSON objects.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = files.parse_json(line, strict=True)
        except UserError as error:
            bad_rows.add(path, number, f"{error}: {shorten(line)}; expected an object per line")
            continue
        if isinstance(value, dict):
            yield number, value
        else:
            bad_rows.add(path, number, f"expected a JSON object, received {shorten(line)}; {JSON_ROWS}")


def _json_rows(path: str, text: str, bad_rows: BadRows) -> Iterator[tuple[int | str, dict[str, Any]]]:
    if re.match(r"\s*\[\s*\{", text):
        for number, value in enumerate(files.parse_json(text, path, strict=True), 1):
            if isinstance(value, dict):
                yield f"row {number}", value
            else:
                bad_rows.add(path, f"row {number}", f"expected a JSON object, received {type(value).__name__}")
        return
    first_line = text.strip().partition("\n")[0]
    if first_line.startswith("{") and not _is_json(first_line) and _is_json(text):
        raise UserError(f"{path} is a single JSON object; expected an array of objects, or an object on each line")
    for line, row in parse_json_lines(path, text.split("\n"), bad_rows):
        is_table = row.keys() in _JSON_LAYOUTS or {type(value) for value in row.values()} == {dict}
        if is_table and "\n" not in text.strip():
            raise UserError(f"{format_position(path, line)}: this is a whole table, not a row; {JSON_ROWS}")
        yield line, row


def _is_json(text: str) -> bool:
    try:
        files.parse_json(text)
    except UserError:
        return False
    return True


def shorten(text: str) -> str:
    """Returns the beginning of a text, for a message."""
    return text if len(text) <= _MAX_NAME_LENGTH else f"{text[:_MAX_NAME_LENGTH]} ..."
