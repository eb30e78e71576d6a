"""The worker processes of a run, and how they are driven."""

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

# Has a worker do a task, and returns the result.
Ask = Callable[[dict[str, Any]], dict[str, Any]]


class Pool(Protocol):
    """What does the tasks of a run: processes of this machine, or of a cluster (on_dask.py)."""

    def __enter__(self) -> "Pool": ...

    def __exit__(self, *_: object) -> None: ...

    def grow(self, count: int) -> None:
        """Starts processes until there are so many, where that is ours to decide."""

    def do_all(
        self, what: str, tasks: list[dict[str, Any]], unit: str, amounts: list[float] | None = None
    ) -> list[dict[str, Any]]:
        """Returns the tasks' results, in the tasks' order: see WorkerPool.do_all."""


class WorkerPool:
    """Processes that do the tasks of the run with this working folder (see worker.py), each driven by a thread."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> "WorkerPool":
        return self

    def grow(self, count: int) -> None:
        """Starts processes until there are so many."""
        # The import path of this process may come from elsewhere than the environment.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        while len(self._processes) < count:
            command = [sys.executable, "-m", worker.__name__, self._folder, str(os.getpid())]
            # A terminal sends Ctrl-C to the workers too, which would show tracebacks: this process alone answers it.
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
        """Returns the tasks' results, in the tasks' order.

        Args:
            what: what is being done, for the lines of progress.
            tasks: see worker.py.
            unit: of the amounts.
            amounts: of work in each task; None for 1 each.
            do: does a task, for which it may ask a worker several times, and returns the result; None to ask once. The
                tasks are begun in their order.

        Raises:
            Exception: the first of a task's (see `ask`); no other task is begun then.
        """
        amounts = amounts or [1] * len(tasks)
        pending = iter(range(len(tasks)))  # threads may share it: each number is taken once
        results: list[dict[str, Any] | None] = [None] * len(tasks)
        errors: list[BaseException] = []
        progress = Progress(what, sum(amounts), unit)
        done = 0.0
        lock = threading.Lock()

        def drive(process: subprocess.Popen[str]) -> None:
            nonlocal done

            def asked(task: dict[str, Any]) -> dict[str, Any]:
                return ask(process, task, self._folder)

            while not errors and (number := next(pending, None)) is not None:
                try:
                    result = do(tasks[number], asked) if do else asked(tasks[number])
                except BaseException as error:  # also this process' KeyboardInterrupt, by which `do` ends its waits
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
                thread.join(1)  # a Ctrl-C just before a wait without limit would be noticed only after it
        if errors:
            raise errors[0]
        return [result for result in results if result is not None]


def ask(process: subprocess.Popen[str], task: dict[str, Any], folder: str) -> dict[str, Any]:
    """Has a worker process do a task, and returns the result.

    Raises:
        UserError: the worker reports one, or has ended.
        OSError: the worker could not write.
        RuntimeError: the worker reports a defect.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    line = ""
    with contextlib.suppress(BrokenPipeError):  # it has ended
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    if not line.endswith("\n"):  # it has ended before its answer was whole
        raise UserError(_describe_end(process.wait(), task, folder))
    answer = json.loads(line)
    if "text_error" in answer:
        raise worker.TextError(answer["text_error"])
    if "os_error" in answer:
        raise OSError(*answer["os_error"])
    if "user_error" in answer:
        raise UserError(f"{answer['user_error']}; what is done is kept: run the same command again to go on")
    if "defect" in answer:
        raise RuntimeError(answer["defect"])
    return dict(answer["result"])


def _describe_end(code: int, task: dict[str, Any], folder: str) -> str:
    if code == -signal.SIGKILL:
        return (
            f"a worker process was killed at {task}, as systems do when memory is short; the same command with fewer "
            f"--num_workers goes on with what is done; or remove {folder} and start anew with a smaller --block_tokens"
        )
    return (
        f"a worker process ended with code {code} at {task}, and may have said why above; what is done is kept: run "
        "the same command again to go on"
    )
