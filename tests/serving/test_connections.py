"""Limits of connections and of requests in progress, and that stopping the server loses no request."""

import asyncio
import contextlib
import json
import logging
import pathlib
import resource
import socket
import threading
import time

import pytest
from aiohttp import web

from official_bert.inference.saved_model import SavedModelPredictor
from official_bert.serving import connections, json_api
from tests.serving.serving_client import Client, eventually, is_closed, make_head, running, sent

BODY = json.dumps({"instances": ["ab"]}).encode()
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def read_status(connection: socket.socket) -> int:
    """Returns the status of a response, which is read completely, or 0 if the connection closes without one."""
    reader = connection.makefile("rb")
    line = reader.readline()
    length = 0
    while (header := reader.readline().strip()) and line:
        if header.lower().startswith(b"content-length:"):
            length = int(header.split(b":")[1])
    reader.read(length)
    return int(line.split()[1]) if line else 0


def test_connections_beyond_the_limit_are_refused(exports: pathlib.Path, caplog: pytest.LogCaptureFixture):
    with (
        caplog.at_level(logging.WARNING, "official_bert.serving"),
        running({"size": exports / "size"}, max_connections=2) as (_, client),
        sent(client, GET) as first,
        sent(client, GET) as second,
    ):
        assert (read_status(first), read_status(second)) == (200, 200)
        with sent(client, b"") as third, sent(client, make_head("size", len(BODY)) + BODY) as fourth:
            assert read_status(third) == 503
            assert read_status(fourth) == 503
        second.sendall(GET)
        assert read_status(second) == 200
        first.close()
        assert eventually(lambda: _is_answered(client))
    refused = [vars(record)["fields"] for record in caplog.records if record.getMessage() == "a connection is refused"]
    assert refused
    assert {each["limit"] for each in refused} == {2}


def test_probes_are_answered_whatever_the_number_of_connections(exports: pathlib.Path):
    with running({"size": exports / "size"}, max_connections=2) as (_, client), contextlib.ExitStack() as stack:
        for number in range(60):
            connection = stack.enter_context(sent(client, GET if number < 2 else GET[: number % 30]))
            if number < 2:
                assert read_status(connection) == 200
        for _ in range(20):
            for path in ("/healthz", "/readyz", "/metrics"):
                answer = client.get(path)
                assert (answer.status, answer.headers["Connection"]) == (200, "close")
        answer = client.get("/v1/models")
        assert (answer.status, answer.error) == (503, "the server has too many connections; try again later")


def _is_answered(client: Client) -> bool:
    try:
        return client.get("/healthz").status == 200
    except OSError:  # refused and closed before the request was sent
        return False


@pytest.mark.parametrize(("soft", "hard", "expected", "asked"), [
    (128, 128, 48, []), (4096, 4096, 1000, []), (128, 512, 432, [512]), (128, resource.RLIM_INFINITY, 1000, [1080])
])  # fmt: skip
def test_the_limit_leaves_descriptors_for_the_rest(soft: int, hard: int, expected: int, asked: list[int], monkeypatch):
    set_to: list[int] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_to.append(limits[0]))
    assert connections.limit_by_descriptors(1000) == expected
    assert set_to == asked


def is_ended(connection: socket.socket) -> bool:
    connection.settimeout(20)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:  # closed while this client was sending
        return True


def test_clients_that_send_headers_slowly_are_disconnected_and_others_are_not(exports: pathlib.Path):
    with (
        running({"size": exports / "size"}, timeout_seconds=1.0) as (_, client),
        sent(client, GET) as idle,
        sent(client, GET) as slow,
        sent(client, GET[:20]) as slow_at_first,
        sent(client, b"") as silent,
        sent(client, GET[:20]) as quick,
    ):
        quick.sendall(GET[20:])
        assert [read_status(each) for each in (idle, slow, quick)] == [200, 200, 200]
        for byte in GET:
            try:
                slow.sendall(bytes([byte]))
            except OSError:
                break
            time.sleep(0.1)
        for connection in (slow, slow_at_first, silent):
            assert is_ended(connection)
        for connection in (idle, quick):  # idle for longer than the limit
            connection.sendall(GET)
            assert read_status(connection) == 200


