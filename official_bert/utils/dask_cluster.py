"""A Dask cluster: the address of its scheduler, its workers' version of this package, and tasks that they do.

Dask is used for its scheduler alone, which gives tasks to processes on many machines and gives those of a lost worker
to others. Results stand in files that all machines reach, and a task whose file is there is not done again. So a task
may run twice, even at the same time, and the same command goes on with what another has left.
"""

import contextlib
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
from official_bert.utils.progress import Progress
from official_bert.version import __version__

_CONNECT_SECONDS = 10
_WAIT_FOR_WORKERS = 60  # seconds
_TASKS_IN_ADVANCE = 2  # for each thread of the workers, so that none waits for the network
_POLL_SECONDS = 1.0

GO_ON = "what is done is kept: run the same command again to go on"

# The names of Beam's runner for Dask, which is not what runs.
_RUNNERS = ("dask", "daskrunner", "apache_beam.runners.dask.dask_runner.daskrunner")
OPTIONS = ("runner", "dask_address")


def address_in(arguments: list[str]) -> str | None:
    """Returns the scheduler's address if these options of Beam's command line name Dask as the runner, else None.

    Raises:
        UserError: they name Dask, but no address or a wrong one, or something else beside.
    """
    values: dict[str, str] = {}
    others = []
    pending = iter(arguments)
    for argument in pending:
        name, equals, value = argument.removeprefix("--").partition("=")
        if argument.startswith("--") and name in OPTIONS:
            values[name] = value if equals else next(pending, "")
        else:
            others.append(argument)
    runner = values.get("runner", "").lower()
    if runner not in _RUNNERS and "dask_address" not in values:
        return None
    if runner not in _RUNNERS:
        raise UserError(f"--dask_address goes with --runner=dask; --runner is {values.get('runner') or 'not given'}")
    if others:
        raise UserError(f"unexpected argument {others[0]!r}; --runner=dask takes --dask_address=tcp://HOST:PORT alone")
    address = values.get("dask_address", "")
    if not re.fullmatch(r"(tcp|tls)://.+:\d{1,5}", address):
        raise UserError(
            f"--dask_address is {address!r}; --runner=dask expects tcp://HOST:PORT of a scheduler (dask scheduler)"
        )
    return address


@functools.cache
def code_identity() -> str:
    """Returns the version of this package, the SHA-256 of its code, and Python's version: what workers must share."""
    root = pathlib.Path(__file__).parents[2]
    digest = hashlib.sha256()
    for package in ("official_bert", "data_gen"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    python = ".".join(map(str, sys.version_info[:2]))
    return f"official_bert {__version__} (code {digest.hexdigest()[:12]}) on Python {python}"


class Cluster:
    """The workers behind a scheduler, for tasks of this package; a context manager.

    Raises:
        UserError: on entering: no scheduler answers, it has no worker, or a worker has not this version of the package.
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
                f"no scheduler answers at --dask_address={self._address} within {_CONNECT_SECONDS} s; start one (dask "
                "scheduler) or correct the address"
            ) from error
        try:
            try:
                self._client.wait_for_workers(1, timeout=_WAIT_FOR_WORKERS)
            except TimeoutError as error:
                raise UserError(
                    f"the scheduler at {self._address} has had no worker for {_WAIT_FOR_WORKERS} s; start some: dask "
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
        def identity() -> str:  # a function within a function is sent as code: workers may not have the package
            from official_bert.utils.dask_cluster import code_identity

            return code_identity()

        for worker, there in self._client.run(identity, on_error="return").items():
            if isinstance(there, ImportError):
                raise UserError(
                    f"the worker {worker} has not this package ({there}); install {code_identity()} there"
                ) from there
            if isinstance(there, Exception):
                raise UserError(f"the worker {worker} cannot say its version of this package: {there!r}") from there
            _check_identity(there, worker)

    def do_all(
        self,
        what: str,
        function: Callable[..., Any],
        tasks: Sequence[tuple[Any, ...]],
        unit: str,
        amounts: list[float] | None = None,
    ) -> list[Any]:
        """Returns the results of a function for the arguments of each task, in their order.

        Args:
            what: what is being done, for the lines of progress.
            function: of a module, of this package; may run twice for a task.
            tasks: the arguments of each.
            unit: of the amounts.
            amounts: of work in each task; None for 1 each.

        Raises:
            UserError: a task raised one; workers or the scheduler were lost; a worker has another version.
            Exception: the first of a task's. No other task runs any more then.
        """
        amounts = amounts or [1] * len(tasks)
        pending = enumerate(tasks)
        running: dict[int, Any] = {}  # the tasks' futures, by their numbers
        ended: queue.SimpleQueue[int] = queue.SimpleQueue()  # their numbers
        results: dict[int, Any] = {}
        progress, done = Progress(what, sum(amounts), unit), 0.0
        try:
            while True:
                # Each second, as workers may have come or gone.
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
        return UserError(f"the scheduler at {self._address} is gone; start it and its workers anew; {GO_ON}")

    def _result(self, future: Any, number: int) -> Any:
        import distributed

        try:
            while True:
                try:
                    return future.result(timeout=_CONNECT_SECONDS)
                except TimeoutError:  # its worker is lost, perhaps: then another does the task
                    if future.status == "error" or not self._is_connected():
                        raise
        except distributed.scheduler.KilledWorker as error:
            raise UserError(
                f"several workers ended at task {number}, as systems end processes when memory is short; give them "
                f"more (dask worker --memory-limit) or run fewer on a machine; {GO_ON}"
            ) from error
        except ImportError as error:
            raise UserError(
                f"a worker has not this package or what it needs ({error}); install {code_identity()} on all; {GO_ON}"
            ) from error
        except distributed.client.FutureCancelledError as error:
            raise self._lost() from error

    def _end(self, running: dict[int, Any], ended: "queue.SimpleQueue[int]") -> None:
        """Ends the tasks that are not begun, and waits for the others, so that none writes any more."""
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
    """For a worker: does a task of a command with that `code_identity`."""
    _check_identity(code_identity(), f"on {os.uname().nodename}", identity)
    return function(*arguments)


def _check_identity(there: str, worker: str, here: str | None = None) -> None:
    expected = here or code_identity()
    if there != expected:
        raise UserError(
            f"the worker {worker} has {there}, but the command {expected}; install the same on all machines and start "
            "the workers anew"
        )


def _import_distributed() -> Any:
    import distributed

    # What it logs of lost connections are tracebacks; what is wrong is raised.
    for name in ("distributed", "distributed.client", "distributed.core", "distributed.comm"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return distributed
