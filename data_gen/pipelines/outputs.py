"""The record files of a run: their names, their manifests, the lock, and the refusal to write over the text."""

import contextlib
import glob
import os
import re
from collections.abc import Iterator

from data_gen.options import RecordOptions
from official_bert.data import manifest
from official_bert.errors import UserError
from official_bert.utils import files
from official_bert.utils.locks import lock_file


def shard_names(options: RecordOptions, size: float) -> list[str]:
    """Returns the record files to write, for records of about `size` bytes in total."""
    count = options.num_shards
    if options.shard_size_mb:
        count = max(1, round(size / (options.shard_size_mb * 1e6)))
    if count == 1:
        return options.output_file
    return [_numbered(options, f"{number:05}", count) for number in range(count)]


def manifest_files(options: RecordOptions) -> list[str]:
    """Returns the manifests of the run, one in each folder that records are written to."""
    return list(manifest.manifests_of(options.output_file, options.stem))


@contextlib.contextmanager
def lock_outputs(options: RecordOptions) -> Iterator[None]:
    """Keeps other processes from writing the same records within this context."""
    others = options.output_file if len(options.output_file) > 1 else []
    with contextlib.ExitStack() as stack:
        for path in [*manifest_files(options), *others]:
            stack.enter_context(lock_file(path, "output_file"))
        yield


def describe_outputs(options: RecordOptions) -> str:
    """Returns where the records and the manifests of a finished run are, for a reader."""
    manifests = manifest_files(options)
    shards = [shard for path in manifests for shard in manifest.Manifest.read(path).shards]
    names = options.output_file
    if sorted(shard.file for shard in shards) != sorted(map(os.path.basename, names)):
        names = [_numbered(options, "*", len(shards))]
    return f"records: {', '.join(names)}\nmanifest: {', '.join(manifests)}"


def check_outputs(options: RecordOptions, inputs: list[str]) -> None:
    """Raises a UserError if two outputs are one file, however they are spelled, or an output is an input.

    Inputs are all files that are read, the vocabulary too.
    """
    spellings: dict[str, str] = {}
    for path in options.output_file:
        real = files.real(path)
        if real in spellings:
            raise UserError(f"--output_file names one file twice, as {spellings[real]} and as {path}")
        spellings[real] = path
    for path in [*options.output_file, *manifest_files(options)]:
        files.refuse_overwriting(path, "output_file", inputs)
    folder = files.real(options.work_folder) + os.sep
    for path in inputs:
        if files.real(path).startswith(folder):
            raise UserError(
                f"{path} is in the working folder {options.work_folder}, which is removed at the end; move it"
            )
    if options.num_shards > 1 or options.shard_size_mb:
        _check_shards(options, inputs)


def _check_shards(options: RecordOptions, inputs: list[str]) -> None:
    """Raises a UserError if a file of a shard's name is an input; --shard_size_mb may give any number of shards."""
    folder, name = os.path.split(options.stem)
    ending = os.path.splitext(options.output_file[0])[1]
    number = r"\d{5,}" if options.shard_size_mb else f"(?:{options.num_shards:05})"
    shard = re.compile(rf"{re.escape(name)}-\d{{5,}}-of-{number}{re.escape(ending)}")
    for path in files.glob(os.path.join(glob.escape(folder), f"{glob.escape(name)}-*-of-*{glob.escape(ending)}")):
        if shard.fullmatch(os.path.basename(path)):
            files.refuse_overwriting(path, "output_file", inputs)


def _numbered(options: RecordOptions, number: str, count: int) -> str:
    return f"{options.stem}-{number}-of-{count:05}{os.path.splitext(options.output_file[0])[1]}"
