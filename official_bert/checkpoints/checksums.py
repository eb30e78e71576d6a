"""checksums.json, beside what we write: formats without checksums of their own would hide a flipped byte.

It holds the SHA-256 of each model file, of a fine-tuned model also of its weights, and the CRC-32 of each tensor where
the format has none.
"""

import json
import os
import zlib
from collections.abc import Mapping
from typing import Any

from official_bert.checkpoints.checkpoint import Array
from official_bert.checkpoints.tensors import Source
from official_bert.errors import UserError
from official_bert.utils import files

CHECKSUM_FILE = "checksums.json"


def write(folder: str, names: list[str], tensors: Mapping[str, Array]) -> None:
    """Writes the checksums of files in the folder and of tensors in its weight files."""
    digests = {name: files.sha256(os.path.join(folder, name)) for name in sorted(names)}
    _write(folder, digests, {name: _of_tensor(tensors[name]) for name in sorted(tensors)})


def replace_files(source: str, folder: str, names: list[str]) -> None:
    """Copies files from one folder over those of another, with their checksums; those of its other files stay.

    While the files are replaced the checksums of both are right, so that the folder can be read whenever this stops.
    """
    new = {name: files.sha256(os.path.join(source, name)) for name in names}
    others = _read(folder)["files"].items()
    kept = {name: digest for name, digest in others if name not in new and files.exists(os.path.join(folder, name))}
    _write(folder, kept | {name: [digest, *_accepted(folder, name)] for name, digest in new.items()}, {})
    for name in new:
        files.copy(os.path.join(source, name), os.path.join(folder, name))
    _write(folder, kept | new, {})


def _accepted(folder: str, name: str) -> list[str]:
    """The checksums that a file may have; that of the file itself where none is written."""
    expected = _read(folder)["files"].get(name)
    path = os.path.join(folder, name)
    if expected is None:
        return [files.sha256(path)] if files.exists(path) else []
    return expected if isinstance(expected, list) else [expected]


def _write(folder: str, of_files: Mapping[str, Any], of_tensors: Mapping[str, str]) -> None:
    contents = {"files": of_files, "tensors": of_tensors}
    files.write_text(os.path.join(folder, CHECKSUM_FILE), json.dumps(contents, indent=2) + "\n")


def check_files(folder: str, only: str | None = None) -> dict[str, str]:
    """Raises a UserError if a file, or the one named `only`, is not as it was written.

    Returns the SHA-256 of each file that was compared, by name. A folder without checksums.json has none.
    """
    compared = {}
    for name, expected in _read(folder)["files"].items():
        path = os.path.join(folder, name)
        if only not in (None, name):
            continue
        if not files.exists(path):
            raise UserError(f"{path} is gone; {_repair_hint(folder)}")
        compared[name] = files.sha256(path)
        if compared[name] not in (expected if isinstance(expected, list) else [expected]):
            raise UserError(f"{path} is not as it was written; {_repair_hint(folder)}")
    return compared


def with_checks(source: Source, folder: str) -> Source:
    """Returns the source, whose `read` raises a UserError if a tensor is not as it was written.

    Raises:
        UserError: a tensor is not there any more.
    """
    expected = _read(folder)["tensors"]
    gone = [name for name in expected if name not in source.shapes]
    if gone:
        raise UserError(f"{source.path} lacks {', '.join(gone[:10])}, which were written; {_repair_hint(folder)}")

    def read(name: str) -> Array:
        value = source.read(name)
        if name in expected and _of_tensor(value) != expected[name]:
            raise UserError(f"{name} in {source.path} is not as it was written; {_repair_hint(folder)}")
        return value

    return Source(source.path, source.shapes, read)


def _repair_hint(folder: str) -> str:
    return f"restore the folder from a copy or, if the change was meant, remove {os.path.join(folder, CHECKSUM_FILE)}"


def _read(folder: str) -> dict[str, dict[str, Any]]:
    path = os.path.join(folder, CHECKSUM_FILE)
    if not files.exists(path):
        return {"files": {}, "tensors": {}}
    try:
        contents = files.read_json_object(path)
    except UserError as error:
        raise UserError(f"{error}; {_repair_hint(folder)}") from error
    try:
        # An object of the file; a list of pairs would do for dict() too, and have names that are none.
        return {kind: {**contents[kind]} for kind in ("files", "tensors")}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error!r}); {_repair_hint(folder)}") from error


def _of_tensor(value: Array) -> str:
    # The type too: damage to a file's structure can turn the bytes of every number around.
    start = zlib.crc32(f"{value.dtype.str}{value.shape}".encode())
    return f"{zlib.crc32(value.tobytes(), start):08x}"
