"""Runs tasks of this package on a Dask cluster: the `--dask` flag, the check of the workers' version, the task loop.

Only Dask's scheduler is used. It distributes tasks to processes on many machines and reruns the tasks of a lost worker
on other workers. Results are files that all machines can reach, and a task whose file exists is skipped. So a task may
run twice, even at the same time, and running the same command again continues an interrupted run.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import logging
import os
import pathlib
import queue
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.utils.flags import ValidatedOptions, option
from official_bert.utils.progress import Progress
from official_bert.version import __version__

_CONNECT_SECONDS = 10
_WAIT_FOR_WORKERS = 60  # seconds
_TASKS_IN_ADVANCE = 2  # per worker thread, so that no worker waits for the network
_POLL_SECONDS = 1.0

MANY_MACHINES = "many machines"  # a heading in --help
RESUME_HINT = "Finished work is kept: run the same command again to continue."


@dataclasses.dataclass(frozen=True)
class DaskOptions(ValidatedOptions):
    """The flag that runs a command on a Dask cluster."""

    dask: str | None = option(
        None,
        "Address of a Dask scheduler, such as tcp://scheduler:8786: its workers do the work.",
        group=MANY_MACHINES,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dask is not None and not re.fullmatch(r"(tcp|tls)://.+:\d{1,5}", self.dask):
            raise UserError(f"--dask is {self.dask!r}; it must be a scheduler's address, such as tcp://HOST:8786.")


@functools.cache
def code_identity() -> str:
    """Returns the version of this package, a digest of its code, and Python's version; workers must have the same."""
    root = pathlib.Path(__file__).parents[2]
    digest = hashlib.sha256()
    for package in ("official_bert", "data_gen"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    python = ".".join(map(str, sys.version_info[:2]))
    return f"official_bert {__version__} (code {digest.hexdigest()[:12]}) on Python {python}"


class Cluster:
    """The workers of a Dask scheduler. A context manager that connects on entry and disconnects on exit.

    Args:
        address: The scheduler's address, such as tcp://HOST:8786.

    Raises:
        UserError: On entry, if no scheduler answers, if it has no workers, or if a worker has a different version of
            this package.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._client: Any = None

    def __enter__(self) -> "Cluster":
        distributed = _import_distributed()
        try:
            self._client = distributed.Client(self._address, timeout=_CONNECT_SECONDS, set_as_default=False)
        except OSError as error:
            raise UserError(
                f"No scheduler answered at --dask={self._address} within {_CONNECT_SECONDS} s. Start one (dask "
                "scheduler) or correct the address."
            ) from error
        try:
            try:
                self._client.wait_for_workers(1, timeout=_WAIT_FOR_WORKERS)
            except TimeoutError as error:
                raise UserError(
                    f"The scheduler at {self._address} has had no workers for {_WAIT_FOR_WORKERS} s. Start some: dask "
                    f"worker {self._address} --nthreads=1"
                ) from error
            self._check_workers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close(timeout=2)

    def _check_workers(self) -> None:
        def identity() -> str:  # Dask sends nested functions by value, so workers without the package can run it.
            from official_bert.utils.dask_cluster import code_identity

            return code_identity()

        for worker, found in self._client.run(identity, on_error="return").items():
            if isinstance(found, ImportError):
                raise UserError(
                    f"The worker {worker} cannot import this package ({found}). Install {code_identity()} there."
                ) from found
            if isinstance(found, Exception):
                raise UserError(f"Could not check the package version of the worker {worker}: {found!r}") from found
            _check_identity(found, code_identity(), worker)

    def do_all(
        self,
        what: str,
        function: Callable[..., Any],
        tasks: Sequence[tuple[Any, ...]],
        unit: str,
        amounts: list[float] | None = None,
    ) -> list[Any]:
        """Runs a function once per task on the workers and returns the results in the order of the tasks.

        Args:
            what: Description of the work, for the progress line.
            function: A module-level function of this package. It may run more than once for the same task.
            tasks: The arguments of each task.
            unit: Unit of `amounts`.
            amounts: Amount of work in each task. Defaults to 1 per task.

        Raises:
            UserError: If a task raises one, if the workers or the scheduler are lost, or if a worker has a different
                version of this package.
            Exception: The first exception raised by a task. No task is running when it is raised.
        """
        amounts = amounts or [1] * len(tasks)
        pending = enumerate(tasks)
        running: dict[int, Any] = {}  # task index -> future
        ended: queue.SimpleQueue[int] = queue.SimpleQueue()  # task indices
        results: dict[int, Any] = {}
        progress, done = Progress(what, sum(amounts), unit), 0.0
        try:
            while True:
                # Counted again every second, because workers come and go.
                wanted = max(1, _TASKS_IN_ADVANCE * sum(self._client.nthreads().values()))
                for number, arguments in itertools.islice(pending, max(0, wanted - len(running))):
                    future = self._client.submit(do_task, code_identity(), function, *arguments, pure=False)
                    running[number] = future
                    future.add_done_callback(functools.partial(_note, ended, number))
                if not running:
                    return [results[number] for number in range(len(results))]
                if not self._is_connected():
                    raise self._lost()
                with contextlib.suppress(queue.Empty):
                    number = ended.get(timeout=_POLL_SECONDS)
                    results[number] = self._result(running.pop(number), number)
                    done += amounts[number]
                    progress.update(done)
        except UserError:
            self._end(running, ended)
            raise
        except Exception as error:
            if not self._is_connected() or type(error).__name__ == "CommClosedError":
                raise self._lost() from error
            self._end(running, ended)
            raise

    def _is_connected(self) -> bool:
        return bool(self._client.status == "running")

    def _lost(self) -> UserError:
        return UserError(
            f"Lost the connection to the scheduler at {self._address}. Restart it and its workers. {RESUME_HINT}"
        )

    def _result(self, future: Any, number: int) -> Any:
        import distributed

        try:
            while True:
                try:
                    return future.result(timeout=_CONNECT_SECONDS)
                except TimeoutError:  # The worker may be lost; then another worker runs the task.
                    if future.status == "error" or not self._is_connected():
                        raise
        except distributed.scheduler.KilledWorker as error:
            raise UserError(
                f"Several workers died while running task {number}, probably because they ran out of memory. Give them "
                f"more (dask worker --memory-limit) or run fewer workers per machine. {RESUME_HINT}"
            ) from error
        except ImportError as error:
            raise UserError(
                f"A worker cannot import this package or a dependency ({error}). Install {code_identity()} on all "
                f"machines. {RESUME_HINT}"
            ) from error
        except distributed.client.FutureCancelledError as error:
            raise self._lost() from error

    def _end(self, running: dict[int, Any], ended: "queue.SimpleQueue[int]") -> None:
        """Cancels the tasks that have not started and waits for the running ones, so that nothing is still writing."""
        if not self._is_connected():
            return
        begun = {key for keys in self._client.processing().values() for key in keys}
        left = {number for number, future in running.items() if future.key in begun}
        self._client.cancel([future for number, future in running.items() if number not in left])
        while left and self._is_connected():
            with contextlib.suppress(queue.Empty):
                left.discard(ended.get(timeout=_POLL_SECONDS))


def _note(ended: "queue.SimpleQueue[int]", number: int, _: Any) -> None:
    ended.put(number)


def do_task(identity: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a task on a worker, after checking that the worker has the command's `code_identity`."""
    _check_identity(code_identity(), identity, f"on {os.uname().nodename}")
    return function(*arguments)


def _check_identity(found: str, expected: str, worker: str) -> None:
    if found != expected:
        raise UserError(
            f"The worker {worker} has {found}, but the command has {expected}. Install the same version on all "
            "machines and restart the workers."
        )


def _import_distributed() -> Any:
    import distributed

    # Dask logs lost connections as tracebacks. They are raised as errors here.
    for name in ("distributed", "distributed.client", "distributed.core", "distributed.comm"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return distributed
