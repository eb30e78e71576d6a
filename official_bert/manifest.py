"""What was made from what: the file beside the shards that tells, and keeps runs apart."""

import dataclasses
import glob
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from typing import Any

import official_bert
from official_bert import files
from official_bert.errors import UserError
from official_bert.progress import Progress

_CHUNK = 1 << 22

# Of the algorithm's output: to be raised when the same flags would give other bytes.
FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Shard:
    """A file of records.

    Attributes:
        file: its name, without a folder.
        records: how many it holds.
        bytes: its length.
        sha256: of its content.
    """

    file: str
    records: int
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Describes a set of shards.

    Attributes:
        source: what decides their bytes: flags, and hashes of vocabulary and input (see `describe_source`).
        shards: the files, in order.
        statistics: counts over all records.
    """

    source: dict[str, Any]
    shards: list[Shard]
    statistics: dict[str, int]

    def to_json(self) -> str:
        """Returns the file's text."""
        return json.dumps(
            {"made_by": f"official_bert {official_bert.__version__}", **dataclasses.asdict(self)}, indent=1
        )

    @classmethod
    def read(cls, path: str) -> "Manifest":
        """Reads a manifest; one that cannot be understood is a UserError."""
        try:
            values = json.loads(files.read_text(path))
            return cls(values["source"], [Shard(**shard) for shard in values["shards"]], values["statistics"])
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise UserError(f"{path} is not a manifest of records, or is damaged: {error!r}") from error


def of_files(paths: list[str]) -> dict[str, tuple[Manifest, Shard]]:
    """Returns, for each of the record files that a manifest beside it names, that manifest and its entry.

    The files are named as they are given, however they are spelled.

    Raises:
        UserError: a manifest cannot be understood, or a file has not the length that its manifest says.
    """
    given: dict[str, list[str]] = {}
    for path in paths:
        given.setdefault(files.normal(path), []).append(path)
    found = {}
    for folder in dict.fromkeys(map(os.path.dirname, given)):
        for described in beside(folder):
            manifest = Manifest.read(described)
            for shard in manifest.shards:
                for path in given.get(os.path.join(folder, shard.file), []):
                    if files.size(path) != shard.bytes:
                        raise UserError(
                            f"{path} has {files.size(path):,} bytes, but {described} says {shard.bytes:,}: it is not "
                            "whole or was changed; remove it and run the command that made it again, or remove the "
                            "manifest if the file is right"
                        )
                    found[path] = manifest, shard
    return found


def beside(folder: str) -> list[str]:
    """Returns the manifests in a folder, by the folder's normal spelling."""
    return files.glob(os.path.join(glob.escape(folder), manifest_path("*")))


def manifest_path(stem: str) -> str:
    """Returns where the manifest stands of shards that are named after `stem`, a path without an ending."""
    return f"{stem}.manifest.json"


def sha256(path: str, progress: Callable[[int], None] | None = None) -> str:
    """Returns the hash of a file's content.

    Args:
        path: the file.
        progress: told the number of bytes of each piece read.
    """
    digest = hashlib.sha256()
    with files.open_bytes(path) as reader:
        while chunk := reader.read(_CHUNK):
            digest.update(chunk)
            if progress:
                progress(len(chunk))
    return digest.hexdigest()


def describe_source(flags: dict[str, Any], vocab_file: str, inputs: list[str]) -> dict[str, Any]:
    """Returns all that decides the records' bytes.

    Args:
        flags: those that matter, by name.
        vocab_file: the vocabulary.
        inputs: the text files, in order.
    """
    progress = Progress("checking the text", sum(map(files.size, inputs)) / 1e6, "MB")
    read = 0

    def count(size: int) -> None:
        nonlocal read
        read += size
        progress.update(read / 1e6)

    return source_of(flags, vocab_file, inputs, [sha256(path, count) for path in inputs])


def source_of(flags: dict[str, Any], vocab_file: str, inputs: list[str], hashes: list[str]) -> dict[str, Any]:
    """Returns what `describe_source` does, where the hashes of the text files are known already."""
    return {
        "format": FORMAT,
        "flags": flags,
        "vocabulary": sha256(vocab_file),
        "inputs": [
            {"file": os.path.basename(path), "sha256": digest} for path, digest in zip(inputs, hashes, strict=True)
        ],
    }


def total(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Returns the sums of counts of the same name."""
    sums: dict[str, int] = {}
    for each in counts:
        for name, value in each.items():
            sums[name] = sums.get(name, 0) + value
    return sums


def completed(source: dict[str, Any], path: str) -> Manifest | None:
    """Returns the manifest at `path` if it describes the same run and its shards are all there, else None.

    Raises:
        UserError: it describes another run, whose shards would be mixed with this one's.
    """
    if not files.exists(path):
        return None
    found = Manifest.read(path)
    if found.source != source:
        differing = [key for key in source if found.source.get(key) != source[key]]
        raise UserError(
            f"{path} describes records made from other {' and '.join(differing)}; remove it and its shards, or give "
            "another --output_file"
        )
    folder = os.path.dirname(path)
    paths = {os.path.join(folder, shard.file): shard.bytes for shard in found.shards}
    return found if all(files.exists(shard) and files.size(shard) == size for shard, size in paths.items()) else None
