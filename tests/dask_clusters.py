"""Dask clusters for tests: a scheduler and workers on this machine, optionally in network namespaces, and a fake."""

import contextlib
import os
import pathlib
import pickle
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.make import ROOT

_SECONDS = 120
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


class OneProcess(contextlib.AbstractContextManager["OneProcess"]):
    """A fake `dask_cluster.Cluster` that pickles every task and runs it twice in this process, in another folder."""

    def __init__(self, address: str) -> None:
        del address

    def __exit__(self, *_: object) -> None:
        pass

    def run_tasks(self, _: str, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], *__: Any) -> list[Any]:
        def run(task: tuple[Any, ...]) -> Any:
            sent, arguments = pickle.loads(pickle.dumps((function, task)))
            with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
                return pickle.loads(pickle.dumps(sent(*arguments)))

        return [[run(task) for _ in range(2)][-1] for task in tasks]


def wait_until(met: Callable[[], object], what: str) -> None:
    end = time.monotonic() + _SECONDS
    while not met():
        assert time.monotonic() < end, f"not within {_SECONDS} s: {what}"
        time.sleep(0.05)


def _end(process: subprocess.Popen[Any]) -> None:
    process.kill()
    with process:  # waits for the process and closes its pipes
        pass


def make_namespaces(stack: contextlib.ExitStack, number: int) -> list[list[str]]:
    """Simulates hosts with separate networks 10.77.0.1, 10.77.0.2, ..., connected by a switch without outside access.

    Returns the prefix of a command that runs it on each host.
    """
    if not shutil.which("ip"):
        pytest.skip("the command ip, which makes network namespaces, is not installed")

    def ip(arguments: str) -> None:
        subprocess.run(["ip", *arguments.split()], check=True, capture_output=True, text=True)

    unique = f"bert-{uuid.uuid4().hex[:6]}"
    switch, *hosts = names = [f"{unique}-{end}" for end in ("s", *range(number))]
    for name in names:
        try:
            ip(f"netns add {name}")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
        stack.callback(subprocess.run, ["ip", "netns", "delete", name], check=False)
    ip(f"-n {switch} link add switch type bridge")
    ip(f"-n {switch} link set switch up")
    for host, name in enumerate(hosts):
        ip(f"-n {switch} link add port{host} type veth peer name net netns {name}")
        ip(f"-n {switch} link set port{host} master switch up")
        ip(f"-n {name} addr add 10.77.0.{host + 1}/24 dev net")
        for device in ("net", "lo"):
            ip(f"-n {name} link set {device} up")
    return [["ip", "netns", "exec", name] for name in hosts]


class DaskCluster:
    """A scheduler on host 0 and single-threaded workers without a nanny, so killed workers are not restarted.

    Args:
        stack: Ends the processes.
        folder: Their working directory.
        host: The address of host 0.
        prefixes: The prefix of a command that runs it on each host.
    """

    def __init__(self, stack: contextlib.ExitStack, folder: pathlib.Path, host: str, prefixes: list[list[str]]) -> None:
        self._stack, self._folder, self._host, self._prefixes = stack, folder, host, prefixes
        self.workers: list[subprocess.Popen[bytes]] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.address = f"tcp://{host}:{self._port}"
        self.start_scheduler()

    def start_scheduler(self) -> None:
        options = f"scheduler --host {self._host} --port {self._port} --no-dashboard"
        self.scheduler = self._start("scheduler", "at:", 0, *options.split())

    def add_worker(self, host: int = 0) -> None:
        number = len(self.workers)
        command = f"worker {self.address} --nthreads=1 --no-nanny --no-dashboard --memory-limit=0 --local-directory"
        scratch = str(self._folder / f"scratch{number}")
        self.workers.append(self._start(f"worker{number}", "Registered to", host, *command.split(), scratch))

    def _start(self, name: str, says: str, host: int, *arguments: str) -> subprocess.Popen[bytes]:
        log = self._folder / f"{name}-{uuid.uuid4().hex[:6]}.log"
        with log.open("wb") as writer:
            command = [*self._prefixes[host], sys.executable, "-m", "dask", *arguments]
            process = subprocess.Popen(command, stdout=writer, stderr=writer, env=ENVIRONMENT, cwd=self._folder)
        self._stack.callback(_end, process)
        wait_until(lambda: process.poll() is not None or says in log.read_text(), f"{name} begins")
        assert process.poll() is None, log.read_text()
        return process

    def command(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts `official-bert` with the arguments and --dask on the scheduler's host."""
        command = [*self._prefixes[0], sys.executable, "-m", "official_bert_cli", *arguments, f"--dask={self.address}"]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT, cwd=self._folder)
        self._stack.callback(_end, process)
        return process

    def one_worker_lost_one_added(self, count: Callable[[], int]) -> None:
        """Kills a worker, adds one, then kills the others, so that the new worker completes the run.

        `count` returns the number of completed parts.
        """
        lost, *others = self.workers
        lost.kill()
        before = count()
        wait_until(lambda: count() > before, "the other workers go on")
        self.add_worker(len(self.workers) + 1)
        for each in others:
            each.kill()


@contextlib.contextmanager
def dask_cluster(folder: pathlib.Path, workers: int, namespaces: bool = False) -> Iterator[DaskCluster]:
    """Starts a cluster with the given number of workers, each on its own host, and one spare host."""
    with contextlib.ExitStack() as stack:
        prefixes = make_namespaces(stack, workers + 2) if namespaces else [[]] * (workers + 2)
        cluster = DaskCluster(stack, folder, "10.77.0.1" if namespaces else "127.0.0.1", prefixes)
        for number in range(workers):
            cluster.add_worker(number + 1)
        yield cluster


def ended(process: subprocess.Popen[str]) -> tuple[int, str, list[str]]:
    """Returns the exit code of a command, its stdout, and its stderr without progress lines."""
    out, err = process.communicate(timeout=_SECONDS)
    return process.returncode, out, [line for line in err.splitlines() if not re.match(r".*: .* left|warning: ", line)]
