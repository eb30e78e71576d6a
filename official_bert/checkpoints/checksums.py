"""Writes and checks checksums.json, which is used to detect damaged files in a model's folder.

It contains the SHA-256 of the configuration, the vocabulary and similar files, and of a fine-tuned model's weights. For
other weights in formats without checksums of their own (safetensors, HDF5), it contains the CRC-32 of each tensor.
"""

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from official_bert.checkpoints.checkpoint import Array
from official_bert.checkpoints.tensors import TensorFile
from official_bert.errors import UserError
from official_bert.utils import files

CHECKSUM_FILE = "checksums.json"


def write(folder: str, names: Iterable[str], tensors: Mapping[str, Array]) -> None:
    """Writes checksums.json into a folder.

    Args:
        folder: The folder.
        names: Names of files in the folder whose SHA-256 is stored.
        tensors: The tensors in the folder's weight files, by name. Their CRC-32 is stored.
    """
    digests = {name: files.sha256(os.path.join(folder, name)) for name in sorted(names)}
    _write(folder, digests, {name: _compute_crc(tensors[name]) for name in sorted(tensors)})


def replace_files(source: str, folder: str, names: list[str]) -> None:
    """Copies files from one folder to another and updates their checksums there. Checksums of other files are kept.

    An interruption leaves a readable folder: during the copy, checksums.json accepts both the old and the new contents.

    Args:
        source: The folder with the new files.
        folder: The folder to copy to.
        names: Names of the files.
    """
    new = {name: files.sha256(os.path.join(source, name)) for name in names}
    old = _read(folder)["files"]
    kept = {name: old[name] for name in old if name not in new and files.exists(os.path.join(folder, name))}
    accepted = {}
    for name, digest in new.items():
        path = os.path.join(folder, name)
        current = [] if name in old or not files.exists(path) else [files.sha256(path)]
        accepted[name] = [digest, *_list_digests(old.get(name, current))]
    _write(folder, kept | accepted, {})
    for name in new:
        files.copy(os.path.join(source, name), os.path.join(folder, name))
    _write(folder, kept | new, {})


def _list_digests(digests: str | list[str]) -> list[str]:
    return digests if isinstance(digests, list) else [digests]


def _write(folder: str, file_digests: Mapping[str, Any], tensor_crcs: Mapping[str, str]) -> None:
    contents = {"files": file_digests, "tensors": tensor_crcs}
    files.write_text(os.path.join(folder, CHECKSUM_FILE), json.dumps(contents, indent=2) + "\n")


def check_files(folder: str, only: str | None = None) -> dict[str, str]:
    """Compares the files in a folder with the SHA-256 stored in its checksums.json.

    Args:
        folder: The folder.
        only: The name of the only file to check. None to check all.

    Returns:
        The SHA-256 of each file that was compared, by name. Empty for a folder without checksums.json.

    Raises:
        UserError: If a file is missing or does not match its checksum.
    """
    compared = {}
    for name, expected in _read(folder)["files"].items():
        path = os.path.join(folder, name)
        if only not in (None, name):
            continue
        if not files.exists(path):
            raise UserError(f"{path} is missing; {_repair_hint(folder)}")
        compared[name] = files.sha256(path)
        if compared[name] not in _list_digests(expected):
            raise UserError(f"{path} does not match its checksum; {_repair_hint(folder)}")
    return compared


def verify_tensors(source: TensorFile, folder: str) -> TensorFile:
    """Returns the source with a `read` that compares each tensor with its CRC-32 in the folder's checksums.json.

    Tensors without a checksum are not checked.

    Raises:
        UserError: If a tensor that has a checksum is missing. `read` raises it if a tensor does not match.
    """
    expected = _read(folder)["tensors"]
    missing = [name for name in expected if name not in source.shapes]
    if missing:
        raise UserError(f"{source.path} lacks {', '.join(missing[:10])}, which were written; {_repair_hint(folder)}")

    def read(name: str) -> Array:
        value = source.read(name)
        if name in expected and _compute_crc(value) != expected[name]:
            raise UserError(f"{name} in {source.path} does not match its checksum; {_repair_hint(folder)}")
        return value

    return TensorFile(source.path, source.shapes, read)


def _repair_hint(folder: str) -> str:
    return f"restore the folder from a copy or, if the change is intended, remove {os.path.join(folder, CHECKSUM_FILE)}"


def _read(folder: str) -> dict[str, dict[str, Any]]:
    path = os.path.join(folder, CHECKSUM_FILE)
    if not files.exists(path):
        return {"files": {}, "tensors": {}}
    try:
        contents = files.read_json_object(path)
    except UserError as error:
        raise UserError(f"{error}; {_repair_hint(folder)}") from error
    try:
        # Unlike dict(), this rejects a list of pairs, whose keys need not be strings.
        return {kind: {**contents[kind]} for kind in ("files", "tensors")}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error!r}); {_repair_hint(folder)}") from error


def _compute_crc(value: Array) -> str:
    # Includes the type: damage to a file's structure can reverse the byte order of every number.
    start = zlib.crc32(f"{value.dtype.str}{value.shape}".encode())
    return f"{zlib.crc32(value.tobytes(), start):08x}"
