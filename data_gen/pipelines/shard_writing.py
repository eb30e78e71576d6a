"""Writes record files with several workers at the same time, so that even a single file uses all of them.

A worker encodes the records of a bucket (see shuffle.py). Their position in the file is known as soon as all previous
buckets are encoded. The worker then writes them at this position. In the meantime, a thread of the main process
computes the hash of the part of the file that is already written.
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
    """Writes all shards, uncompressed, and returns their entries for the manifest.

    Args:
        plan: The plan of the run.
        folder: The working folder. It contains the entries of shards that are complete, which are not written again.
        workers: The worker processes.
        num_threads: Number of shards that are written and hashed at the same time.

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
    """A condition variable for several threads. If one thread raises an error, all waiting threads raise it."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._error: BaseException | None = None

    @contextlib.contextmanager
    def stop_on_error(self) -> Iterator[None]:
        """Makes all waiting threads raise an error that occurs within the context.

        At its end, the context raises the first error of any thread, because later errors are consequences of the
        first.
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
        """A context for changing values that waiting threads depend on. At its end, the threads check them again."""
        with self._condition:
            yield
            self._condition.notify_all()

    def wait_until(self, met: Callable[[], bool]) -> None:
        """Waits until `met` returns True. Raises the error if another thread fails."""
        with self._condition:
            self._condition.wait_for(lambda: self._error is not None or met())
            if self._error is not None:
                raise self._error


class _Shard:
    """A record file that several threads write together, one bucket each."""

    def __init__(self, path: str, waits: _Waits) -> None:
        self._path, self._waits = path, waits
        self._sizes: dict[int, int] = {}  # Bytes of each encoded bucket.
        self._starts = [0]  # Positions of the buckets whose predecessors are all encoded.
        self._records: dict[int, int] = {}  # Number of records of each written bucket.

    def reserve(self, bucket: int, size: int) -> tuple[str, int]:
        """Returns the path of the file, and the position in it at which to write a bucket.

        Waits until all previous buckets have been reserved.

        Args:
            bucket: Index of the bucket in the file.
            size: Number of bytes of the encoded bucket.
        """
        with self._waits.change():
            self._sizes[bucket] = size
            while (known := len(self._starts) - 1) in self._sizes:
                self._starts.append(self._starts[known] + self._sizes[known])
        self._waits.wait_until(lambda: bucket < len(self._starts))
        return self._path, self._starts[bucket]

    def note_written(self, bucket: int, records: int) -> None:
        """Notes that a bucket with this number of records has been written to the file."""
        with self._waits.change():
            self._records[bucket] = records

    def compute_digest(self, num_buckets: int) -> str:
        """Returns the SHA-256 of the file. Reads each bucket as soon as another thread has written it.

        Args:
            num_buckets: Number of buckets of the complete file.
        """
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
        """Returns the number of records and of bytes of the complete file, as in a manifest entry."""
        return {"records": sum(self._records.values()), "bytes": self._starts[-1]}
