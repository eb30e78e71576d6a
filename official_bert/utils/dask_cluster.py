"""Runs tasks of this package on a Dask cluster: the flag `--dask`, the check of the workers' code, and the task loop.

Only Dask's scheduler is used. It distributes tasks to processes on many machines and reruns the tasks of a lost worker
on other workers. Results are files that all machines can reach, and a task whose file exists is skipped. So a task may
run twice, even at the same time, and running the same command again continues an interrupted run.
"""

import contextlib
import dataclasses
import functools
import hashlib
import logging
import os
import pathlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.utils.flags import ValidatedOptions, option
from official_bert.utils.progress import Progress
from official_bert.version import __version__

_CONNECT_TIMEOUT = 10  # seconds
_WORKER_TIMEOUT = 60  # seconds

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
    """Returns the version of this package, a digest of its code, and Python's version, as text.

    A command and its workers must have the same.
    """
    root = pathlib.Path(__file__).parents[2]
    digest = hashlib.sha256()
    for package in ("official_bert", "data_gen"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    python = ".".join(map(str, sys.version_info[:2]))
    return f"official_bert {__version__} (code {digest.hexdigest()[:12]}) on Python {python}"


class Cluster:
    """The workers of a Dask cluster. A context manager that connects to the scheduler on entry and disconnects on exit.

    Args:
        address: The scheduler's address, such as tcp://HOST:8786.

    Raises:
        UserError: On entry, if no scheduler answers, if it has no workers, or if the scheduler or a worker has a
            different version of this package.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._client: Any = None

    def __enter__(self) -> "Cluster":
        distributed = _import_distributed()
        try:
            self._client = distributed.Client(self._address, timeout=_CONNECT_TIMEOUT, set_as_default=False)
        except OSError as error:
            raise UserError(
                f"No scheduler answered at --dask={self._address} within {_CONNECT_TIMEOUT} s. Start one (dask "
                "scheduler) or correct the address."
            ) from error
        with contextlib.ExitStack() as opened:
            opened.push(self)
            try:
                self._client.wait_for_workers(1, timeout=_WORKER_TIMEOUT)
            except TimeoutError as error:
                raise UserError(
                    f"The scheduler at {self._address} has had no workers for {_WORKER_TIMEOUT} s. Start some: dask "
                    f"worker {self._address} --nthreads=1"
                ) from error
            self._check_versions()
            opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close(timeout=2)

    def _check_versions(self) -> None:
        def identity() -> str:  # Dask sends nested functions by value, so processes without the package can run it.
            from official_bert.utils.dask_cluster import code_identity

            return code_identity()

        try:
            scheduler = self._client.run_on_scheduler(identity)  # it unpickles the functions that workers run
        except Exception as error:
            scheduler = error
        answers = {f"worker {worker}": found for worker, found in self._client.run(identity, on_error="return").items()}
        for process, found in {"scheduler": scheduler, **answers}.items():
            if isinstance(found, ImportError):
                raise UserError(
                    f"The {process} cannot import this package ({found}). Install {code_identity()} there."
                ) from found
            if isinstance(found, Exception):
                raise UserError(f"Could not check the package version of the {process}: {found!r}") from found
            _check_identity(found, code_identity(), process)

    def run_tasks(
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
            unit: Unit of `amounts` in the progress line, such as "MB".
            amounts: Amount of work in each task. Defaults to 1 per task.

        Raises:
            UserError: If a task raises one, if the workers or the scheduler are lost, or if a worker has a different
                version of this package.
            Exception: The first exception raised by a task. No task is running when it is raised.
        """
        distributed = _import_distributed()
        amounts = amounts or [1] * len(tasks)
        submit = functools.partial(self._client.submit, run_task, code_identity(), function, pure=False)
        futures = [submit(*arguments) for arguments in tasks]
        numbers = {future: number for number, future in enumerate(futures)}
        results: dict[int, Any] = {}
        progress = Progress(what, sum(amounts), unit)
        with self._client.as_current():
            try:
                for future in distributed.as_completed(futures):
                    number = numbers[future]
                    results[number] = self._get_result(future, number)
                    progress.advance(amounts[number])
            except Exception as error:
                is_lost = self._client.status != "running" or isinstance(error, distributed.comm.CommClosedError)
                if not is_lost:
                    self._cancel(futures)
                if is_lost or isinstance(error, distributed.client.FutureCancelledError):
                    raise UserError(
                        f"Lost the connection to the scheduler at {self._address}. Restart it and its workers. "
                        f"{RESUME_HINT}"
                    ) from error
                raise
        return [results[number] for number in range(len(futures))]

    def _get_result(self, future: Any, number: int) -> Any:
        distributed = _import_distributed()
        try:
            return future.result()
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

    def _cancel(self, futures: Sequence[Any]) -> None:
        """Cancels the tasks that are waiting and waits for the running ones, so that nothing is still writing."""
        distributed = _import_distributed()
        begun = {key for keys in self._client.processing().values() for key in keys}
        self._client.cancel([future for future in futures if future.key not in begun])
        with contextlib.suppress(distributed.client.FutureCancelledError):  # if the connection is lost
            distributed.wait([future for future in futures if future.key in begun])


def run_task(identity: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a task on a worker, after checking that the worker has the same code as the command.

    Args:
        identity: The command's `code_identity`.
        function: The function to run.
        *arguments: The arguments of the function.

    Raises:
        UserError: If the worker's code differs.
    """
    _check_identity(code_identity(), identity, f"worker on {os.uname().nodename}")
    return function(*arguments)


def _check_identity(actual: str, expected: str, process: str) -> None:
    if actual != expected:
        raise UserError(
            f"The {process} has {actual}, but the command has {expected}. Install the same version on all machines and "
            "restart the scheduler and the workers."
        )


def _import_distributed() -> Any:
    import distributed

    # Dask logs lost connections as tracebacks. They are raised as errors here.
    for name in ("distributed", "distributed.client", "distributed.core", "distributed.comm"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return distributed
