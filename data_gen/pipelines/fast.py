"""The fast algorithm from text to records: in little memory, on all cores, and resumable at any moment.

1. Each part of an input file is tokenized into a part of a corpus on disk; the parts are joined.
2. Each block of documents is made into instances, once for each pass, sorted by a random key.
3. Each shard collects the instances of its range of keys from all blocks. The workers write it together, unless it is
   compressed.

Worker processes do the tasks of each step. The results are files in a working folder beside the records, or of remote
records in the current folder. Each file appears whole, and a task is done if its file exists. So a stopped run
continues when the same command is run again, and ends with the same bytes.
"""

import contextlib
import dataclasses
import errno
import hashlib
import itertools
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

from data_gen.options import RecordOptions
from data_gen.pipelines import preparation, run_plan, shard_writing, summary, worker
from data_gen.pipelines.worker import TextError
from data_gen.pipelines.worker_pool import Pool, WorkerPool
from data_gen.text import formats, token_store
from data_gen.text.exclusion import ExcludedTexts
from data_gen.text.file_states import FileState, check_unchanged
from data_gen.text.token_store import TokenStore
from data_gen.text.word_boundaries import WordBoundaries
from official_bert.data import manifest
from official_bert.errors import UserError
from official_bert.runs import run_file
from official_bert.tokenization.exact import parse_vocab
from official_bert.utils import files

# Flags whose values are paths or contents of files, and what to say if only those may differ.
_NOT_COMPARED = {"output_file", "exclude_texts", "word_boundaries"}
_OTHER_FILES = "other text, --vocab_file, --exclude_texts or --word_boundaries"


def create(
    options: RecordOptions,
    source: dict[str, Any],
    states: dict[str, FileState],
    vocab_text: str,
    boundaries: WordBoundaries | None,
    excluded: ExcludedTexts | None,
    pool: Callable[[str], Pool],
) -> manifest.Manifest:
    """Makes the records and their manifest.

    Args:
        options: the flags.
        source: everything that decides the records' bytes, for the manifest.
        states: the text files, and the states of theirs that the source describes.
        vocab_text: the text of the vocabulary; its file may change meanwhile.
        boundaries: of words to be masked together; likewise.
        excluded: texts that no document may hold; likewise.
        pool: makes what does the tasks of the run in a working folder.

    Raises:
        UserError: the text is empty, cannot be read or changes meanwhile; the disk is full; or the working folder is
            another run's.
    """
    with _write_errors_explained(options.work_folder):
        folder = _claim(options.work_folder, source)
        files.write_text(os.path.join(folder, worker.VOCAB), vocab_text)
        worker_options = dataclasses.replace(options, input_file=list(map(files.make_absolute, states)))
        if boundaries and boundaries.words:
            words_file = os.path.join(folder, worker.WORDS)
            files.write_text(words_file, boundaries.words)
            worker_options = dataclasses.replace(worker_options, word_boundaries=files.make_absolute(words_file))
        if excluded:
            excluded_file = os.path.join(folder, worker.EXCLUDED)
            files.write_text(excluded_file, "\n".join(excluded.texts))
            worker_options = dataclasses.replace(worker_options, exclude_texts=[files.make_absolute(excluded_file)])
        files.write_text(os.path.join(folder, worker.OPTIONS), json.dumps(dataclasses.asdict(worker_options)))
        with pool(folder) as workers:
            try:
                corpus = _tokenize(folder, options, states, workers)
                if not corpus["tokens"]:
                    raise TextError(summary.no_text(corpus))
            except TextError:
                # The text or the flags must change, and then the unfinished work would belong to another run.
                shutil.rmtree(options.work_folder)
                raise
            vocab = parse_vocab(vocab_text)
            store = TokenStore(
                os.path.join(folder, worker.CORPUS), token_store.id_dtype(vocab, options.word_boundaries is not None)
            )
            plan = run_plan.plan_run(options, preparation.instance_config(options, vocab), store)
            files.write_text(os.path.join(folder, worker.PLAN), json.dumps(dataclasses.asdict(plan)))
            blocks = itertools.product(range(options.dupe_factor), range(len(plan.blocks)))
            tasks = [{"block": list(each)} for each in blocks]
            workers.grow(min(options.num_workers, len(tasks)))
            counts = workers.do_all("making instances", tasks, "blocks")
            # A compressed file is written from its beginning, by one worker.
            if isinstance(workers, WorkerPool) and not options.gzip:
                shards = shard_writing.write_shards(plan, folder, workers, options.num_workers)
            else:
                tasks = [{"shard": [number]} for number in range(len(plan.outputs))]
                shards = workers.do_all("writing records", tasks, "shards")
        empty = sum(not shard["records"] for shard in shards)
        if empty:
            print(f"warning: {empty:,} of {len(shards):,} files are empty; give fewer", file=sys.stderr)
        statistics = {f"text_{name}": value for name, value in corpus.items()}
        statistics |= manifest.total(counts)
        description = manifest.Manifest(source, [manifest.Shard(**shard) for shard in shards], statistics)
        manifest.write(plan.outputs, options.stem, description)
        shutil.rmtree(options.work_folder)
        return description


