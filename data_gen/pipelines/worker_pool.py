"""The pool of worker processes that run the tasks of the fast algorithm."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

from data_gen.pipelines import worker
from official_bert.errors import UserError
from official_bert.utils.progress import Progress

Ask = Callable[[dict[str, Any]], dict[str, Any]]  # Sends a task to a worker and returns the result.


class Pool(Protocol):
    """A pool of workers: processes on this machine (`WorkerPool`) or on a cluster (on_dask.py)."""

    def __enter__(self) -> "Pool": ...

    def __exit__(self, *_: object) -> None: ...

    def grow(self, count: int) -> None:
        """Starts worker processes until there are `count`. Does nothing on a cluster."""

    def do_all(
        self, what: str, tasks: list[dict[str, Any]], unit: str, amounts: list[float] | None = None
    ) -> list[dict[str, Any]]:
        """Runs tasks and returns their results in order (see WorkerPool.do_all)."""


class WorkerPool:
    """Worker processes (see worker.py) on this machine that share a working folder. A thread controls each process."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> "WorkerPool":
        return self

    def grow(self, count: int) -> None:
        """Starts processes until there are `count`."""
        # The import path of this process may contain folders that are not in the environment variable.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        while len(self._processes) < count:
            command = [sys.executable, "-m", worker.__name__, self._folder, str(os.getpid())]
            # The workers ignore Ctrl-C, which a terminal sends to them too. This process handles it and ends them.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                pipe = subprocess.PIPE
                process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1, env=environment)
                self._processes.append(process)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def do_all(
        self,
        what: str,
        tasks: list[dict[str, Any]],
        unit: str,
        amounts: list[float] | None = None,
        do: Callable[[dict[str, Any], Ask], dict[str, Any]] | None = None,
    ) -> list[dict[str, Any]]:
        """Runs tasks on the worker processes and returns their results in the order of the tasks.

        Args:
            what: Title of the progress lines.
            tasks: The tasks (see worker.py).
            unit: Unit of the amounts, for the progress lines.
            amounts: Amount of work of each task. Defaults to 1 each.
            do: Function (task, ask) that runs a task on a worker and returns the result. `ask` sends a task to this
                worker and returns the answer. Defaults to a single call of `ask`.

        Raises:
            Exception: The first error of a task (see `ask`). After it, no more tasks are started.
        """
        amounts = amounts or [1] * len(tasks)
        pending = iter(range(len(tasks)))  # Shared by the threads; each number is taken once.
        results: list[dict[str, Any] | None] = [None] * len(tasks)
        errors: list[BaseException] = []
        progress = Progress(what, sum(amounts), unit)
        done = 0.0
        lock = threading.Lock()

        def drive(process: subprocess.Popen[str]) -> None:
            nonlocal done

            def ask_process(task: dict[str, Any]) -> dict[str, Any]:
                return ask(process, task, self._folder)

            while not errors and (number := next(pending, None)) is not None:
                try:
                    result = do(tasks[number], ask_process) if do else ask_process(tasks[number])
                except BaseException as error:  # Including KeyboardInterrupt.
                    errors.append(error)
                    return
                with lock:
                    results[number] = result
                    done += amounts[number]
                    progress.update(done)

        threads = [threading.Thread(target=drive, args=(process,), daemon=True) for process in self._processes]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(1)  # Without a timeout, a Ctrl-C just before the call would be handled only afterwards.
        if errors:
            raise errors[0]
        return [result for result in results if result is not None]


def ask(process: subprocess.Popen[str], task: dict[str, Any], folder: str) -> dict[str, Any]:
    """Sends a task to a worker process, waits, and returns the result.

    Args:
        process: The worker process.
        task: The task (see worker.py).
        folder: The working folder, for error messages.

    Raises:
        UserError: If the worker reports a UserError, or has ended.
        OSError: If the worker could not read or write a file.
        RuntimeError: If the worker reports any other exception.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    line = ""
    with contextlib.suppress(BrokenPipeError):  # The worker has ended.
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    if not line.endswith("\n"):  # The worker ended before it had written the complete line.
        raise UserError(_describe_end(process.wait(), task, folder))
    answer = json.loads(line)
    if "text_error" in answer:
        raise worker.TextError(answer["text_error"])
    if "os_error" in answer:
        raise OSError(*answer["os_error"])
    if "user_error" in answer:
        raise UserError(f"{answer['user_error']}; run the same command again to resume")
    if "defect" in answer:
        raise RuntimeError(answer["defect"])
    return dict(answer["result"])


def _describe_end(code: int, task: dict[str, Any], folder: str) -> str:
    if code == -signal.SIGKILL:
        return (
            f"a worker process was killed at {task}, probably because memory ran out; run the same command with fewer "
            f"--num_workers to resume, or remove {folder} and start again with a smaller --block_tokens"
        )
    return (
        f"a worker process ended with code {code} at {task}; see its messages above; run the same command again to "
        "resume"
    )
