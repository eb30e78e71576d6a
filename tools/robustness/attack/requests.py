"""Attacks the server with hostile requests, slow or numerous clients, and SIGTERM under load."""

import concurrent.futures
import contextlib
import gzip
import http.client
import json
import os
import pathlib
import resource
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis
from hypothesis import strategies as st

from tests.odd_inputs import odd_json
from tools.robustness.attack import processes
from tools.robustness.attack.cases import Case, NotHeldError
from tools.robustness.attack.processes import Running

_EXAMPLES = 150  # in a case
_CLIENTS, _REQUESTS = 64, 2000
_MAX_MEGABYTES = 1200
_MAX_HEALTH_SECONDS = 1.0  # on a busy machine
_PATH, _BODY, _ANSWER = "/v1/models/size:predict", b'{"instances": ["the cat"]}', {"predictions": [1007.0]}
_SECRET = "sEcReT"  # in bodies and headers; it must not be logged, unless odd bytes made it a part of a path
_REFUSED, _BUSY = range(400, 500), (503, 504)
_REQUEST_BODIES = {
    "size": {"instances": ["the cat", {"text": "a"}]},
    "answers": {"instances": [{"question": "who", "context": "the cat"}], "signature_name": "serving_default"},
    "endings": {"inputs": {"prompt": ["who"], "endings": [["a", "b", "c", "d"]]}},
}
_SECRET_BODY = b'{"instances": ["%b"]}' % _SECRET.encode()
_REQUEST = b"POST %b HTTP/1.1\r\nHost: localhost\r\nX: %b\r\nContent-Length: %d\r\n\r\n%b"
_REQUEST %= (_PATH.encode(), _SECRET.encode(), len(_SECRET_BODY), _SECRET_BODY)
_ODD_BYTES = (
    *(b"\0", b"\n", b"\r\n\r\n", b"\x16\x03\x01", b"%00", b"A" * 70_000, b"GET /../../etc/passwd"),
    *(b"Content-Length: -1\r\n", b"Content-Length: 5\r\n", b"Content-Encoding: gzip\r\n", b"Upgrade: websocket\r\n"),
    *(b"Content-Encoding: deflate\r\n", b"Expect: 100-continue\r\n", b"Origin: http://[\r\n", b"X: \xff\xfe\r\n"),
    *(b"Host: " + b"a" * 9000 + b"\r\n", b"/v1/models/size/versions/" + b"9" * 5000),
    b"Transfer-Encoding: chunked\r\n\r\nffffffffff\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n5;%b\n\r\n" % _SECRET.encode(),
)


def attack(case: Case) -> None:
    """Starts a server and attacks it in one of several ways."""
    ways: dict[str, tuple[Callable[[Case], None], int]] = {
        "odd JSON": (_send_odd_json, 4),
        "odd bytes": (_send_odd_bytes, 4),
        "SIGTERM under load": (_terminate, 2),
        "more clients than descriptors": (_exhaust_descriptors, 1),
        "slow clients": (_send_slowly, 1),
        "compressed bodies": (_send_compressed, 1),
        "long texts": (_send_long_texts, 1),
    }
    case.what = case.rng.choices(list(ways), [weight for _, weight in ways.values()])[0]
    ways[case.what][0](case)


def _send_odd_json(case: Case) -> None:
    server, address = _start(case, ["--max_instances=20", "--max_text_bytes=200000"])
    models = st.sampled_from(sorted(_REQUEST_BODIES))
    requests = models.flatmap(lambda name: st.tuples(st.just(name), odd_json(_REQUEST_BODIES[name])))

    def send(request: tuple[str, bytes]) -> None:
        name, body = request
        case.done = f"{name}: {body[:300]!r}"
        status, content = _request(address, "POST", f"/v1/models/{name}:predict", body)
        if status != 200 and status not in _REFUSED and status not in _BUSY:
            raise NotHeldError(f"status {status}: {content[:300]!r}")
        error = json.loads(content).get("error", "")
        if status != 200 and not (isinstance(error, str) and 0 < len(error) < 2000):
            raise NotHeldError(f"status {status} without a short message: {content[:300]!r}")

    _try_examples(case, requests, send)
    _stop(server, address)


