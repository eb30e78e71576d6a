"""Detects text files that change while they are read."""

import os

from official_bert.errors import UserError
from official_bert.utils import files

FileState = tuple[int, int] | None


def get_file_state(path: str) -> FileState:
    """Returns the size and modification time of a local file, or None for a remote file."""
    if files.is_remote(path):
        return None
    with files.explain_read_errors(path):
        status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def check_unchanged(states: dict[str, FileState]) -> None:
    """Raises a UserError if a file's present state differs from its state in `states`."""
    for path, before in states.items():
        if get_file_state(path) != before:
            raise UserError(f"{path} changed while it was read; run the same command again")
