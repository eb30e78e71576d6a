"""Which file of a folder is a part of a data set."""

import fnmatch
import os
from collections.abc import Sequence

from official_bert.errors import UserError
from official_bert.utils import files


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
    if not files.is_folder(data_dir):
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
