"""Record files that several workers write at once, so that even a single file takes all of them.

A worker encodes the records of a bucket (see shuffle.py), is told where they begin in the file, which is known once the
buckets before are encoded, and writes them there. Meanwhile this process hashes what is written.
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

_BYTES_AT_ONCE = 1 << 20  # that are hashed


def write_shards(plan: RunPlan, folder: str, workers: WorkerPool, num_threads: int) -> list[dict[str, Any]]:
    """Has the workers write all shards, which are not compressed; returns their manifest entries.

    Args:
        plan: of the run.
        folder: the working folder; a shard whose entry is there is complete.
        workers: the processes.
        num_threads: how many shards are hashed at once.

    Raises:
        UserError: a worker has ended, or a file became shorter while it was written.
        OSError: a file cannot be written.
    """
    count = plan.buckets_per_shard
    entries = [os.path.join(folder, f"shard-{number}.json") for number in range(len(plan.outputs))]
    missing = [number for number, path in enumerate(entries) if not os.path.exists(path)]
    waits = _Waits()
    shards: dict[int, _Shard] = {}  # that are being written
    pending = iter(missing)  # threads may share it: each shard is taken once

    def write(task: dict[str, Any], ask: Ask) -> dict[str, Any]:
        number, bucket = divmod(task["bucket"][0], count)
        with waits.ending_at_errors():
            encoded = ask(task)
            waits.until(lambda: number in shards)
            path, start = shards[number].reserve(bucket, encoded["bytes"])
            ask({"write": [path, start]})
            shards[number].note_written(bucket, encoded["records"])
        return encoded

    def finish() -> None:
        with waits.ending_at_errors():
            for number in pending:
                # An error ends the waits before it takes the file away: others fail where it is missing.
                with files.write_atomically(plan.outputs[number]) as beside, waits.ending_at_errors():
                    open(beside, "wb").close()
                    with waits.changing():
                        shards[number] = _Shard(beside, waits)
                    digest = shards[number].digest(count)
                entry = {"file": os.path.basename(plan.outputs[number]), **shards.pop(number).size(), "sha256": digest}
                files.write_text(entries[number], json.dumps(entry))

    tasks = [{"bucket": [number * count + bucket]} for number in missing for bucket in range(count)]
    with concurrent.futures.ThreadPoolExecutor(num_threads) as threads, waits.ending_at_errors():
        finished = [threads.submit(finish) for _ in range(num_threads)]
        workers.do_all("writing records", tasks, "parts", None, write)
        for each in finished:
            each.result()
    return [files.read_json_object(path) for path in entries]


class _Waits:
    """Lets threads wait for one another; an error in one of them is raised in all that wait."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._error: BaseException | None = None

    @contextlib.contextmanager
    def ending_at_errors(self) -> Iterator[None]:
        """Ends all waits if an error leaves its context.

        It raises the first error of all threads, also in a thread without one: later errors follow from the first.
        """
        try:
            yield
        except BaseException as error:
            with self.changing():
                self._error = self._error or error
        if self._error is not None:
            raise self._error

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Within its context, what others wait for may change."""
        with self._condition:
            yield
            self._condition.notify_all()

    def until(self, met: Callable[[], bool]) -> None:
        """Returns when a condition is met."""
        with self._condition:
            self._condition.wait_for(lambda: self._error is not None or met())
            if self._error is not None:
                raise self._error


class _Shard:
    """A record file that is being written, by threads that wait for one another."""

    def __init__(self, path: str, waits: _Waits) -> None:
        self._path, self._waits = path, waits
        self._sizes: dict[int, int] = {}  # of the buckets that are encoded
        self._starts = [0]  # of the buckets whose predecessors are all encoded
        self._records: dict[int, int] = {}  # of the buckets that are written

    def reserve(self, bucket: int, size: int) -> tuple[str, int]:
        """Returns the file and the position in it that an encoded bucket of `size` bytes is to be written to."""
        with self._waits.changing():
            self._sizes[bucket] = size
            while (known := len(self._starts) - 1) in self._sizes:
                self._starts.append(self._starts[known] + self._sizes[known])
        self._waits.until(lambda: bucket < len(self._starts))
        return self._path, self._starts[bucket]

    def note_written(self, bucket: int, records: int) -> None:
        """Notes that a bucket is in the file."""
        with self._waits.changing():
            self._records[bucket] = records

    def digest(self, buckets: int) -> str:
        """Returns the SHA-256 of the file, once so many buckets are in it: all."""
        digest = hashlib.sha256()
        with open(self._path, "rb", buffering=0) as reader:  # a buffer would read on into what is not written yet
            for bucket in range(buckets):
                self._waits.until(lambda: bucket in self._records)  # noqa: B023
                left = self._sizes[bucket]
                while left:
                    content = reader.read(min(left, _BYTES_AT_ONCE))
                    if not content:
                        raise UserError(f"{self._path} became shorter while it was written; run the same command again")
                    digest.update(content)
                    left -= len(content)
        return digest.hexdigest()

    def size(self) -> dict[str, int]:
        """Returns the numbers of records and bytes of the file, which is complete."""
        return {"records": sum(self._records.values()), "bytes": self._starts[-1]}
