"""Record files written by several workers in parallel. Here a worker is a function of this process."""

import dataclasses
import hashlib
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from data_gen.pipelines import shard_writing, worker_pool
from data_gen.pipelines.run_plan import RunPlan
from official_bert.errors import UserError
from tests.make import refusal

BUCKETS = 4
Write = Callable[..., list[dict[str, Any]]]


def make_content(bucket: int) -> bytes:
    return bytes([bucket]) * (1000 * (bucket % 3))  # some buckets are empty


class Process:
    """State of a fake worker: the last bucket that it encoded."""

    bucket = -1


def make_plan(folder: pathlib.Path, shards: int) -> RunPlan:
    outputs = [str(folder / f"{number}.tfrecord") for number in range(shards)]
    return RunPlan(blocks=[], outputs=outputs, buckets_per_shard=BUCKETS)


@pytest.fixture
def write(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes shards with two workers whose tasks are run by a function."""
    (tmp_path / "work").mkdir()
    pool = worker_pool.WorkerPool(str(tmp_path / "work"))
    pool._processes = [Process(), Process()]  # type: ignore[list-item]

    def write(ask: Callable[..., dict[str, Any]], plan: RunPlan, threads: int) -> list[dict[str, Any]]:
        monkeypatch.setattr(worker_pool, "ask", ask)
        return shard_writing.write_shards(plan, str(tmp_path / "work"), pool, threads)

    return write


def test_buckets_are_written_in_order(write: Write, tmp_path: pathlib.Path):
    encoded = [threading.Event() for _ in range(3 * BUCKETS)]

    def ask(process: Process, task: dict[str, Any], folder: str) -> dict[str, Any]:
        if "bucket" in task:
            (process.bucket,) = task["bucket"]
            if process.bucket % 2 == 0:
                assert encoded[process.bucket + 1].wait(60)  # so that the odd bucket of each pair is encoded first
            encoded[process.bucket].set()
            return {"records": 1, "bytes": len(make_content(process.bucket))}
        path, position = task["write"]
        with open(path, "r+b") as shard:
            shard.seek(position)
            shard.write(make_content(process.bucket))
        return {}

    plan = make_plan(tmp_path, 3)
    entries = write(ask, plan, 2)
    for number, entry in enumerate(entries):
        content = b"".join(map(make_content, range(number * BUCKETS, (number + 1) * BUCKETS)))
        assert (tmp_path / f"{number}.tfrecord").read_bytes() == content
        sizes = {"records": BUCKETS, "bytes": len(content)}
        assert entry == {"file": f"{number}.tfrecord", "sha256": hashlib.sha256(content).hexdigest(), **sizes}

    def refuse(*_: object) -> dict[str, Any]:
        raise AssertionError("what is complete is not made again")

    assert write(refuse, plan, 2) == entries


def test_an_error_of_one_worker_ends_the_wait_of_the_others(write: Write, tmp_path: pathlib.Path):
    second = threading.Event()

    def ask(process: Process, task: dict[str, Any], folder: str) -> dict[str, Any]:
        if task == {"bucket": [0]}:
            assert second.wait(60)
            raise UserError("a worker process was killed")
        assert task == {"bucket": [1]}, "it is not written before it is known where"
        second.set()
        return {"records": 1, "bytes": 1}

    assert "a worker process was killed" in refusal(write, ask, make_plan(tmp_path, 2), 2)
    assert [path.name for path in tmp_path.iterdir()] == ["work"]
    assert not list((tmp_path / "work").iterdir())


def test_the_first_error_is_raised_and_not_one_that_follows_from_it(write: Write, tmp_path: pathlib.Path):
    def ask(process: Process, task: dict[str, Any], folder: str) -> dict[str, Any]:
        if "bucket" in task:
            (process.bucket,) = task["bucket"]
            return {"records": 1, "bytes": 1}
        path = pathlib.Path(task["write"][0])
        if process.bucket == 0:
            return {}  # and nothing is written to the file
        while path.exists():
            time.sleep(0.001)
        raise FileNotFoundError(path)

    plan = dataclasses.replace(make_plan(tmp_path, 1), buckets_per_shard=2)
    assert "became shorter while it was written" in refusal(write, ask, plan, 1)


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Makes SIGINT raise KeyboardInterrupt, even in a background job of a shell, which ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_threads_that_wait_end_silently_when_the_command_is_interrupted(
    write: Write, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    uncaught: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", uncaught.append)
    waits, ended = threading.Event(), threading.Event()

    def ask(process: Process, task: dict[str, Any], folder: str) -> dict[str, Any]:
        if task == {"bucket": [0]}:
            assert waits.wait(60)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            assert ended.wait(60)
            raise UserError("a worker process was killed")
        waits.set()
        return {"records": 1, "bytes": 1}

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        write(ask, make_plan(tmp_path, 1), 1)
    ended.set()
    while threading.active_count() > before:
        time.sleep(0.001)
    assert not uncaught
