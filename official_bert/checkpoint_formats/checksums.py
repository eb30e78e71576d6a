"""checksums.json, beside what we write: formats without checksums of their own would hide a flipped byte.

It holds the SHA-256 of each small file, and the CRC-32 of each tensor where the format has none.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from typing import Any

from official_bert import files
from official_bert.checkpoint_formats.checkpoint import Array, Source
from official_bert.errors import UserError

CHECKSUM_FILE = "checksums.json"


def write(folder: str, names: list[str], tensors: Mapping[str, Array]) -> None:
    """Writes the checksums of files in the folder and of tensors in its weight files."""
    contents = {
        "files": {name: _of_file(os.path.join(folder, name)) for name in sorted(names)},
        "tensors": {name: _of_tensor(tensors[name]) for name in sorted(tensors)},
    }
    files.write_text(os.path.join(folder, CHECKSUM_FILE), json.dumps(contents, indent=2) + "\n")


def check_files(folder: str) -> None:
    """Raises a UserError if a file is not as it was written; folders without checksums.json pass."""
    for name, expected in _read(folder)["files"].items():
        path = os.path.join(folder, name)
        if _of_file(path) != expected:
            raise UserError(f"{path} is not as it was written; {_mend(folder)}")


def with_checks(source: Source, folder: str) -> Source:
    """Returns the source, whose `read` raises a UserError if a tensor is not as it was written.

    Raises:
        UserError: a tensor is not there any more.
    """
    expected = _read(folder)["tensors"]
    gone = [name for name in expected if name not in source.shapes]
    if gone:
        raise UserError(f"{source.path} lacks {', '.join(gone[:10])}, which were written; {_mend(folder)}")

    def read(name: str) -> Array:
        value = source.read(name)
        if name in expected and _of_tensor(value) != expected[name]:
            raise UserError(f"{name} in {source.path} is not as it was written; {_mend(folder)}")
        return value

    return Source(source.path, source.shapes, read)


def _mend(folder: str) -> str:
    return f"restore the folder from a copy or, if the change was meant, remove {os.path.join(folder, CHECKSUM_FILE)}"


def _read(folder: str) -> dict[str, dict[str, Any]]:
    path = os.path.join(folder, CHECKSUM_FILE)
    if not files.exists(path):
        return {"files": {}, "tensors": {}}
    try:
        contents = json.loads(files.read_text(path))
        return {kind: dict(contents[kind]) for kind in ("files", "tensors")}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error!r}); {_mend(folder)}") from error


def _of_file(path: str) -> str:
    return hashlib.sha256(files.read_bytes(path)).hexdigest()


def _of_tensor(value: Array) -> str:
    # The type too: damage to a file's structure can turn the bytes of every number around.
    start = zlib.crc32(f"{value.dtype.str}{value.shape}".encode())
    return f"{zlib.crc32(value.tobytes(), start):08x}"
