"""Finds the file of a split, such as train or dev, in a data folder."""

import fnmatch
import os
from collections.abc import Sequence

from official_bert.errors import UserError
from official_bert.utils import files


def find(data_dir: str | None, split: str, patterns: Sequence[str]) -> str:
    """Returns the path of a split's file in a data folder. Patterns are tried in order until one matches.

    Args:
        data_dir: The folder (--data_dir), or None if the flag is missing.
        split: Name of the split, for error messages.
        patterns: File names with wildcards, in order of preference.

    Raises:
        UserError: If `data_dir` is None, or no file or several files match.
    """
    if not data_dir:
        raise UserError("--data_dir is missing; expected the folder of the task's files")
    if not files.is_folder(data_dir):
        raise UserError(f"--data_dir is {data_dir}, which is not a folder; expected the folder of the task's files")
    names = files.list_folder(data_dir)
    for pattern in patterns:
        if matches := fnmatch.filter(names, pattern):
            if len(matches) > 1:
                raise UserError(
                    f"{data_dir} has several files for the {split} split: {', '.join(matches)}; keep only one of them"
                )
            return os.path.join(data_dir, matches[0])
    raise UserError(f"{data_dir} has no {split} split; expected a file named {' or '.join(patterns)}")
