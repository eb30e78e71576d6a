"""Reads and writes manifests, which are files that describe record files (shards) and what they were made from."""

import collections
import dataclasses
import fnmatch
import glob
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from typing import Any

from official_bert.data.record_reader import track_reading
from official_bert.errors import UserError
from official_bert.utils import files
from official_bert.version import __version__

# Version of the algorithm's output. Increase it when the same flags give different bytes.
FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Shard:
    """The description of one record file in a manifest.

    Attributes:
        file: Name of the file, without its folder.
        records: Number of records.
        bytes: Size in bytes.
        sha256: SHA-256 of the contents.
    """

    file: str
    records: int
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A description of a set of record files that were made together.

    Attributes:
        source: Description of everything that determines the bytes of the files (see `describe_source`).
        shards: The record files, in order.
        statistics: Counts over all records, by name.
    """

    source: dict[str, Any]
    shards: list[Shard]
    statistics: dict[str, int]

    def to_json(self) -> str:
        """Returns the text of the manifest file."""
        return json.dumps(self.to_values(), indent=1)

    def to_values(self) -> dict[str, Any]:
        """Returns the JSON object in the manifest file as a dict, whose values are shared with this instance."""
        # dataclasses.asdict copies each value, which takes seconds for many shards.
        shards = [vars(shard) for shard in self.shards]
        made_by = f"official_bert {__version__}"
        return {"made_by": made_by, "source": self.source, "shards": shards, "statistics": self.statistics}

    @classmethod
    def read(cls, path: str) -> "Manifest":
        """Reads a manifest.

        Raises:
            UserError: If the file is missing or not a manifest.
        """
        values = files.read_json_object(path)
        try:
            source, shards = values["source"], [Shard(**shard) for shard in values["shards"]]
            for name in ("flags", "vocabulary"):
                source[name]
            return cls(source, shards, values["statistics"])
        except (KeyError, TypeError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else error
            raise UserError(
                f"{path} is not a manifest of records, or is corrupted: {reason}; restore it from a copy, or remove "
                "it to use the records without a manifest"
            ) from error


def read_manifests(paths: list[str]) -> dict[str, Manifest]:
    """Reads all manifests in the folders of some record files. Returns them by path.

    Raises:
        UserError: If a manifest is invalid.
    """
    folders = dict.fromkeys(os.path.dirname(files.normalize_path(path)) for path in paths)
    return {path: Manifest.read(path) for folder in folders for path in list_manifests(folder)}


def find_shards(paths: list[str], manifests: dict[str, Manifest] | None = None) -> dict[str, tuple[Manifest, Shard]]:
    """Finds the manifest and the manifest's entry for each record file. Files that no manifest lists are left out.

    Args:
        paths: The record files, which are the keys of the result.
        manifests: Result of `read_manifests`. None to read the manifests.

    Raises:
        UserError: If a manifest is invalid, or the size of a file differs from the size in its manifest.
    """
    spellings: dict[str, list[str]] = {}  # Normalized path to the paths that were passed.
    for path in paths:
        spellings.setdefault(files.normalize_path(path), []).append(path)
    found = {}
    for described, manifest in (read_manifests(paths) if manifests is None else manifests).items():
        for shard in manifest.shards:
            for path in spellings.get(os.path.join(os.path.dirname(described), shard.file), []):
                if (size := files.size(path)) != shard.bytes:
                    raise UserError(
                        f"{path} has {size:,} bytes, but its manifest {described} lists {shard.bytes:,}: the file is "
                        "incomplete or was changed; remove it and rerun the command that made it, or remove the "
                        "manifest if the file is right"
                    )
                found[path] = manifest, shard
    return found


def list_manifests(folder: str) -> list[str]:
    """Returns the paths of the manifests in a folder."""
    return files.glob(os.path.join(glob.escape(folder), get_manifest_path("*")))


def plan_manifests(paths: list[str], stem: str) -> dict[str, list[int]]:
    """Returns the path of a manifest for each folder with record files, and the indices of the folder's files.

    Args:
        paths: The record files, in order.
        stem: Path without extension that names the manifest in the first folder. In other folders, the manifest is
            named after the folder's first file.
    """
    folders: dict[str, list[int]] = {}
    for index, path in enumerate(paths):
        folders.setdefault(os.path.dirname(files.make_absolute(path)), []).append(index)
    first, *others = folders.values()
    stems = {stem: first} | {os.path.splitext(paths[indices[0]])[0]: indices for indices in others}
    return {get_manifest_path(stem): indices for stem, indices in stems.items()}


def write_manifests(paths: list[str], stem: str, manifest: Manifest) -> None:
    """Writes a manifest into each folder with record files.

    Args:
        paths: The record files, in the order of the manifest's shards.
        stem: See `plan_manifests`.
        manifest: The description of all record files.
    """
    for path, indices in plan_manifests(paths, stem).items():
        shards = [manifest.shards[index] for index in indices]
        files.write_text(path, dataclasses.replace(manifest, shards=shards).to_json())


def get_manifest_path(stem: str) -> str:
    """Returns the path of the manifest for record files whose names start with `stem`, a path without extension."""
    return f"{stem}.manifest.json"


def hash_vocabulary(text: str) -> str:
    """Returns the SHA-256 of a vocabulary's text. The text must not contain the byte order mark of the file."""
    return hashlib.sha256(text.encode()).hexdigest()


def describe_source(flags: dict[str, Any], vocabulary: str, inputs: list[str]) -> dict[str, Any]:
    """Returns a description of everything that determines the bytes of records.

    Args:
        flags: The flags that influence the records.
        vocabulary: The text of the vocabulary. Its hash is included.
        inputs: The text files. Their names and hashes are included.
    """
    described = describe_files(inputs, track_reading("hashing the text", inputs))
    return {"format": FORMAT, "flags": flags, "vocabulary": hash_vocabulary(vocabulary), "inputs": described}


def describe_files(paths: list[str], progress: Callable[[int], None] | None = None) -> list[dict[str, str]]:
    """Returns the names and SHA-256 hashes of files. See `files.sha256` for `progress`."""
    return [{"file": os.path.basename(path), "sha256": files.sha256(path, progress)} for path in paths]


def sum_counts(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Adds up dicts of counts, name by name."""
    sums: collections.Counter[str] = collections.Counter()
    for each in counts:
        sums.update(each)
    return dict(sums)


def find_missing_files(patterns: list[str], paths: list[str], manifests: dict[str, Manifest]) -> dict[str, str]:
    """Finds record files that do not exist, although a manifest lists them and a pattern matches them.

    The result maps each of these files to the path of its manifest.

    Args:
        patterns: Glob patterns that the user passed.
        paths: The existing files that match the patterns.
        manifests: Result of `read_manifests(paths)`.
    """
    received = set(map(files.normalize_path, paths))
    wanted = [files.normalize_path(pattern.strip()) for pattern in patterns if glob.has_magic(pattern)]
    missing = {}
    for path, manifest in manifests.items():
        for shard in manifest.shards:
            record_file = os.path.join(os.path.dirname(path), shard.file)
            if record_file in received:
                continue
            deep = [pattern for pattern in wanted if pattern.count("/") == record_file.count("/")]
            matched = any(fnmatch.fnmatchcase(record_file, pattern) for pattern in deep)
            if matched and not files.exists(record_file):
                missing[record_file] = path
    return missing
