"""The pool of worker processes among which make-records divides its work (--algorithm=fast)."""

import concurrent.futures
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
from typing import Any

from data_gen.pipelines import worker
from official_bert.errors import UserError
from official_bert.utils.progress import Progress


class WorkerPool:
    """Worker processes (see worker.py) on this machine for a working folder. A thread waits for each process."""

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

    def run_tasks(
        self,
        what: str,
        tasks: list[dict[str, Any]],
        unit: str,
        amounts: list[float] | None = None,
    ) -> list[dict[str, Any]]:
        """Runs tasks on the worker processes and returns their results in the order of the tasks.

        Args:
            what: Title of the progress lines.
            tasks: The tasks (see worker.py).
            unit: Unit of the amounts, for the progress lines.
            amounts: Amount of work of each task. Defaults to 1 each.

        Raises:
            Exception: The first error of a task (see `run_in_process`). After it, no more tasks are started.
        """
        amounts = amounts or [1.0] * len(tasks)
        free: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()
        for process in self._processes:
            free.put(process)

        def run(task: dict[str, Any]) -> dict[str, Any]:
            process = free.get()
            try:
                return run_in_process(process, task, self._folder)
            finally:
                free.put(process)

        progress = Progress(what, sum(amounts), unit)
        threads = concurrent.futures.ThreadPoolExecutor(len(self._processes))
        try:
            futures = {threads.submit(run, task): amount for task, amount in zip(tasks, amounts, strict=True)}
            for future in concurrent.futures.as_completed(futures):
                future.result()  # raises the error of the task
                progress.advance(futures[future])
            return [future.result() for future in futures]
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def run_in_process(process: subprocess.Popen[str], task: dict[str, Any], folder: str) -> dict[str, Any]:
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
    what = worker.Worker(folder).describe(task)
    if code == -signal.SIGKILL:
        return (
            f"a worker process was killed at {what}, probably because memory ran out; run the same command with fewer "
            f"--num_workers to resume, or remove {folder} and start again with a smaller --block_tokens"
        )
    return (
        f"a worker process ended with code {code} at {what}; see its messages above; run the same command again to "
        "resume"
    )
