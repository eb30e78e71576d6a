"""The server's log contains no texts, and no tracebacks for invalid requests."""

import contextlib
import gzip
import io
import json
import logging
import pathlib
import sys
from collections.abc import Iterator

import pytest

from official_bert.serving import logs
from tests.serving.serving_client import Client, running, sent

SECRET = b"sEcReT"
POST = b"POST /v1/models/length:predict HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


@contextlib.contextmanager
def logged() -> Iterator[io.StringIO]:
    """Yields what the server writes to stderr while the block runs."""
    loggers = [logging.getLogger(name) for name in ("official_bert.serving", "aiohttp", "asyncio")]
    before = [(each.handlers, each.propagate, each.level) for each in loggers]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", io.StringIO())
        logs.start()
        try:
            yield sys.stderr
        finally:
            for each, (each.handlers, each.propagate, level) in zip(loggers, before, strict=True):
                each.setLevel(level)


@pytest.fixture(scope="module")
def client(exports: pathlib.Path) -> Iterator[Client]:
    with running({"length": exports / "length"}) as (_, client):
        yield client


def make_request(body: bytes, headers: bytes = b"") -> bytes:
    return POST + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize("content", [
    POST.replace(b"\r\n", b"\n") + b"X: " + SECRET + b"\n\n",
    POST.removesuffix(b"\r\n") + b"\nX: " + SECRET + b"\r\n\r\n",
    POST + SECRET + b" x\r\n\r\n",
    POST + b"X: " + SECRET * 2000 + b"\r\n\r\n",
    POST + b"Content-Length: " + SECRET + b"\r\n\r\n",
    POST + b"Transfer-Encoding: " + SECRET + b"\r\n\r\n",
    b"GET http://[" + SECRET + b" HTTP/1.1\r\n\r\n",
    make_request(b"{}") + SECRET + b"\r\n\r\n",
    CHUNKED + b"5;" + SECRET + b"\n" + SECRET + b"\r\nhello\r\n0\r\n\r\n",
    CHUNKED + b"zz" + SECRET + b"\r\n",
    CHUNKED + b"5\r\nhello" + SECRET + b"\r\n0\r\n\r\n",
    make_request(SECRET, b"Content-Encoding: gzip\r\n"),
    make_request(SECRET, b"Content-Encoding: deflate\r\n"),
    make_request(SECRET, b"Content-Encoding: br\r\n"),
    make_request(gzip.compress(SECRET)[:-8] + b"12345678", b"Content-Encoding: gzip\r\n"),
    make_request(gzip.compress(SECRET)[:-9], b"Content-Encoding: gzip\r\n"),
    make_request(SECRET),
    make_request(b'{"instances": [["%b"]]}' % SECRET),
    make_request(b'{"instances": [{"%b": ""}]}' % SECRET),
    make_request(b'{"%b": []}' % SECRET),
    make_request(b'{"instances": ["%b", "!"]}' % SECRET),
])  # fmt: skip
def test_the_content_of_rejected_requests_is_not_logged(client: Client, content: bytes):
    with logged() as log:
        with sent(client, content) as connection:
            status = int(connection.makefile("rb").readline().split()[1])
        client.get("/healthz")  # the log line of a request is written after its response
    assert 400 <= status < 500
    assert SECRET.decode() not in log.getvalue()
    assert "traceback" not in log.getvalue()


def test_the_reason_of_a_rejection_is_logged(client: Client):
    with logged() as log:
        with sent(client, POST + b"Content-Length: x\r\n\r\n") as connection:
            connection.makefile("rb").read()
        assert client.predict("length", {}, Host="evil.example").status == 403
        client.get("/healthz")
    first, second = [line["refusal"] for line in map(json.loads, log.getvalue().splitlines()) if "refusal" in line]
    assert "BadHttpMessage" in first
    assert "localhost" in second
