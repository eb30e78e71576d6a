"""Loads the server and checks every answer under faults: `python -m tools.benchmarks.serving_load --minutes=10`.

Clients ask for texts of all lengths without a pause. Meanwhile others break off in the middle, some send what cannot be
read, and new versions are published. Each answer must be the one that the text got when the server was idle, no request
may be lost, and memory must not grow.
"""

import contextlib
import dataclasses
import http.client
import json
import math
import os
import pathlib
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from official_bert.errors import UserError
from official_bert.utils.command_line import Command
from official_bert.utils.flags import option
from tests.serving import served_models

ROOT = pathlib.Path(__file__).parents[2]
CLOSE = 1e-4  # floats differ by rounding with the batch that they are computed in
_HEAD = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
GROWTH = 1.1  # of memory, from the second quarter of the time to the last
WORDS = "the quick brown fox jumps over a lazy dog while Ünder 漢字 😀 [MASK] , and so on .".split()


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the benchmark."""

    minutes: float = option(10.0, "How long to go on.")
    export_dir: str | None = option(None, "A model that takes one text; left out, a small one is made.")
    clients: int = option(8, "How many ask at the same time.")
    reload_seconds: float = option(5.0, "How often to publish a new version.")


class Load:
    """What the threads share: the server's address, the right answers, and what went wrong."""

    def __init__(self, address: str, texts: list[str], end: float) -> None:
        self.address, self.end = address, end
        self.answers = {text: self.ask(http.client.HTTPConnection(address, timeout=60), text)[1] for text in texts}
        self.texts = texts
        self.asked = self.versions = self.broken = self.refused = 0
        self.failures: list[str] = []
        self.served_by: set[str] = set()
        self.lock = threading.Lock()

    @property
    def going_on(self) -> bool:
        """Whether there is time left."""
        return time.monotonic() < self.end and len(self.failures) < 20

    def ask(self, connection: http.client.HTTPConnection, text: str) -> tuple[int, Any, str]:
        """Returns status, answer and version."""
        connection.request("POST", "/v1/models/m:predict", json.dumps({"instances": [text]}))
        response = connection.getresponse()
        return response.status, json.loads(response.read()), response.headers.get("X-Model-Version", "")

    def client(self, number: int) -> None:
        """Asks on and on over one connection."""
        chance = random.Random(number)
        connection = http.client.HTTPConnection(self.address, timeout=60)
        while self.going_on:
            text = chance.choice(self.texts)
            try:
                status, answer, version = self.ask(connection, text)
            except (OSError, http.client.HTTPException) as error:
                self.fail(f"lost: {type(error).__name__} {error}")
                connection = http.client.HTTPConnection(self.address, timeout=60)
                continue
            if status != 200 or not same(answer, self.answers[text]):
                self.fail(f"wrong: {status} {str(answer)[:200]} for {text[:50]!r}")
            with self.lock:
                self.asked += 1
                self.served_by.add(version)

    def breaker(self) -> None:
        """Goes away in the middle of the request, or before the answer."""
        chance = random.Random(0)
        host, port = self.address.split(":")
        while self.going_on:
            body = json.dumps({"instances": [chance.choice(self.texts)] * 8}).encode()
            head = (
                f"POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            )
            content = head + body
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=60) as connection:
                if chance.random() < 0.5:  # a reset, as of a killed process, instead of a close
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                connection.sendall(content[: chance.choice([len(content), chance.randrange(len(content))])])
                self.broken += 1
            time.sleep(0.02)

    def nuisance(self) -> None:
        """Sends what is to be refused."""
        wrong = [(b"{", 400), (b'{"instances": ["\xff"]}', 400), (b'{"instances": [7]}', 400), (b" " * 5_000_000, 413),
                 (json.dumps({"instances": ["x" * 200_000]}).encode(), 400)]  # fmt: skip
        while self.going_on:
            for body, expected in wrong:
                connection = http.client.HTTPConnection(self.address, timeout=60)
                try:
                    connection.request("POST", "/v1/models/m:predict", body)
                    status = connection.getresponse().status
                except (BrokenPipeError, ConnectionResetError):
                    status = 413  # it need not read what is too large
                if status != expected:
                    self.fail(f"refused with {status} instead of {expected}: {body[:40]!r}")
                connection.close()
                self.refused += 1
            time.sleep(0.2)

    def publisher(self, folder: pathlib.Path, seconds: float) -> None:
        """Publishes the same model under one number after the other, and clears away what is long past."""
        while self.going_on:
            time.sleep(seconds)
            newest = max(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
            shutil.copytree(folder / str(newest), folder / "writing")
            (folder / "writing").rename(folder / str(newest + 1))
            shutil.rmtree(folder / str(newest - 2), ignore_errors=True)
            self.versions += 1

    def fail(self, what: str) -> None:
        """Notes what went wrong."""
        print(what, file=sys.stderr, flush=True)
        with self.lock:
            self.failures.append(what)


def same(one: Any, other: Any) -> bool:
    """Whether two answers are equal, floats up to rounding."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, (int, float)):
        return math.isclose(one, other, abs_tol=CLOSE)
    return bool(one == other)


def megabytes(address: str) -> float:
    """The server's memory, as it tells itself."""
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return float(text.split("\nprocess_resident_memory_bytes ")[1].split()[0]) / 1e6


def main(options: Options) -> int:
    chance = random.Random(1)
    texts = [" ".join(chance.choices(WORDS, k=chance.choice([1, 3, 10, 40, 200]))) for _ in range(200)]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "m"
        if options.export_dir:
            newest = max((each for each in os.listdir(options.export_dir) if each.isdecimal()), key=int)
            shutil.copytree(pathlib.Path(options.export_dir) / newest, folder / "1")
        else:
            served_models.classifier(folder, 1)
        with start_server({"m": str(folder)}, "--reload_seconds=1") as address:
            load = Load(address, texts, time.monotonic() + 60 * options.minutes)
            memory = run(load, folder, options)
    quarter = max(1, len(memory) // 4)
    before, after = statistics.median(memory[quarter : 2 * quarter]), statistics.median(memory[-quarter:])
    print(
        f"{load.asked:,} answers checked, {load.asked / 60 / options.minutes:,.0f} a second, by {len(load.served_by)} "
        f"versions; {load.versions} published; {load.broken:,} clients broke off; {load.refused:,} bad requests refused"
    )
    print(f"memory: {before:,.0f} MB in the second quarter, {after:,.0f} MB in the last; all: {memory[::quarter]}")
    if after > GROWTH * before:
        load.fail(f"memory has grown by {100 * (after / before - 1):.0f} %")
    print(f"{len(load.failures)} failures")
    return 1 if load.failures else 0


@contextlib.contextmanager
def start_server(models: dict[str, str], *flags: str) -> Iterator[str]:
    """Serves models (name -> folder) in a process of its own; yields the address, and stops the server behind it.

    Raises:
        UserError: it does not start, or does not end as it should.
    """
    command = [
        sys.executable,
        "-m",
        "official_bert_cli",
        "serve",
        "--port=0",
        *(f"--model={name}={path}" for name, path in models.items()),
    ]
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log"
        with log.open("w") as stderr, subprocess.Popen([*command, *flags], cwd=ROOT, stderr=stderr) as server:
            try:
                yield _address(log, server)
            finally:
                server.send_signal(signal.SIGTERM)
        if server.returncode:
            raise UserError(f"the server ended with {server.returncode}:\n{log.read_text()[-5000:]}")


def _address(log: pathlib.Path, server: subprocess.Popen[bytes]) -> str:
    """Waits for the server to be ready, and returns where."""
    while server.poll() is None:
        for line in log.read_text().splitlines():
            if '"event": "ready"' in line:
                return str(json.loads(line)["url"]).removeprefix("http://")
        time.sleep(0.1)
    raise UserError(f"the server did not start:\n{log.read_text()}")


def run(load: Load, folder: pathlib.Path, options: Options) -> list[int]:
    """Runs all threads to the end; returns the server's memory, in MB, every two seconds."""
    threads = [threading.Thread(target=load.client, args=[number]) for number in range(options.clients)]
    threads += [threading.Thread(target=load.breaker), threading.Thread(target=load.nuisance)]
    threads.append(threading.Thread(target=load.publisher, args=[folder, options.reload_seconds]))
    for thread in threads:
        thread.start()
    memory = []
    while load.going_on:
        memory.append(round(megabytes(load.address)))
        time.sleep(2)
    for thread in threads:
        thread.join()
    return memory


if __name__ == "__main__":
    Command(
        program="python -m tools.benchmarks.serving_load",
        summary="Loads the server and checks every answer, while much goes wrong",
        main=main,
        options=(Options,),
    ).run()
