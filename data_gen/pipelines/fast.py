"""The fast algorithm from text to records: uses little memory and all cores, and can be resumed at any time.

1. Tokenize: each part of an input file becomes a part of a corpus on disk. The parts are then joined.
2. Make instances: each block of documents becomes instances, once for each pass, sorted by a random key.
3. Write shards: each bucket, a part of a shard, collects the instances of its range of keys from all blocks and encodes
   them. A shard is written from its buckets.

Worker processes run the tasks of each step and store the results in a working folder next to the records, or in the
current folder for remote records. Result files are written atomically, and a task is complete if its file exists. So a
stopped run continues when the same command is run again, and its records have the same bytes.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

from data_gen.options import RecordOptions
from data_gen.pipelines import outputs, run_plan, summary, worker
from data_gen.pipelines.preparation import RunInputs
from data_gen.pipelines.worker import TextError
from data_gen.pipelines.worker_pool import WorkerPool
from data_gen.text import formats, token_store
from official_bert.data import manifest
from official_bert.errors import UserError
from official_bert.runs import run_file
from official_bert.utils import files

# Flags whose values are paths or contents of files.
_FILE_OPTIONS = {"output_file", "exclude_texts", "word_boundaries"}
_CHANGED_FILES = "other text, --exclude_texts or --word_boundaries"


def create_records(
    options: RecordOptions,
    inputs: RunInputs,
    source: dict[str, Any],
    states: dict[str, tuple[int, int] | None],
    pool: Callable[[str], WorkerPool],
) -> manifest.Manifest:
    """Makes the record files and their manifest.

    Args:
        options: The flags.
        inputs: The inputs of the run. Workers get copies of them, because their files may change during the run.
        source: Description of everything that determines the records' bytes, for the manifest (see
            manifest.describe_source).
        states: For each text file, its size and modification time at the start of the run.
        pool: Function that creates the pool of workers for a working folder.

    Raises:
        UserError: If the text is empty, cannot be read or changes during the run, the disk is full, or the working
            folder belongs to a different run.
    """
    with _explain_write_errors(options.work_folder):
        folder = open_run_folder(options.work_folder, source, inputs.vocab)
        if os.path.exists(folder):
            print(f"resuming the unfinished work in {options.work_folder}")
        files.write_text(os.path.join(folder, worker.VOCAB), inputs.vocab)
        worker_options = dataclasses.replace(options, input_file=list(map(files.make_absolute, inputs.paths)))
        if inputs.boundaries and inputs.boundaries.words:
            words_file = os.path.join(folder, worker.WORDS)
            files.write_text(words_file, inputs.boundaries.words)
            worker_options = dataclasses.replace(worker_options, word_boundaries=files.make_absolute(words_file))
        if inputs.excluded:
            excluded_file = os.path.join(folder, worker.EXCLUDED)
            files.write_text(excluded_file, "\n".join(inputs.excluded.texts))
            worker_options = dataclasses.replace(worker_options, exclude_texts=[files.make_absolute(excluded_file)])
        files.write_text(os.path.join(folder, outputs.OPTIONS), json.dumps(dataclasses.asdict(worker_options)))
        with _remove_after_text_error(options.work_folder), pool(folder) as workers:
            corpus = _tokenize_text(folder, options, inputs.paths, workers, states)
            if not corpus["tokens"]:
                raise TextError(summary.explain_empty_text(corpus))
            reader = worker.Worker(folder)
            plan = run_plan.plan_run(options, reader.config, reader.store)
            files.write_text(os.path.join(folder, worker.PLAN), json.dumps(dataclasses.asdict(plan)))
            blocks = itertools.product(range(options.dupe_factor), range(len(plan.blocks)))
            tasks = [{"block": list(each)} for each in blocks]
            workers.grow(min(options.num_workers, len(tasks)))
            counts = workers.run_tasks("making instances", tasks, "blocks")
            num_buckets = plan.buckets_per_shard * len(plan.outputs)
            workers.run_tasks("encoding records", [{"bucket": [bucket]} for bucket in range(num_buckets)], "parts")
            for task in tasks:  # The instances are encoded, so their disk space is free for the records.
                files.remove(worker.get_spool_path(folder, *task["block"]))
            tasks = [{"shard": [number]} for number in range(len(plan.outputs))]
            shards = workers.run_tasks("writing records", tasks, "shards")
        empty = sum(not shard["records"] for shard in shards)
        if empty:
            print(f"warning: {empty:,} of {len(shards):,} files are empty; write fewer files", file=sys.stderr)
        statistics = {f"text_{name}": value for name, value in corpus.items()}
        statistics |= manifest.sum_counts(counts)
        description = manifest.Manifest(source, [manifest.Shard(**shard) for shard in shards], statistics)
        manifest.write_manifests(plan.outputs, options.stem, description)
        shutil.rmtree(options.work_folder)
        return description


@contextlib.contextmanager
def _remove_after_text_error(folder: str) -> Iterator[None]:
    """Removes the working folder after a TextError. Call it outside of the pool, whose workers still write files."""
    try:
        yield
    except TextError:
        # The user must change the text or the flags, which makes the unfinished work useless.
        shutil.rmtree(folder)
        raise


@contextlib.contextmanager
def _explain_write_errors(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        failed, repair = ("write", "free some space") if files.is_disk_full(error) else ("work", "correct the error")
        raise UserError(
            f"cannot {failed} in {folder}: {error}; {repair} and run the same command again to resume"
        ) from error


def open_run_folder(work_folder: str, source: dict[str, Any], vocab: str) -> str:
    """Returns the path of the run's own folder in the working folder. It exists if the run was interrupted.

    The name is a hash of `source`, which describes everything that determines the records. Therefore, files that a
    process of a removed, different run still writes are never mistaken for files of this run.
    """
    name = hashlib.sha256(json.dumps(source).encode()).hexdigest()[:16]
    present = os.listdir(work_folder) if os.path.exists(work_folder) else []
    for other in set(present) - {name}:
        path = os.path.join(work_folder, other, outputs.OPTIONS)
        before = files.read_json_object(path) if os.path.exists(path) else {}
        flags = {flag: source["flags"][flag] for flag in source["flags"] if flag in before.keys() - _FILE_OPTIONS}
        changes = run_file.describe_changes(run_file.find_changes(before, flags))
        stored = os.path.join(work_folder, other, worker.VOCAB)
        if os.path.exists(stored) and files.read_text(stored) != vocab:
            changes = "; ".join(filter(None, [changes, "--vocab_file has other contents"]))
        raise UserError(
            f"{work_folder} contains the unfinished work of a different run ({changes or _CHANGED_FILES}); run that "
            "command again to finish it, or remove the folder"
        )
    return os.path.join(work_folder, name)


def _tokenize_text(
    folder: str,
    options: RecordOptions,
    paths: list[str],
    workers: WorkerPool,
    states: dict[str, tuple[int, int] | None],
) -> dict[str, int]:
    """Tokenizes the text into a corpus in the run's folder. Returns its numbers of tokens, documents, ..."""
    corpus = os.path.join(folder, worker.CORPUS)
    parts: list[tuple[int, int]] = []
    if not os.path.exists(os.path.join(corpus, token_store.COMPLETE)):
        sizes = [files.size(path) / 1e6 for path in paths]
        workers.grow(min(options.num_workers, len(paths)))
        tasks = [{"file": [number]} for number in range(len(paths))]
        descriptions = workers.run_tasks("inspecting the text", tasks, "files")
        if options.input_format == "auto":
            print(formats.describe_formats([each["format"] for each in descriptions], options))
        parts = [(number, part) for number, each in enumerate(descriptions) for part in range(len(each["ranges"]))]
        workers.grow(min(options.num_workers, len(parts)))
        amounts = [sizes[number] / len(descriptions[number]["ranges"]) for number, _ in parts]
        workers.run_tasks("tokenizing", [{"part": list(each)} for each in parts], "MB", amounts)
        try:
            files.check_unchanged(states)
        except UserError as error:
            raise TextError(str(error)) from error
    folders = [worker.get_part_folder(folder, *each) for each in parts]
    totals = token_store.join_parts(corpus, folders)
    for each in folders:
        shutil.rmtree(each, ignore_errors=True)
    return totals
