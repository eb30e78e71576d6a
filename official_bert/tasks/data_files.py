"""Which file of a folder is a part of a data set, and the rows of tab-separated ones."""

import fnmatch
import os
from collections.abc import Iterator, Sequence

from official_bert.errors import UserError
from official_bert.utils import files, tables
from official_bert.utils.bad_rows import BadRows


def find(data_dir: str | None, split: str, patterns: Sequence[str]) -> str:
    """Returns the one file of the folder that matches the first of the patterns that any file matches.

    Args:
        data_dir: the folder, as --data_dir has it.
        split: the part, for the error.
        patterns: names with * in them, the most wanted first.

    Raises:
        UserError: no file matches, or several do, or no folder was given.
    """
    if not data_dir:
        raise UserError("pass --data_dir: the folder of the task's files")
    if not files.exists(data_dir) or os.path.isfile(data_dir):
        raise UserError(f"there is no folder {data_dir}; give the folder of the task's files as --data_dir")
    names = files.list_folder(data_dir)
    for pattern in patterns:
        if matches := fnmatch.filter(names, pattern):
            if len(matches) > 1:
                raise UserError(
                    f"{data_dir} has {', '.join(matches)}: which one is the {split} part? Leave one of them there"
                )
            return os.path.join(data_dir, matches[0])
    raise UserError(f"{data_dir} has no {split} part; expected a file named {' or '.join(patterns)}")


def has(data_dir: str | None, split: str, patterns: Sequence[str]) -> bool:
    """Whether `find` finds one."""
    try:
        find(data_dir, split, patterns)
    except UserError:
        return False
    return True


def tab_separated(
    path: str, needed: Sequence[str], bad_rows: BadRows, columns: Sequence[str] | None = None
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the line number of each row and its values by column; quotes mean nothing.

    Args:
        path: the file.
        needed: columns that must be there.
        bad_rows: gets the rows that are too short.
        columns: their names, for a file without a header.

    Raises:
        UserError: the file lacks a column.
    """
    lines = files.read_text(path).removesuffix("\n").split("\n")
    first = 1
    if columns is None:
        columns, first = lines[0].rstrip("\r").split("\t"), 2
    if absent := [name for name in needed if name not in columns]:
        raise UserError(f"{path}, line 1: no column {', '.join(absent)} among {tables.names_shown(columns)}")
    for number, line in enumerate(lines[first - 1 :], first):
        # Some releases have a column more at the end of some rows; none may be missing.
        values = dict(zip(columns, line.rstrip("\r").split("\t"), strict=False))
        if len(values) < len(columns):
            bad_rows.add(path, number, f"{len(values)} columns; expected {len(columns)}: {tables.names_shown(columns)}")
            continue
        yield number, values