def _send_odd_bytes(case: Case) -> None:
    server, address = _start(case, [])

    @st.composite
    def requests(draw: st.DrawFn) -> bytes:
        content = _REQUEST
        for _ in range(draw(st.integers(1, 4))):
            first, last = sorted((draw(st.integers(0, len(content))), draw(st.integers(0, len(content)))))
            last = min(last, first + draw(st.integers(0, 40)))
            content = content[:first] + draw(st.sampled_from(_ODD_BYTES) | st.binary(max_size=9)) + content[last:]
        return content

    def send(content: bytes) -> None:
        case.done = repr(content[:400])
        with contextlib.suppress(ConnectionResetError, BrokenPipeError, TimeoutError), _connect(address) as connection:
            connection.sendall(content)
            connection.settimeout(0.3)  # an incomplete request is not answered
            answer = connection.recv(4096)
            if answer.startswith(b"HTTP/1.1 500"):
                raise NotHeldError(f"{answer[:500]!r}")

    _try_examples(case, requests(), send)
    _stop(server, address)


def _terminate(case: Case) -> None:
    """Sends SIGTERM while clients connect. Each request must be answered, or its connection refused."""
    after = case.rng.randrange(100, _REQUESTS - 100)
    server, address = _start(case, [])
    lost: list[str] = []

    def send(number: int) -> bool:
        if number == after:
            os.kill(server.pid, signal.SIGTERM)
        try:
            status, content = _request(address, "POST", _PATH, _BODY)
            if status not in (200, 503) or (status == 200 and json.loads(content) != _ANSWER):
                lost.append(f"status {status}: {content[:200]!r}")
        except ConnectionRefusedError:
            return False
        except (OSError, http.client.HTTPException) as error:
            lost.append(repr(error))
        return True

    with concurrent.futures.ThreadPoolExecutor(_CLIENTS) as pool:
        answered = sum(pool.map(send, range(_REQUESTS)))
    server.finish(60).check((0,))
    case.done = f"SIGTERM after {after} of {_REQUESTS} requests: {answered} answered"
    if lost:
        raise NotHeldError(f"{len(lost)} requests were lost: {lost[:3]}")


def _exhaust_descriptors(case: Case) -> None:
    descriptors, clients = case.rng.randrange(96, 200), 400
    case.done = f"{descriptors} descriptors, {clients} connections"
    server, address = _start(case, [], {resource.RLIMIT_NOFILE: descriptors})
    with contextlib.ExitStack() as stack:
        for _ in range(clients):
            stack.enter_context(_connect(address))
    _stop(server, address)


def _send_slowly(case: Case) -> None:
    """Opens connections that never send the rest of their requests. Other clients must still be answered."""
    server, address = _start(case, ["--timeout_seconds=3", f"--max_connections={case.rng.randrange(20, 200)}"])
    length = case.rng.choice([10, 4 << 20, (4 << 20) + 1, 10**15])
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (_PATH.encode(), length)
    content = head + b" " * case.rng.choice([0, 5, 100_000])
    if case.rng.random() < 0.5:
        content = content[: case.rng.randrange(len(head))]
    case.done = f"300 connections that send {len(content)} bytes of a request of {length}"
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            with contextlib.suppress(OSError):
                stack.enter_context(_connect(address)).sendall(content)
        _check_answer(address)  # once the others have timed out
    _stop(server, address)


