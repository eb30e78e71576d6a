"""A server in a thread of the test process, and a plain client."""

import asyncio
import concurrent.futures
import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from official_bert.serving.options import ServingOptions
from official_bert.serving.server import Server
from tests.make import assert_mentions

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Answer:
    """A response: status, headers and body."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def assert_rejected(self, status: int, *names: object) -> None:
        """Checks the status and that the error mentions each name."""
        assert self.status == status, self.body
        assert_mentions(self.json["error"], *names)


class Client:
    """A client that sends each request on its own connection."""

    def __init__(self, url: str) -> None:
        self.url, self.address = url, url.removeprefix("http://")

    def send(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        with contextlib.closing(http.client.HTTPConnection(self.address, timeout=120)) as connection:
            content = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            connection.request(method, path, content, headers or {})
            return Answer(connection.getresponse())

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, headers=headers)

    def predict(self, model: str, body: Any, **headers: str) -> Answer:
        return self.send("POST", f"/v1/models/{model}:predict", body, headers)


def make_head(model: str, length: int, *headers: str) -> bytes:
    """Returns the head of a request to predict, for a body of `length` bytes."""
    lines = [f"POST /v1/models/{model}:predict HTTP/1.1", "Host: localhost", f"Content-Length: {length}", *headers]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()


def make_request(model: str, body: Any, *headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return make_head(model, len(content), *headers) + content


def sent(client: Client, content: bytes) -> socket.socket:
    """Opens a connection and sends these bytes."""
    host, port = client.address.split(":")
    connection = socket.create_connection((host, int(port)), timeout=120)
    connection.sendall(content)
    return connection


def read_status(connection: socket.socket) -> int:
    """Returns the status of a response, which is read completely, or 0 if the connection closes without one."""
    response = http.client.HTTPResponse(connection)
    try:
        response.begin()
    except http.client.BadStatusLine:
        return 0
    response.read()
    return response.status


class RunningServer(Server):
    """A server with access to its event loop, so that a test can run code in it."""

    loop: asyncio.AbstractEventLoop


@contextlib.contextmanager
def running(models: dict[str, Any], **options: Any) -> Iterator[tuple[RunningServer, Client]]:
    """Serves models (name -> folder) while the block runs, and then stops the server."""
    flags = [f"{name}={folder}" for name, folder in models.items()]
    options = {"port": 0, "reload_seconds": 0.1, "timeout_seconds": 300.0} | options
    server = RunningServer(ServingOptions(model=flags, **options))
    started, load = threading.Event(), server.models.load

    async def load_all() -> None:
        server.loop = asyncio.get_running_loop()
        await load()
        started.set()

    server.models.load = load_all
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        serving = threads.submit(lambda: asyncio.run(server.run()))
        serving.add_done_callback(lambda _: started.set())
        started.wait()
        if serving.done():
            serving.result()  # raises the error of a server that cannot start
        try:
            yield server, Client(server.url)
        finally:
            with contextlib.suppress(RuntimeError):  # The test has stopped it, and the loop is closed.
                server.loop.call_soon_threadsafe(server.stop)


def eventually(check: Callable[[], bool]) -> bool:
    """Returns whether a condition becomes true before a timeout."""
    end = time.monotonic() + 120.0
    while time.monotonic() < end:
        if check():
            return True
        time.sleep(0.02)
    return False


def get_status(client: Client, path: str = "/healthz") -> int:
    """Returns the status of a response, or 0 if the server closes or refuses the connection."""
    try:
        return client.get(path).status
    except OSError:
        return 0


def value(client: Client, place: str = "size") -> float | None:
    answer = client.predict(place, {"instances": ["ab"]})
    return answer.json["predictions"][0] if answer.status == 200 else None


def read_metric(client: Client, name: str, model: str = "") -> float:
    labels = f'{{model="{model}"}}' if model else ""
    return float(client.get("/metrics").body.decode().split(f"\n{name}{labels} ")[1].split()[0])
