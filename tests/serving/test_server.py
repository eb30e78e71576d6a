"""The server as a process: its port, and how it ends."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

from official_bert.errors import UserError
from official_bert.serving import logs, server
from official_bert.serving.options import ServingOptions
from tests.conftest import ROOT
from tests.make import assert_mentions, assert_rejected
from tests.serving.serving_client import Client, eventually, is_closed, make_request, read_metric, running, sent


def test_a_port_in_use_is_rejected(exports: pathlib.Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError) as caught, running({"m": exports / "size"}, port=port):
            pass
    assert_mentions(str(caught.value), "127.0.0.1", f"port {port}", "--port")


@pytest.mark.parametrize(("before", "after"), [(None, "2"), ("5", "5")])
def test_the_number_of_inter_op_threads_is_limited(before: str | None, after: str, monkeypatch):
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", before or "")
    if before is None:
        monkeypatch.delenv("TF_NUM_INTEROP_THREADS")
    monkeypatch.setattr(logs, "start", lambda: None)
    threads = []

    def refuses(options: ServingOptions) -> None:
        threads.append(os.environ.get("TF_NUM_INTEROP_THREADS"))
        raise UserError("server")

    monkeypatch.setattr(server, "Server", refuses)
    assert_rejected("server", server.serve, ServingOptions(model=["a=b"]))
    assert threads == [after]


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_a_signal_stops_the_server_after_pending_requests(exports: pathlib.Path, number: signal.Signals):
    command = [sys.executable, "-m", "official_bert_cli", "serve", f"--model=size={exports / 'size'}", "--port=0"]
    # Without TensorFlow's own messages, which users do not see either.
    quiet = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    with (
        subprocess.Popen(command, cwd=ROOT, env=quiet, stderr=subprocess.PIPE, text=True) as process,
        contextlib.ExitStack() as whatever_happens,
    ):
        whatever_happens.callback(process.kill)
        lines = []
        for line in process.stderr:
            lines.append(json.loads(line))  # each line of the log is JSON
            if lines[-1]["event"] == "ready":
                break
        client = Client(lines[-1]["url"])
        request = make_request("size", {"instances": ["abcd"]})
        with sent(client, request[:-10]) as connection:
            assert eventually(lambda: read_metric(client, "official_bert_requests_in_flight") == 2)
            os.kill(process.pid, number)
            assert eventually(lambda: is_closed(client))
            connection.sendall(request[-10:])
            assert connection.makefile("rb").read().endswith(b'{"predictions":[1004.0]}')
        lines += [json.loads(line) for line in process.stderr]
        assert process.wait() == 0
    assert not [each for each in lines if each.get("path") == "/metrics"]  # probes are not logged
    events = [each["event"] for each in lines]
    assert "draining" in events
    assert events[-2:] == ["request", "stopped"]
    assert lines[-2]["status"] == 200
