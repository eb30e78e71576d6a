"""Text to records in little memory on all cores; stopped anywhere, it goes on where it was, to the same bytes.

1. Each input file is tokenized into a part of a corpus on disk (threads: the tokenizer leaves Python's lock).
2. Each block of documents is made into instances, once for each pass, sorted by a random key (processes).
3. Each shard collects the instances of its range of keys from all blocks (processes).

The steps' results are files in a working folder beside the records, each of which appears whole. A task is done if its
file is there.
"""

import concurrent.futures
import contextlib
import dataclasses
import errno
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from official_bert import files, manifest, records
from data_gen import shuffle, token_store, vectorized, worker
from data_gen.instances import Law
from data_gen.token_store import TokenStore
from official_bert.errors import UserError
from official_bert.progress import Progress
from official_bert.tokenization import UNK

# How many bytes a bucket of the shuffle takes at the most, about; a worker holds one, several times over.
_BUCKET_BYTES = 6e6

# Records of a block that the size of all is estimated from.
_ESTIMATED_FROM = 1000


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the fast pipeline must know besides the law of instances.

    Attributes:
        inputs: text files.
        stem: what the working folder and the manifest are named after, a path without an ending.
        name_outputs: the record files, given about how many bytes the records will take.
        vocab_file: the vocabulary.
        seed: of everything random.
        passes: how often the text is used.
        block_tokens: tokens of text that a worker handles at once.
        num_workers: threads, then processes.
        compress: whether the record files are compressed with gzip.
        source: what decides the records' bytes, for the manifest.
    """

    inputs: list[str]
    stem: str
    name_outputs: Callable[[float], list[str]]
    vocab_file: str
    seed: int
    passes: int
    block_tokens: int
    num_workers: int
    compress: bool
    source: dict[str, Any]


def create(
    settings: Settings,
    law: Law,
    read_documents: Callable[[str], Iterator[list[str]]],
    encode: token_store.Encode,
    vocab: dict[str, int],
) -> manifest.Manifest:
    """Makes the records and their manifest.

    Args:
        settings: from where, to where, how.
        law: of the instances.
        read_documents: a file's documents, each a list of sentences.
        encode: sentences to ids.
        vocab: token to id.

    Raises:
        UserError: the text is empty, the disk full, or the working folder is another run's.
    """
    with _failed_writes_told(settings.stem):
        if files.is_remote(settings.stem):
            raise UserError(
                f"{settings.stem} is not on this machine; write the records to a local disk, then copy them"
            )
        folder = settings.stem + ".work"
        _claim(folder, settings.source)
        dtype = token_store.id_dtype(max(vocab.values()) + 1)
        try:
            corpus = _tokenize(folder, settings, read_documents, encode, dtype, vocab[UNK])
        except _TextError:
            # Other text or other flags are needed, and so what there is would be in the way.
            shutil.rmtree(folder)
            raise
        if not corpus["tokens"]:
            shutil.rmtree(folder)
            raise UserError("the input holds no text")
        run = plan(settings, law, os.path.join(folder, worker.CORPUS), dtype)
        files.write_text(os.path.join(folder, worker.RUN), json.dumps(dataclasses.asdict(run)))
        for path in run.outputs:
            files.remove_unfinished(path)
        block_tasks = [{"block": [number, block]} for number in range(run.passes) for block in range(len(run.blocks))]
        shard_tasks = [{"shard": [number]} for number in range(len(run.outputs))]
        with _Workers(folder, min(settings.num_workers, len(block_tasks))) as workers:
            counts = workers.do_all("making instances", block_tasks, "blocks")
            shards = workers.do_all("writing records", shard_tasks, "shards")
        statistics = {f"text_{name}": value for name, value in corpus.items()}
        statistics |= manifest.total(counts)
        made = manifest.Manifest(settings.source, [manifest.Shard(**shard) for shard in shards], statistics)
        files.write_text(manifest.manifest_path(settings.stem), made.to_json())
        shutil.rmtree(folder)
        return made


def plan(settings: Settings, law: Law, corpus: str, dtype: Any) -> worker.Run:
    """Returns a run's description: how the corpus is cut into blocks, and the records into shards and buckets.

    Args:
        settings: from where, to where, how.
        law: of the instances.
        corpus: the folder of the joined corpus.
        dtype: of its ids.
    """
    store = TokenStore(corpus, dtype)
    blocks = store.blocks(settings.block_tokens)
    count, size = _estimate(store, blocks, law, settings.passes)
    store.close()
    outputs = settings.name_outputs(size)
    layout = shuffle.Layout(law.max_seq_length, law.max_predictions_per_seq, dtype, 1)
    buckets = int(count * layout.row.itemsize / len(outputs) // _BUCKET_BYTES) + 1
    names = [field.name for field in dataclasses.fields(law) if field.name != "vocabulary"]
    return worker.Run(
        seed=settings.seed,
        law={name: getattr(law, name) for name in names},
        vocab_file=files.absolute(settings.vocab_file),
        ids=dtype.str,
        blocks=[list(block) for block in blocks],
        passes=settings.passes,
        outputs=list(map(files.absolute, outputs)),
        buckets_per_shard=buckets,
        compress=settings.compress,
    )


class _TextError(UserError):
    """The text cannot be read as the flags say."""


def _read(documents: Iterator[list[str]]) -> Iterator[list[str]]:
    """Yields the documents; tells errors of the text from others."""
    try:
        yield from documents
    except UserError as error:
        raise _TextError(str(error)) from error


@contextlib.contextmanager
def _failed_writes_told(stem: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        failed, mend = ("write", "make room") if full else ("work", "mend that")
        raise UserError(
            f"cannot {failed} in {stem}.work: {error}; what is done is kept: {mend} and run the same command again to "
            "go on"
        ) from error


def _estimate(store: TokenStore, blocks: list[tuple[int, int]], law: Law, passes: int) -> tuple[float, float]:
    """About how many instances there will be, and how many bytes of records, from those of one block."""
    first, last = blocks[len(blocks) // 2]
    instances = vectorized.make_instances(store, first, last, law, vectorized.Random("estimate"))
    some = shuffle.features(shuffle.rows_of(instances, slice(0, _ESTIMATED_FROM)))
    encoded = records.encode(some, shuffle.schema(law))
    count = passes * len(blocks) * len(instances.length)
    return count, count * sum(map(len, encoded)) / len(encoded)


def _claim(folder: str, source: dict[str, Any]) -> None:
    """Makes the working folder, or takes up that of the same run."""
    path = os.path.join(folder, "source.json")
    content = json.dumps(source, indent=1)
    if os.path.exists(path):
        if files.read_text(path) != content:
            raise UserError(
                f"{folder} holds the unfinished work of another run (other text, vocabulary or flags); run that "
                "command again to finish it, or remove the folder"
            )
        print(f"going on with the unfinished work in {folder}")
    else:
        files.write_text(path, content)


def _tokenize(
    folder: str,
    settings: Settings,
    read_documents: Callable[[str], Iterator[list[str]]],
    encode: token_store.Encode,
    dtype: Any,
    unk_id: int,
) -> dict[str, int]:
    parts = [os.path.join(folder, f"part-{number:05}") for number in range(len(settings.inputs))]
    whole = os.path.join(folder, worker.CORPUS)
    if not os.path.exists(os.path.join(whole, token_store.COMPLETE)):
        sizes = {part: files.size(path) / 1e6 for part, path in zip(parts, settings.inputs, strict=True)}
        progress = Progress("tokenizing", sum(sizes.values()), "MB")
        done = 0.0
        with concurrent.futures.ThreadPoolExecutor(settings.num_workers) as pool:
            running = {
                pool.submit(token_store.write_part, part, _read(read_documents(path)), encode, dtype, unk_id): part
                for part, path in zip(parts, settings.inputs, strict=True)
            }
            try:
                for future in concurrent.futures.as_completed(running):
                    future.result()
                    done += sizes[running[future]]
                    progress.update(done)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    totals = token_store.join_parts(whole, parts)
    for part in parts:
        shutil.rmtree(part, ignore_errors=True)
    return totals


class _Workers:
    """Processes that do the tasks of a run (see worker.py), each driven by a thread."""

    def __init__(self, folder: str, count: int) -> None:
        self._folder, self._count = folder, count
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> "_Workers":
        # This process may have been told in other ways where modules are.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        for _ in range(self._count):
            command = [sys.executable, "-m", worker.__name__, self._folder]
            self._processes.append(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
                )
            )
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def do_all(self, what: str, tasks: list[dict[str, Any]], unit: str) -> list[dict[str, Any]]:
        """Returns the tasks' results, in the tasks' order."""
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(len(tasks)):
            waiting.put(number)
        results: list[dict[str, Any] | None] = [None] * len(tasks)
        errors: list[Exception] = []
        progress = Progress(what, len(tasks), unit)
        lock = threading.Lock()

        def drive(process: subprocess.Popen[str]) -> None:
            while not errors:
                try:
                    number = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    result = _ask(process, tasks[number], self._folder)
                except Exception as error:
                    errors.append(error)
                    return
                with lock:
                    results[number] = result
                    progress.update(sum(each is not None for each in results))

        threads = [threading.Thread(target=drive, args=(process,), daemon=True) for process in self._processes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return [result for result in results if result is not None]


def _ask(process: subprocess.Popen[str], task: dict[str, Any], folder: str) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    line = ""
    with contextlib.suppress(BrokenPipeError):  # it has ended
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    if not line:
        raise UserError(_end_told(process.wait(), task, folder))
    answer = json.loads(line)
    if "user_error" in answer:
        raise UserError(f"{answer['user_error']}; what is done is kept: run the same command again to go on")
    if "defect" in answer:
        raise RuntimeError(answer["defect"])
    return dict(answer["result"])


def _end_told(code: int, task: dict[str, Any], folder: str) -> str:
    if code == -signal.SIGKILL:
        return (
            f"a worker process was killed at {task}, as systems do when memory is short; the same command with fewer "
            f"--num_workers goes on with what is done; or remove {folder} and start anew with a smaller --block_tokens"
        )
    return (
        f"a worker process ended with code {code} at {task}, and may have said why above; what is done is kept: run "
        "the same command again to go on"
    )