def _send_compressed(case: Case) -> None:
    """Sends small bodies that would decompress to a thousand times their size.

    They must be refused and must not delay other clients.
    """
    server, address = _start(case, [])
    body = gzip.compress(b" " * (case.rng.randrange(20, 200) << 20))
    host = case.rng.choice([b"localhost", b"evil.example"])  # the second one is refused for its name
    head = b"POST %b HTTP/1.1\r\nHost: %b\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    content = head % (_PATH.encode(), host, len(body)) + body
    case.done = f"40 requests of {len(content)} bytes to {host.decode()}"
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            connection = stack.enter_context(_connect(address))
            with contextlib.suppress(ConnectionError):
                connection.sendall(content)
            start = time.monotonic()
            _request(address, "GET", "/healthz", b"")
            if (seconds := time.monotonic() - start) > _MAX_HEALTH_SECONDS:
                raise NotHeldError(f"/healthz took {seconds:.1f} seconds")
            answer = connection.recv(4096)
            if not answer.startswith((b"HTTP/1.1 415", b"HTTP/1.1 403")):
                raise NotHeldError(f"{answer[:300]!r}")
    _stop(server, address)


def _send_long_texts(case: Case) -> None:
    """Sends texts with more tokens than a request may have. They must be refused, while other clients are answered."""
    server, address = _start(case, [])
    texts = ["the cat " * case.rng.randrange(9_000, 12_000)] * case.rng.randrange(10, 40)
    body = json.dumps({"instances": texts}).encode()
    case.done = f"8 times {len(texts)} texts of {len(texts[0])} bytes"
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(_request, address, "POST", "/v1/models/names:predict", body) for _ in range(8)]
        _check_answer(address)
        for answer in asked:
            status, content = answer.result()
            if status not in (413, 503) or (status == 413 and b"--max_tokens" not in content):
                raise NotHeldError(f"status {status}: {content[:300]!r}")
    _stop(server, address)


def _try_examples(case: Case, strategy: st.SearchStrategy[Any], send: Callable[[Any], None]) -> None:
    case.tried = 0

    @hypothesis.seed(case.rng.randrange(2**32))
    @hypothesis.settings(
        max_examples=_EXAMPLES,
        database=None,
        deadline=None,
        print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(strategy)
    def try_each(value: Any) -> None:
        case.tried += 1
        send(value)

    try_each()


def _start(case: Case, flags: Sequence[str], limits: dict[int, int] | None = None) -> tuple[Running, str]:
    """Starts a server of the sample models. Returns it and its address."""
    models = [f"--model={path.name}={path}" for path in sorted((case.samples / "served").iterdir())]
    server = processes.start("serve", [*models, "--port=0", *flags], limits)
    ended = server.wait(120, until=lambda: '"event":"ready"' in server.output)
    if ended is not None:
        raise NotHeldError(f"the server did not start: {ended.output[-1500:]}")
    line = next(line for line in server.output.splitlines() if '"event":"ready"' in line)
    return server, str(json.loads(line)["url"]).removeprefix("http://")


def _stop(server: Running, address: str) -> None:
    """Stops a server. Raises NotHeldError if it no longer answers, needed too much memory, or logged a text."""
    _check_answer(address)
    status = pathlib.Path(f"/proc/{server.pid}/status").read_text()
    megabytes = next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))
    if megabytes > _MAX_MEGABYTES:
        raise NotHeldError(f"the server needs {megabytes:,.0f} MB of memory")
    ended = server.kill(signal.SIGTERM, group=False)
    ended.check((0,))
    for line in ended.output.splitlines():
        if _SECRET in line and _SECRET not in json.loads(line).get("path", ""):
            raise NotHeldError(f"a text in the log: {line[-2500:]}")


def _connect(address: str) -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def _request(address: str, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read()


def _check_answer(address: str) -> None:
    """Raises NotHeldError if an ordinary request is not answered correctly within 20 seconds."""
    end, found = time.monotonic() + 20, ""
    while time.monotonic() < end:
        try:
            status, content = _request(address, "POST", _PATH, _BODY)
            if status == 200:
                if json.loads(content) != _ANSWER:
                    raise NotHeldError(f"a wrong answer: {content[:300]!r}")
                return
            found = f"status {status}: {content[:300]!r}"
        except (OSError, http.client.HTTPException) as error:
            found = repr(error)
        time.sleep(0.1)
    raise NotHeldError(f"an ordinary request is not answered: {found}")
