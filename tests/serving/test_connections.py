"""Limits of connections and of requests in progress, and that stopping the server loses no request."""

import contextlib
import logging
import pathlib
import resource
import threading
import time

import pytest

from official_bert.inference.saved_model import SavedModelPredictor
from official_bert.serving import connections, json_api
from tests.serving.serving_client import GET, eventually, get_status, make_head, read_metric, read_status, running, sent

BODY = b'{"instances": ["ab"]}'
REQUEST = make_head("size", len(BODY)) + BODY


def test_connections_beyond_the_limit_are_refused_but_probes_are_answered(exports: pathlib.Path, caplog):
    with (
        caplog.at_level(logging.WARNING, "official_bert.serving"),
        running({"size": exports / "size"}, max_connections=2) as (_, client),
        contextlib.ExitStack() as stack,
        sent(client, GET) as first,
        sent(client, GET) as second,
    ):
        assert (read_status(first), read_status(second)) == (200, 200)
        for content in (b"", REQUEST):
            with sent(client, content) as refused:
                response = refused.makefile("rb").read()
            assert response.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nRetry-After: 1\r\n" in response
        for number in range(60):
            stack.enter_context(sent(client, GET[: number % 30]))
        for path in ("/healthz", "/readyz", "/metrics") * 20:
            answer = client.get(path)
            assert (answer.status, answer.headers["Connection"]) == (200, "close")
        client.get("/v1/models").assert_rejected(503, "connections")
        second.sendall(GET)
        assert read_status(second) == 200
        stack.close()
        first.close()
        assert eventually(lambda: get_status(client, "/v1/models") == 200)
    refusals = [vars(record)["fields"] for record in caplog.records if record.getMessage() == "a connection is refused"]
    assert {each["limit"] for each in refusals} == {2}


@pytest.mark.parametrize(("soft", "hard", "expected", "asked"), [
    (128, 128, 48, []), (4096, 4096, 1000, []), (128, 512, 432, [512]), (128, resource.RLIM_INFINITY, 1000, [1080]),
    (10, 10, 1, []),
])  # fmt: skip
def test_max_connections_reserves_file_descriptors(soft: int, hard: int, expected: int, asked: list[int], monkeypatch):
    set_to: list[int] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_to.append(limits[0]))
    assert (connections.limit_by_descriptors(1000), set_to) == (expected, asked)


def test_clients_that_send_headers_slowly_are_disconnected_and_others_are_not(exports: pathlib.Path):
    with (
        running({"size": exports / "size"}, timeout_seconds=0.5) as (_, client),
        sent(client, GET) as idle,
        sent(client, GET) as slow,
        sent(client, GET[:20]) as slow_at_first,
        sent(client, b"") as silent,
        sent(client, GET[:20]) as quick,
    ):
        quick.sendall(GET[20:])
        assert [read_status(each) for each in (idle, slow, quick)] == [200, 200, 200]
        with contextlib.suppress(OSError):
            for byte in GET:
                slow.sendall(bytes([byte]))
                time.sleep(0.05)
        for connection in (slow, slow_at_first, silent):
            with contextlib.suppress(ConnectionResetError):  # closed while this client was sending
                assert connection.recv(1) == b""
        for connection in (idle, quick):  # idle for longer than the limit
            connection.sendall(GET)
            assert read_status(connection) == 200


def test_the_total_size_of_bodies_in_flight_is_limited(exports: pathlib.Path):
    limits = {"max_body_bytes": 20_000, "max_in_flight_bytes": 20_000}
    large = {"instances": ["ab"], "signature_name": "x" * 10_000}
    with running({"size": exports / "size"}, **limits) as (_, client):
        with sent(client, make_head("size", 15_000) + b" " * 14_000):
            assert eventually(lambda: client.predict("size", large).status == 503)
            assert client.predict("size", large).headers["Retry-After"] == "1"
            assert client.predict("size", BODY).status == 200
        assert eventually(lambda: client.predict("size", large).status == 400)  # read, then refused by name


def test_large_bodies_are_parsed_outside_the_event_loop(exports: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    parse, opened = json_api.parse, threading.Event()

    def waits(body, *given, **named):
        if len(body) > 100_000:
            assert opened.wait(60)
        return parse(body, *given, **named)

    monkeypatch.setattr(json_api, "parse", waits)
    large = make_head("size", len(BODY) + 200_000) + BODY + b" " * 200_000
    with running({"size": exports / "size"}) as (_, client), sent(client, large) as asked:
        assert eventually(lambda: read_metric(client, "official_bert_requests_in_flight") == 2)
        assert client.predict("size", BODY).status == 200
        opened.set()
        assert read_status(asked) == 200


# the server is stopping


def test_unanswered_requests_get_503_before_shutdown(exports: pathlib.Path, monkeypatch, caplog):
    opened, run = threading.Event(), SavedModelPredictor.call
    with (
        running({"size": exports / "size"}, drain_seconds=2.0) as (server, client),
        sent(client, make_head("size", 100) + b"{") as unfinished,
        sent(client, GET[:20]) as arriving,
        sent(client, b"") as probe,
        sent(client, b"") as late,
        contextlib.ExitStack() as stack,
    ):
        monkeypatch.setattr(SavedModelPredictor, "call", lambda *given: opened.wait(60) and run(*given))
        stack.callback(opened.set)
        computed = stack.enter_context(sent(client, REQUEST))
        assert eventually(lambda: read_metric(client, "official_bert_requests_in_flight") == 3)
        start = time.monotonic()
        server.loop.call_soon_threadsafe(server.stop)
        assert eventually(lambda: server.stopping)
        probe.sendall(GET.replace(b"healthz", b"readyz"))
        late.sendall(REQUEST)
        answer = probe.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nConnection: close\r\n" in answer
        for connection in (unfinished, computed, arriving, late):
            answer = connection.makefile("rb").read()
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"stop" in answer
            assert 0.9 < time.monotonic() - start < 2.0
        assert eventually(lambda: "a computation is abandoned" in caplog.messages)
        assert time.monotonic() - start < 2.5


def test_queued_connections_are_answered_before_shutdown(exports: pathlib.Path):
    blocked, go_on = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        go_on.wait(60)

    with running({"size": exports / "size"}) as (server, client):
        server.loop.call_soon_threadsafe(block)
        assert blocked.wait(60)
        asked = [sent(client, REQUEST) for _ in range(40)]
        server.loop.call_soon_threadsafe(server.stop)
        go_on.set()
        assert [read_status(each) for each in asked] == [200] * len(asked)
        for each in asked:
            each.close()


def test_new_connections_can_send_a_request_before_shutdown(exports: pathlib.Path, monkeypatch):
    monkeypatch.setattr(connections, "_FIRST_BYTES_SECONDS", 60.0)
    with running({"size": exports / "size"}) as (server, client), sent(client, b"") as connection:
        server.loop.call_soon_threadsafe(server.stop)
        assert eventually(lambda: not get_status(client))
        connection.sendall(REQUEST)
        assert read_status(connection) == 200
