"""The manifest: a file that describes the shards in its folder and their sources."""

import collections
import dataclasses
import fnmatch
import glob
import json
import os
from collections.abc import Iterable
from typing import Any

from official_bert.data.record_reader import track_reading
from official_bert.errors import UserError
from official_bert.utils import files
from official_bert.version import __version__

# Version of the algorithm's output. Increase it when the same flags give different bytes.
FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Shard:
    """A file of records.

    Attributes:
        file: Name, without the folder.
        records: Number of records.
        bytes: Size in bytes.
        sha256: Hash of the content.
    """

    file: str
    records: int
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A description of a set of shards.

    Attributes:
        source: Everything that determines the bytes of the shards (see `describe_source`).
        shards: The shards, in order.
        statistics: Counts over all records.
    """

    source: dict[str, Any]
    shards: list[Shard]
    statistics: dict[str, int]

    def to_json(self) -> str:
        """Returns the content of the file."""
        return json.dumps(self.to_values(), indent=1)

    def to_values(self) -> dict[str, Any]:
        """Returns the JSON object of the file. It shares its values with the manifest."""
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
            manifest = cls(values["source"], [Shard(**shard) for shard in values["shards"]], values["statistics"])
        except (KeyError, TypeError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else error
            raise UserError(f"{path} is not a manifest of records, or is corrupted: {reason}") from error
        if problem := manifest._find_problem():
            raise UserError(
                f"{path} is not a manifest of records, or is corrupted: {problem}; restore it from a copy, or remove "
                "it to use the records without a manifest"
            )
        return manifest

    def _find_problem(self) -> str | None:
        """Returns what is missing or has the wrong type, or None if the manifest is valid."""
        if not isinstance(self.source, dict) or not isinstance(self.source.get("flags"), dict):
            return "it has no flags in its source"
        if not isinstance(self.source.get("vocabulary"), str):
            return "it has no hash of a vocabulary in its source"
        if not isinstance(self.statistics, dict):
            return "its statistics are not an object"
        for shard in self.shards:
            types = {"file": str, "records": int, "bytes": int, "sha256": str}
            if not all(isinstance(getattr(shard, name), type) for name, type in types.items()):
                return f"the entry {dataclasses.asdict(shard)} has a value of the wrong type"
        return None


def read_manifests(paths: list[str]) -> dict[str, Manifest]:
    """Returns the manifests in the folders of record files, by path.

    Raises:
        UserError: If a manifest is invalid.
    """
    folders = dict.fromkeys(os.path.dirname(files.normalize_path(path)) for path in paths)
    return {path: Manifest.read(path) for folder in folders for path in list_manifests(folder)}


def find_shards(paths: list[str], manifests: dict[str, Manifest] | None = None) -> dict[str, tuple[Manifest, Shard]]:
    """Returns the manifest and the shard of each record file that a manifest in its folder lists.

    Args:
        paths: The record files. They are the keys of the result.
        manifests: Result of `read_manifests`. None to read them.

    Raises:
        UserError: If a manifest is invalid, or the size of a file differs from its manifest.
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
    """Returns one manifest path for each folder of the record files, with the indices of the folder's files.

    Args:
        paths: The record files, in order.
        stem: Path without an extension, after which the manifest in the first folder is named. In other folders it is
            named after the folder's first file.
    """
    folders: dict[str, list[int]] = {}
    for index, path in enumerate(paths):
        folders.setdefault(os.path.dirname(files.make_absolute(path)), []).append(index)
    first, *others = folders.values()
    stems = {stem: first} | {os.path.splitext(paths[indices[0]])[0]: indices for indices in others}
    return {get_manifest_path(stem): indices for stem, indices in stems.items()}


def write_manifests(paths: list[str], stem: str, manifest: Manifest) -> None:
    """Writes the manifest of each folder of the record files, which are in the order of the manifest's shards."""
    for path, indices in plan_manifests(paths, stem).items():
        shards = [manifest.shards[index] for index in indices]
        files.write_text(path, dataclasses.replace(manifest, shards=shards).to_json())


def get_manifest_path(stem: str) -> str:
    """Returns the path of the manifest for shards named after `stem`, a path without an extension."""
    return f"{stem}.manifest.json"


def describe_source(flags: dict[str, Any], vocabulary: str, inputs: list[str]) -> dict[str, Any]:
    """Returns everything that determines the bytes of the records: the flags and the hashes of vocabulary and text."""
    progress = track_reading("hashing the text", inputs)
    described = [{"file": os.path.basename(path), "sha256": files.sha256(path, progress)} for path in inputs]
    return {"format": FORMAT, "flags": flags, "vocabulary": vocabulary, "inputs": described}


def sum_counts(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Adds up the counts of each name."""
    sums: collections.Counter[str] = collections.Counter()
    for each in counts:
        sums.update(each)
    return dict(sums)


def find_missing_files(patterns: list[str], paths: list[str], manifests: dict[str, Manifest]) -> dict[str, str]:
    """Returns the missing record files: those that a manifest lists and a pattern matches. Each maps to its manifest.

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