@contextlib.contextmanager
def _write_errors_explained(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        failed, repair = ("write", "make room") if full else ("work", "correct that")
        raise UserError(
            f"cannot {failed} in {folder}: {error}; what is done is kept: {repair} and run the same command again to "
            "go on"
        ) from error


def _claim(work_folder: str, source: dict[str, Any]) -> str:
    """Returns the run's own folder in the working folder, or takes up that of the same run.

    It is named after all that decides the records, so that what a process of another run still writes after that run's
    files were removed is never taken for this run's.
    """
    name = hashlib.sha256(json.dumps(source).encode()).hexdigest()[:16]
    present = os.listdir(work_folder) if os.path.exists(work_folder) else []
    for other in set(present) - {name}:
        path = os.path.join(work_folder, other, worker.OPTIONS)
        before = files.read_json_object(path) if os.path.exists(path) else {}
        flags = {flag: source["flags"][flag] for flag in source["flags"] if flag in before.keys() - _NOT_COMPARED}
        differences = run_file.describe_changes(run_file.find_changes(before, flags))
        raise UserError(
            f"{work_folder} holds the unfinished work of another run ({differences or _OTHER_FILES}); run that "
            "command again to finish it, or remove the folder"
        )
    if present:
        print(f"going on with the unfinished work in {work_folder}")
    return os.path.join(work_folder, name)


def _tokenize(folder: str, options: RecordOptions, states: dict[str, FileState], workers: Pool) -> dict[str, int]:
    """Tokenizes the text into a corpus in the run's folder, and returns its numbers of tokens, documents, ..."""
    whole = os.path.join(folder, worker.CORPUS)
    parts: list[tuple[int, int]] = []
    if not os.path.exists(os.path.join(whole, token_store.COMPLETE)):
        sizes = [files.size(path) / 1e6 for path in states]
        workers.grow(min(options.num_workers, len(states)))
        tasks = [{"file": [number]} for number in range(len(states))]
        descriptions = workers.do_all("looking at the text", tasks, "files")
        if options.input_format == "auto":
            print(formats.describe_formats([each["format"] for each in descriptions], options))
        parts = [(number, part) for number, each in enumerate(descriptions) for part in range(len(each["ranges"]))]
        workers.grow(min(options.num_workers, len(parts)))
        amounts = [sizes[number] / len(descriptions[number]["ranges"]) for number, _ in parts]
        workers.do_all("tokenizing", [{"part": list(each)} for each in parts], "MB", amounts)
        try:
            check_unchanged(states)
        except UserError as error:
            raise TextError(str(error)) from error
    folders = [worker.part_folder(folder, *each) for each in parts]
    totals = token_store.join_parts(whole, folders)
    for each in folders:
        shutil.rmtree(each, ignore_errors=True)
    return totals
