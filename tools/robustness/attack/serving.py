"""The server under odd requests, too many clients, too few descriptors, and SIGTERM under load."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import hypothesis
from hypothesis import strategies as st

from tools.robustness.attack import processes
from tools.robustness.attack.fuzz import _odd_json
from tools.robustness.attack.processes import NotHeldError, Running
from tools.robustness.attack.samples import SERVED

if TYPE_CHECKING:
    from tools.robustness.attack.campaign import Case

NEEDS = (SERVED,)
_EXAMPLES = 60
_CLIENTS, _REQUESTS = 64, 2000
_MOST_MEGABYTES = 1200
_BODY = b'{"instances": ["the cat"]}'
_SECRET = b"sEcReT"  # in bodies and headers, and never in the log, unless odd bytes made it a part of a path
_ANSWER_SECONDS = 0.3
_RIGHT = {"predictions": [1007.0]}
_REFUSED = range(400, 500)
_BUSY = (429, 503, 504)

_running: dict[str, tuple[Running, str]] = {}  # the server that several cases share


def attack(case: "Case") -> None:
    """Attacks a server in one of these ways."""
    ways = [_odd_bodies] * 4 + [_odd_heads] * 4 + [_sigterm] * 2
    ways += [_few_descriptors, _stalled, _described, _half_copied]
    way = case.rng.choice(ways)
    case.what = (way.__doc__ or "").rstrip(".")
    way(case)


def _odd_bodies(case: "Case") -> None:
    """Requests with odd JSON."""
    address = _shared_server(case)
    models = {
        "size": {"instances": ["the cat", {"text": "a"}]},
        "answers": {"instances": [{"question": "who", "context": "the cat"}], "signature_name": "serving_default"},
        "endings": {"inputs": {"prompt": ["who"], "endings": [["a", "b", "c", "d"]]}},
    }
    names = st.sampled_from(sorted(models))
    bodies = names.flatmap(lambda name: st.tuples(st.just(name), _odd_json(models[name])))

    def one(request: tuple[str, bytes]) -> None:
        name, body = request
        case.done = f"{name}: {body[:300]!r}{'...' * (len(body) > 300)}"
        status, content = _asked(address, "POST", f"/v1/models/{name}:predict", body)
        if status != 200 and status not in _REFUSED and status not in _BUSY:
            raise NotHeldError(f"status {status}: {content[:300]!r}")
        answer = json.loads(content)
        if status != 200 and not (isinstance(answer.get("error"), str) and len(answer["error"]) < 2000):
            raise NotHeldError(f"status {status} without a word on it: {content[:300]!r}")

    _made_up(case, bodies, one)
    _check_server(case, address)


def _odd_heads(case: "Case") -> None:
    """Bytes that are hardly HTTP."""
    address = _shared_server(case)
    body = b'{"instances": ["%b"]}' % _SECRET
    head = b"POST /v1/models/size:predict HTTP/1.1\r\nHost: localhost\r\nX: %b\r\nContent-Length: %d\r\n\r\n%b" % (
        _SECRET, len(body), body,
    )  # fmt: skip
    odd = [
        b"Transfer-Encoding: chunked\r\n\r\nffffffffff\r\n", b"Content-Length: -1\r\n", b"Content-Length: 5\r\n",
        b"Content-Encoding: gzip\r\n", b"Host: " + b"a" * 9000 + b"\r\n", b"\0", b"\r\n\r\n", b"GET /../../etc/passwd",
        b"Expect: 100-continue\r\n", b"Upgrade: websocket\r\n", b"X: \xff\xfe\r\n", b"\x16\x03\x01", b"%00",
        b"A" * 70_000, b"/v1/models/size/versions/" + b"9" * 5000, b"\n", b"Content-Encoding: deflate\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n5;%b\n\r\n" % _SECRET, b"Origin: http://[\r\n",
    ]  # fmt: skip

    @st.composite
    def heads(draw: st.DrawFn) -> bytes:
        content = head
        for _ in range(draw(st.integers(1, 4))):
            place, end = sorted((draw(st.integers(0, len(content))), draw(st.integers(0, len(content)))))
            end = min(end, place + draw(st.integers(0, 40)))
            content = content[:place] + draw(st.sampled_from(odd) | st.binary(max_size=9)) + content[end:]
        return content

    def one(content: bytes) -> None:
        case.done = repr(content[:400])
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection, contextlib.suppress(
            ConnectionResetError, BrokenPipeError, TimeoutError
        ):  # fmt: skip
            connection.sendall(content)
            connection.settimeout(_ANSWER_SECONDS)  # a request that is not whole gets none; a shutdown would forgo it
            answer = connection.recv(4096)
            if answer.startswith(b"HTTP/1.1 500"):
                raise NotHeldError(f"{answer[:500]!r}")

    _made_up(case, heads(), one)
    _check_server(case, address)


def _half_copied(case: "Case") -> None:
    """A version that is copied slowly, in any order."""
    whole, folder = case.samples.folder / SERVED / "size" / "1", case.folder / "size"
    shutil.copytree(whole, folder / "1")
    paths = [path.relative_to(whole) for path in whole.rglob("*") if path.is_file()]
    case.rng.shuffle(paths)
    if case.rng.random() < 0.7:  # what makes it an export of ours comes last
        paths.sort(key=lambda path: path.parts[0] in ("assets.extra", "checksums.json"))
    case.done = f"in this order: {', '.join(map(str, paths))}"
    server, address = started(case, ["--reload_seconds=0.2"], models=[folder])
    for path in paths:
        content = (whole / path).read_bytes()
        part = case.rng.randrange(len(content) + 1)
        (folder / "2" / path).parent.mkdir(parents=True, exist_ok=True)
        for piece in (content[:part], content[part:]):
            with (folder / "2" / path).open("ab") as writer:
                writer.write(piece)
            time.sleep(case.rng.choice([0, 0.5, 1]))
            check_answers(address)
    wait_for_versions(address, ["2"])
    check_answers(address)
    server.kill(signal.SIGTERM, group=False).check((0,))


def _described(case: "Case") -> None:
    """Requests that schemathesis makes up from the description."""
    address = _shared_server(case)
    seed = case.rng.randrange(2**31)
    case.done = f"schemathesis --seed={seed}"
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"http://{address}/openapi.json", "--no-color",
               f"--seed={seed}", "--checks=not_a_server_error", "--max-examples=25"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=case.folder, timeout=400)
    if done.returncode:
        raise NotHeldError(done.stdout[-3000:])
    _check_server(case, address)


def _sigterm(case: "Case") -> None:
    """SIGTERM while clients ask, each time in a new connection."""
    after = case.rng.randrange(100, _REQUESTS - 100)
    case.done = f"SIGTERM after {after} of {_REQUESTS} requests"
    server, address = started(case, [])
    counts, lock = {"answered": 0, "refused": 0}, threading.Lock()
    lost: list[str] = []

    def ask(_: int) -> None:
        try:
            status, content = _asked(address, "POST", "/v1/models/size:predict", _BODY)
            if status not in (200, 503) or (status == 200 and json.loads(content) != _RIGHT):
                lost.append(f"status {status}: {content[:200]!r}")
        except ConnectionRefusedError:
            with lock:
                counts["refused"] += 1
            return
        except OSError as error:
            lost.append(repr(error))
        except http.client.HTTPException as error:
            lost.append(repr(error))
        with lock:
            counts["answered"] += 1
            if counts["answered"] == after:
                os.kill(server.pid, signal.SIGTERM)

    with concurrent.futures.ThreadPoolExecutor(_CLIENTS) as pool:
        list(pool.map(ask, range(_REQUESTS)))
    ended = server.done(60)
    ended.check((0,))
    case.done += f": {counts['answered']} answered, {counts['refused']} not connected"
    if lost:
        raise NotHeldError(f"{len(lost)} requests were lost: {lost[:3]}")


def _few_descriptors(case: "Case") -> None:
    """More clients than descriptors."""
    descriptors, clients = case.rng.randrange(96, 200), 400
    case.done = f"{descriptors} descriptors, {clients} connections"
    server, address = started(case, [], {resource.RLIMIT_NOFILE: descriptors})
    host, port = address.split(":")
    with contextlib.ExitStack() as stack:
        for _ in range(clients):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=20))
    check_answers(address)
    server.kill(signal.SIGTERM, group=False).check((0,))


def _stalled(case: "Case") -> None:
    """Clients that never send the rest of their requests."""
    server, address = started(case, ["--timeout_seconds=3", f"--max_connections={case.rng.randrange(20, 200)}"])
    host, port = address.split(":")
    length = case.rng.choice([10, 4 << 20, (4 << 20) + 1, 10**15])
    head = b"POST /v1/models/size:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % length
    content = head + b" " * case.rng.choice([0, 5, 100_000])
    if case.rng.random() < 0.5:
        content = content[: case.rng.randrange(len(head))]
    case.done = f"300 connections that send {len(content)} bytes of a request of {length}"
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_connection((host, int(port)), timeout=20)).sendall(content)
        check_answers(address)  # when the time of the others is over
        _check_memory(server)
    server.kill(signal.SIGTERM, group=False).check((0,))


def _made_up(case: "Case", strategy: st.SearchStrategy[Any], one: Any) -> None:
    case.tried = 0

    @hypothesis.seed(case.rng.randrange(2**32))
    @hypothesis.settings(max_examples=_EXAMPLES, database=None, deadline=None, print_blob=False,
                         suppress_health_check=list(hypothesis.HealthCheck),
                         phases=[hypothesis.Phase.generate])  # fmt: skip
    @hypothesis.given(strategy)
    def every(value: Any) -> None:
        case.tried += 1
        one(value)

    every()


def _asked(address: str, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read()


def started(
    case: "Case",
    flags: list[str],
    limits: dict[int, int] | None = None,
    models: list[pathlib.Path] | None = None,
    before: Callable[[], None] | None = None,
) -> tuple[Running, str]:
    """A server of all samples or of the models in these folders, and its address."""
    models = models or sorted((case.samples.folder / SERVED).iterdir())
    given = [f"--model={path.name}={path}" for path in models]
    server = processes.start("serve", [*given, "--port=0", *flags], limits, before)
    ended = server.wait(120, until=lambda: '"event": "ready"' in server.output)
    if ended is not None:
        raise NotHeldError(f"the server did not start: {ended.output[-1500:]}")
    line = next(line for line in server.output.splitlines() if '"event": "ready"' in line)
    return server, str(json.loads(line)["url"]).removeprefix("http://")


def _shared_server(case: "Case") -> str:
    if "server" in _running and _running["server"][0].poll() is not None:
        del _running["server"]
    if "server" not in _running:
        _running["server"] = started(case, ["--max_instances=20", "--max_text_bytes=200000"])
    return _running["server"][1]


def _check_server(case: "Case", address: str) -> None:
    """Raises NotHeldError unless the shared server answers as before, without a traceback, in little memory."""
    server = _running["server"][0]
    try:
        if server.poll() is not None:
            raise NotHeldError(f"the server ended: {server.poll()}")
        if processes.TRACEBACK in server.output:
            raise NotHeldError(f"a traceback: {server.output[-2500:]}")
        for line in server.output.splitlines():
            if _SECRET.decode() in line and _SECRET.decode() not in json.loads(line).get("path", ""):
                raise NotHeldError(f"a text in the log: {line[-2500:]}")
        check_answers(address)
        _check_memory(server)
    except NotHeldError:
        server.end_group()  # the next case has another one
        raise


def wait_for_versions(address: str, versions: list[str]) -> None:
    """Raises NotHeldError unless a server's only model, one of ours, has these versions before long."""
    expected, end = ("regression", versions), time.monotonic() + 60
    seen: Any = None
    while seen != expected and time.monotonic() < end:
        (model,) = json.loads(_asked(address, "GET", "/v1/models", b"")[1])["models"]
        seen = model["kind"], model["versions"]
        time.sleep(0.1)
    if seen != expected:
        raise NotHeldError(f"served is {seen}; expected {expected}")


def check_answers(address: str) -> None:
    """Raises NotHeldError unless a request is answered rightly before long."""
    end, seen = time.monotonic() + 20, ""
    while time.monotonic() < end:
        try:
            status, content = _asked(address, "POST", "/v1/models/size:predict", _BODY)
            if status == 200:
                if json.loads(content) != _RIGHT:
                    raise NotHeldError(f"another answer: {content[:300]!r}")
                return
            seen = f"status {status}: {content[:300]!r}"
        except (OSError, http.client.HTTPException) as error:
            seen = repr(error)
        time.sleep(0.1)
    raise NotHeldError(f"a good request is not answered any more: {seen}")


def _check_memory(server: Running) -> None:
    status = pathlib.Path(f"/proc/{server.pid}/status").read_text()
    megabytes = next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))
    if megabytes > _MOST_MEGABYTES:
        raise NotHeldError(f"the server takes {megabytes:,.0f} MB")