def test_bodies_in_flight_are_limited_together(exports: pathlib.Path):
    limits = {"max_body_bytes": 20_000, "max_in_flight_bytes": 20_000}
    large = json.dumps({"instances": ["ab"], "signature_name": "x" * 10_000})
    with running({"size": exports / "size"}, **limits) as (_, client):
        with sent(client, make_head("size", 15_000) + b" " * 14_000):
            assert eventually(lambda: client.predict("size", large).status == 503)
            assert client.predict("size", BODY).status == 200
        assert eventually(lambda: client.predict("size", large).status == 400)  # read, then refused by name


def test_large_bodies_are_parsed_outside_the_event_loop(exports: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    parse, opened = json_api.parse, threading.Event()

    def waits(body, *given, **named):
        if len(body) > 100_000:
            assert opened.wait(60)
        return parse(body, *given, **named)

    monkeypatch.setattr(json_api, "parse", waits)
    large = BODY + b" " * 200_000
    with (
        running({"size": exports / "size"}) as (_, client),
        sent(client, make_head("size", len(large)) + large) as asked,
    ):
        assert eventually(lambda: "requests_in_flight 2.0" in client.get("/metrics").body.decode())
        assert client.predict("size", BODY).status == 200
        opened.set()
        assert read_status(asked) == 200


# the server is stopping


def test_what_is_not_answered_in_time_gets_503_before_the_end(
    exports: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    opened, run = threading.Event(), SavedModelPredictor.call
    with (
        running({"size": exports / "size"}, drain_seconds=2.0) as (server, client),
        sent(client, make_head("size", 100) + b"{") as unfinished,
        sent(client, GET[:20]) as arriving,
        contextlib.ExitStack() as stack,
    ):
        monkeypatch.setattr(SavedModelPredictor, "call", lambda *given: opened.wait(60) and run(*given))
        stack.callback(opened.set)
        computed = stack.enter_context(sent(client, make_head("size", len(BODY)) + BODY))
        assert eventually(lambda: "requests_in_flight 3.0" in client.get("/metrics").body.decode())
        start = time.monotonic()
        server.loop.call_soon_threadsafe(server.stop)
        for connection in (unfinished, computed, arriving):
            answer = connection.makefile("rb").read()
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"the server is about to stop; try again later" in answer
            assert 0.9 < time.monotonic() - start < 2.0
        assert eventually(lambda: "a computation is abandoned" in caplog.messages)
        assert time.monotonic() - start < 2.5


def test_requests_in_the_sockets_queue_are_answered_before_the_end(exports: pathlib.Path):
    blocked, go_on = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        go_on.wait(60)

    with running({"size": exports / "size"}) as (server, client):
        server.loop.call_soon_threadsafe(block)
        assert blocked.wait(60)
        asked = [sent(client, make_head("size", len(BODY)) + BODY) for _ in range(40)]
        server.loop.call_soon_threadsafe(server.stop)
        go_on.set()
        assert [read_status(each) for each in asked] == [200] * len(asked)
        for each in asked:
            each.close()


def test_a_server_that_stops_listening_opens_the_connections_in_its_queue():
    async def refuse(request: web.BaseRequest) -> web.StreamResponse:
        raise web.HTTPNotFound

    async def stop_listening() -> int:
        server, taken = web.Server(refuse), connections.Connections(limit=9, seconds=1.0)
        address = await taken.listen(server, "127.0.0.1", 0)
        with socket.create_connection(address), socket.create_connection(address):  # the event loop waits
            await taken.stop_accepting()
            count = len(taken.open)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        await server.shutdown()
        return count

    assert asyncio.run(stop_listening()) == 2


def test_a_client_that_has_just_connected_may_ask_before_the_end(exports: pathlib.Path, monkeypatch):
    monkeypatch.setattr(connections, "_FIRST_BYTES_SECONDS", 60.0)
    with running({"size": exports / "size"}) as (server, client), sent(client, b"") as connection:
        server.loop.call_soon_threadsafe(server.stop)
        assert eventually(lambda: is_closed(client))
        connection.sendall(make_head("size", len(BODY)) + BODY)
        assert read_status(connection) == 200
