"""Writes record files with several workers at the same time, so that even a single file uses all of them.

A worker encodes the records of a bucket (see shuffle.py). Their position in the file is known when all previous buckets
are encoded. Then the worker writes them there. Meanwhile this process hashes the written part of the file.
"""

import concurrent.futures
import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from data_gen.pipelines.run_plan import RunPlan
from data_gen.pipelines.worker_pool import Ask, WorkerPool
from official_bert.errors import UserError
from official_bert.utils import files

_HASH_CHUNK_BYTES = 1 << 20


def write_shards(plan: RunPlan, folder: str, workers: WorkerPool, num_threads: int) -> list[dict[str, Any]]:
    """Writes all shards, uncompressed. Returns their manifest entries.

    Args:
        plan: The plan of the run.
        folder: The working folder. A shard is complete if the folder contains its entry.
        workers: The worker processes.
        num_threads: Number of shards that are hashed at the same time.

    Raises:
        UserError: If a worker has ended, or a file became shorter while it was written.
        OSError: If a file cannot be written.
    """
    count = plan.buckets_per_shard
    entries = [os.path.join(folder, f"shard-{number}.json") for number in range(len(plan.outputs))]
    missing = [number for number, path in enumerate(entries) if not os.path.exists(path)]
    waits = _Waits()
    shards: dict[int, _Shard] = {}  # Shards that are being written.
    pending = iter(missing)  # Shared by the threads; each shard is taken once.

    def write(task: dict[str, Any], ask: Ask) -> dict[str, Any]:
        number, bucket = divmod(task["bucket"][0], count)
        with waits.stop_on_error():
            encoded = ask(task)
            waits.wait_until(lambda: number in shards)
            path, start = shards[number].reserve(bucket, encoded["bytes"])
            ask({"write": [path, start]})
            shards[number].note_written(bucket, encoded["records"])
        return encoded

    def finish() -> None:
        with waits.stop_on_error():
            for number in pending:
                # The inner stop_on_error ends the other threads before the temporary file is removed.
                with files.write_atomically(plan.outputs[number]) as temporary, waits.stop_on_error():
                    open(temporary, "wb").close()
                    with waits.change():
                        shards[number] = _Shard(temporary, waits)
                    digest = shards[number].compute_digest(count)
                sizes = shards.pop(number).get_sizes()
                entry = {"file": os.path.basename(plan.outputs[number]), **sizes, "sha256": digest}
                files.write_text(entries[number], json.dumps(entry))

    tasks = [{"bucket": [number * count + bucket]} for number in missing for bucket in range(count)]
    with concurrent.futures.ThreadPoolExecutor(num_threads) as threads, waits.stop_on_error():
        finished = [threads.submit(finish) for _ in range(num_threads)]
        workers.do_all("writing records", tasks, "parts", None, write)
        for each in finished:
            each.result()
    return [files.read_json_object(path) for path in entries]


class _Waits:
    """A condition variable for several threads. An error in one thread is raised in all waiting threads."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._error: BaseException | None = None

    @contextlib.contextmanager
    def stop_on_error(self) -> Iterator[None]:
        """Ends all waits if the context raises an error.

        Raises the first error of all threads, because later errors are its consequences.
        """
        try:
            yield
        except BaseException as error:
            with self.change():
                self._error = self._error or error
        if self._error is not None:
            raise self._error

    @contextlib.contextmanager
    def change(self) -> Iterator[None]:
        """A context for changes that other threads may be waiting for."""
        with self._condition:
            yield
            self._condition.notify_all()

    def wait_until(self, met: Callable[[], bool]) -> None:
        """Waits until a condition is met."""
        with self._condition:
            self._condition.wait_for(lambda: self._error is not None or met())
            if self._error is not None:
                raise self._error


class _Shard:
    """A record file that several threads write together."""

    def __init__(self, path: str, waits: _Waits) -> None:
        self._path, self._waits = path, waits
        self._sizes: dict[int, int] = {}  # Bytes of each encoded bucket.
        self._starts = [0]  # Positions of the buckets whose predecessors are all encoded.
        self._records: dict[int, int] = {}  # Number of records of each written bucket.

    def reserve(self, bucket: int, size: int) -> tuple[str, int]:
        """Returns the file and the position in it for an encoded bucket of `size` bytes."""
        with self._waits.change():
            self._sizes[bucket] = size
            while (known := len(self._starts) - 1) in self._sizes:
                self._starts.append(self._starts[known] + self._sizes[known])
        self._waits.wait_until(lambda: bucket < len(self._starts))
        return self._path, self._starts[bucket]

    def note_written(self, bucket: int, records: int) -> None:
        """Records that a bucket has been written."""
        with self._waits.change():
            self._records[bucket] = records

    def compute_digest(self, num_buckets: int) -> str:
        """Waits until all buckets are written and returns the SHA-256 of the file."""
        digest = hashlib.sha256()
        with open(self._path, "rb", buffering=0) as reader:  # A buffer would read parts that are not written yet.
            for bucket in range(num_buckets):
                self._waits.wait_until(lambda: bucket in self._records)  # noqa: B023
                unread = self._sizes[bucket]
                while unread:
                    content = reader.read(min(unread, _HASH_CHUNK_BYTES))
                    if not content:
                        raise UserError(f"{self._path} became shorter while it was written; run the same command again")
                    digest.update(content)
                    unread -= len(content)
        return digest.hexdigest()

    def get_sizes(self) -> dict[str, int]:
        """Returns the numbers of records and bytes of the complete file."""
        return {"records": sum(self._records.values()), "bytes": self._starts[-1]}
