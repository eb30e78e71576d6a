"""The output files of make-records: their names, manifests and locks, and checks that no input is overwritten."""

import contextlib
import glob
import os
import re
from collections.abc import Iterator
from typing import Any

from data_gen.options import RecordOptions
from official_bert.data import manifest
from official_bert.errors import UserError
from official_bert.runs import run_file
from official_bert.runs.locks import lock_file
from official_bert.utils import files

OPTIONS = "options.json"  # A run's file in its own folder in the working folder. Records appear after this file.

_MAX_FILES_SHOWN = 5
_RUN_FOLDER = "[0-9a-f]" * 16  # pattern of its name (see fast.open_run_folder)


def make_shard_names(options: RecordOptions, size: float) -> list[str]:
    """Returns the paths of the record files to write. With --shard_size_mb, their number depends on `size`.

    Args:
        options: The flags.
        size: Estimated size of all records in bytes.
    """
    count = options.num_shards
    if options.shard_size_mb:
        count = max(1, round(size / (options.shard_size_mb * 1e6)))
    if count == 1:
        return options.output_file
    return [_make_shard_name(options, f"{number:05}", count) for number in range(count)]


def list_manifests(options: RecordOptions) -> list[str]:
    """Returns the paths of the run's manifests, one in each folder that records are written to."""
    return list(manifest.plan_manifests(options.output_file, options.stem))


@contextlib.contextmanager
def lock_outputs(options: RecordOptions) -> Iterator[None]:
    """Locks the outputs within this context, so that no other process writes the same record files."""
    others = options.output_file if len(options.output_file) > 1 else []
    with contextlib.ExitStack() as stack:
        for path in [*list_manifests(options), *others]:
            stack.enter_context(lock_file(path, "output_file"))
        yield


def read_completed(options: RecordOptions, source: dict[str, Any]) -> manifest.Manifest | None:
    """Returns the manifest of an earlier, identical run if its record files are complete, or else None.

    Args:
        options: The flags.
        source: Description of everything that determines the records' bytes (see manifest.describe_source).

    Raises:
        UserError: If a manifest exists that describes a different run, whose shards would be mixed with this run's.
    """
    paths = list_manifests(options)
    existing = {path: manifest.Manifest.read(path) for path in paths if files.exists(path)}
    complete = len(existing) == len(paths)
    for path, described in existing.items():
        before = described.source["flags"]
        changes = run_file.find_changes(described.source, {key: source[key] for key in source if key != "flags"})
        descriptions = {
            "format": "it was made by another release",
            "vocabulary": f"--vocab_file={options.vocab_file} has other contents",
            "inputs": _describe_changed_inputs(*(each.get("inputs", []) for each in (described.source, source))),
        }
        changes |= run_file.find_changes(before, {**dict.fromkeys(before), **source["flags"]})
        run_file.refuse_changes(path, changes, "Remove it and its shards, or pass another --output_file.", descriptions)
        for shard in described.shards:
            record_file = os.path.join(os.path.dirname(path), shard.file)
            complete = complete and files.exists(record_file) and files.size(record_file) == shard.bytes
    return existing[paths[0]] if complete else None


def _describe_changed_inputs(before: list[dict[str, str]], now: list[dict[str, str]]) -> str:
    old, new = ({each["file"]: each["sha256"] for each in inputs} for inputs in (before, now))
    differing = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    kinds = ["new" if name not in old else "changed" if name in new else "missing" for name in differing]
    described = [f"{name} is {kind}" for name, kind in zip(differing, kinds, strict=True)]
    return f"--input_file: {', '.join(described[:_MAX_FILES_SHOWN]) or 'other order or repetitions'}"


def describe_outputs(options: RecordOptions) -> str:
    """Returns lines with the paths of the records and manifests of a finished run."""
    manifests = list_manifests(options)
    shards = [shard for path in manifests for shard in manifest.Manifest.read(path).shards]
    names = options.output_file
    if sorted(shard.file for shard in shards) != sorted(map(os.path.basename, names)):
        names = [_make_shard_name(options, "*", len(shards))]
    return f"records: {', '.join(names)}\nmanifest: {', '.join(manifests)}"


def check_outputs(options: RecordOptions, inputs: list[str]) -> None:
    """Raises a UserError if two outputs are the same file, or an output would overwrite an input or a file of others.

    Args:
        options: The flags.
        inputs: All files that are read: the text, the vocabulary and so on.
    """
    spellings: dict[str, str] = {}
    for path in options.output_file:
        real = files.resolve_links(path)
        if real in spellings:
            raise UserError(f"--output_file contains the same file twice: {spellings[real]} and {path}")
        spellings[real] = path
    existing = _list_existing(options)
    for path in [*options.output_file, *list_manifests(options), *existing]:
        files.refuse_overwriting(path, "output_file", inputs)
    folder = files.resolve_links(options.work_folder) + os.sep
    for path in inputs:
        if files.resolve_links(path).startswith(folder):
            raise UserError(
                f"--output_file would delete {options.work_folder} at the end, which contains the input {path}; move "
                "this file"
            )
    for path in existing:
        files.check_regular(path)
    is_unfinished = files.glob(os.path.join(glob.escape(options.work_folder), _RUN_FOLDER, OPTIONS))
    for path in [] if is_unfinished else _list_foreign(existing, options):
        raise UserError(
            f"--output_file would replace {path}, which exists and is not listed in a manifest of make-records; "
            "pass another name, or remove the file"
        )


def _list_foreign(existing: list[str], options: RecordOptions) -> list[str]:
    """Returns the files that the manifest in their own folder does not list."""
    described = {path: manifest.Manifest.read(path) for path in list_manifests(options) if files.exists(path)}
    listed = {
        os.path.join(os.path.dirname(files.make_absolute(path)), shard.file)
        for path, each in described.items()
        for shard in each.shards
    }
    return [path for path in existing if files.make_absolute(path) not in listed]


def _list_existing(options: RecordOptions) -> list[str]:
    """Returns the existing files with names that record files may get. With --shard_size_mb, any number is possible."""
    unnumbered = list(filter(files.exists, options.output_file)) if options.num_shards == 1 else []
    if options.num_shards == 1 and not options.shard_size_mb:
        return unnumbered
    folder, name = os.path.split(options.stem)
    ending = os.path.splitext(options.output_file[0])[1]
    number = r"\d{5,}" if options.shard_size_mb else f"(?:{options.num_shards:05})"
    shard = re.compile(rf"{re.escape(name)}-\d{{5,}}-of-{number}{re.escape(ending)}")
    paths = files.glob(os.path.join(glob.escape(folder), f"{glob.escape(name)}-*-of-*{glob.escape(ending)}"))
    return unnumbered + [path for path in paths if shard.fullmatch(os.path.basename(path))]


def _make_shard_name(options: RecordOptions, number: str, count: int) -> str:
    return f"{options.stem}-{number}-of-{count:05}{os.path.splitext(options.output_file[0])[1]}"
