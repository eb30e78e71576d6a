"""The manifest: a file beside the shards that describes them and what they were made from."""

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

# The version of the algorithm's output. Raise it when the same flags give other bytes.
FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Shard:
    """A file of records, its length and the hash of its content."""

    file: str  # without a folder
    records: int  # how many it holds
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Describes a set of shards."""

    source: dict[str, Any]  # all that decides their bytes (see `describe_source`)
    shards: list[Shard]  # in order
    statistics: dict[str, int]  # counts over all records

    def to_json(self) -> str:
        """Returns the file's text."""
        return json.dumps(self.to_values(), indent=1)

    def to_values(self) -> dict[str, Any]:
        """Returns the file's JSON object; it shares its parts with this one."""
        # dataclasses.asdict, which copies each value, takes seconds where there are many shards.
        shards = [vars(shard) for shard in self.shards]
        made_by = f"official_bert {__version__}"
        return {"made_by": made_by, "source": self.source, "shards": shards, "statistics": self.statistics}

    @classmethod
    def read(cls, path: str) -> "Manifest":
        """Reads a manifest; a file that is not one is a UserError."""
        values = files.read_json_object(path)
        try:
            manifest = cls(values["source"], [Shard(**shard) for shard in values["shards"]], values["statistics"])
        except (KeyError, TypeError) as error:
            problem = f"it has no {error}" if isinstance(error, KeyError) else error
            raise UserError(f"{path} is not a manifest of records, or is damaged: {problem}") from error
        if defect := manifest._problem():
            raise UserError(
                f"{path} is not a manifest of records, or is damaged: {defect}; restore it from a copy, or remove it "
                "to use the records without"
            )
        return manifest

    def _problem(self) -> str | None:
        """Returns what is missing or of a wrong type, or None."""
        if not isinstance(self.source, dict) or not isinstance(self.source.get("flags"), dict):
            return "it has no flags in its source"
        if not isinstance(self.source.get("vocabulary"), str):
            return "it has no hash of a vocabulary in its source"
        if not isinstance(self.statistics, dict):
            return "its statistics are not counts"
        for shard in self.shards:
            types = {"file": str, "records": int, "bytes": int, "sha256": str}
            if not all(isinstance(getattr(shard, name), type) for name, type in types.items()):
                return f"it describes a file as {dataclasses.asdict(shard)}"
        return None


def read_manifests(paths: list[str]) -> dict[str, Manifest]:
    """Returns the manifests that lie beside record files, by their paths.

    Raises:
        UserError: one cannot be understood.
    """
    folders = dict.fromkeys(os.path.dirname(files.normalize_path(path)) for path in paths)
    return {path: Manifest.read(path) for folder in folders for path in list_manifests(folder)}


def find_shards(paths: list[str], manifests: dict[str, Manifest] | None = None) -> dict[str, tuple[Manifest, Shard]]:
    """Returns the manifest, and the entry in it, of each record file that a manifest beside it names.

    The keys of the result are the paths as they were received, in any spelling.

    Args:
        paths: the record files.
        manifests: those of `read_manifests`; None to read them.

    Raises:
        UserError: a manifest cannot be understood, or a file has not the length that its manifest says.
    """
    spellings: dict[str, list[str]] = {}
    for path in paths:
        spellings.setdefault(files.normalize_path(path), []).append(path)
    described_files = {}
    for described, manifest in (read_manifests(paths) if manifests is None else manifests).items():
        for shard in manifest.shards:
            for path in spellings.get(os.path.join(os.path.dirname(described), shard.file), []):
                if (size := files.size(path)) != shard.bytes:
                    raise UserError(
                        f"{path} has {size:,} bytes, but {described} says {shard.bytes:,}: it is not whole or was "
                        "changed; remove it and run the command that made it again, or remove the manifest if the file "
                        "is right"
                    )
                described_files[path] = manifest, shard
    return described_files


def list_manifests(folder: str) -> list[str]:
    """Returns the manifests in a folder, by the folder's normal spelling."""
    return files.glob(os.path.join(glob.escape(folder), get_manifest_path("*")))


def plan_manifests(paths: list[str], stem: str) -> dict[str, list[int]]:
    """Returns the manifests of record files: in each of their folders one, with the indices of the folder's files.

    Args:
        paths: the record files, in order.
        stem: the path without an ending that the manifest in the first folder is named after; in other folders it is
            named after the first file.
    """
    folders: dict[str, list[int]] = {}
    for index, path in enumerate(paths):
        folders.setdefault(os.path.dirname(files.make_absolute(path)), []).append(index)
    first, *others = folders.values()
    stems = {stem: first} | {os.path.splitext(paths[indices[0]])[0]: indices for indices in others}
    return {get_manifest_path(stem): indices for stem, indices in stems.items()}


def write_manifests(paths: list[str], stem: str, manifest: Manifest) -> None:
    """Writes the `plan_manifests` record files, which are in the order of the manifest's shards."""
    for path, indices in plan_manifests(paths, stem).items():
        shards = [manifest.shards[index] for index in indices]
        files.write_text(path, dataclasses.replace(manifest, shards=shards).to_json())


def get_manifest_path(stem: str) -> str:
    """Returns the path of the manifest of shards that are named after `stem`, a path without an ending."""
    return f"{stem}.manifest.json"


def describe_source(flags: dict[str, Any], vocabulary: str, inputs: list[str]) -> dict[str, Any]:
    """Returns all that decides the records' bytes: flags, the vocabulary's hash, and hashes of the text files."""
    progress = track_reading("checking the text", inputs)
    described = [{"file": os.path.basename(path), "sha256": files.sha256(path, progress)} for path in inputs]
    return {"format": FORMAT, "flags": flags, "vocabulary": vocabulary, "inputs": described}


def sum_counts(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Returns the sums of counts of the same name."""
    sums: collections.Counter[str] = collections.Counter()
    for each in counts:
        sums.update(each)
    return dict(sums)


def find_missing_files(patterns: list[str], paths: list[str], manifests: dict[str, Manifest]) -> dict[str, str]:
    """Returns the record files that manifests name and patterns ask for, but that are not there, with the manifest.

    The manifests are those of `read_manifests(paths)`, the files that match the patterns.
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
