"""The server as a process: its port, how it ends, and its logs, metrics, names of models and OpenAPI description."""

import contextlib
import datetime
import io
import itertools
import json
import logging
import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

from official_bert.export.options import ONNX, SAVED_MODEL
from official_bert.inference.predictor import Tensor
from official_bert.kinds.names import CLASSIFICATION
from official_bert.serving import logs, openapi, server
from official_bert.serving.options import ServingOptions
from tests.make import ROOT, assert_rejected, slow_after
from tests.serving.serving_client import Client, eventually, get_status, make_request, read_metric, running, sent


def test_a_port_in_use_is_rejected(exports: pathlib.Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert_rejected(("127.0.0.1", f"port {port}", "--port"), running({"m": exports / "size"}, port=port).__enter__)


@pytest.mark.parametrize(("before", "after"), [(None, "2"), ("5", "5")])
def test_the_number_of_inter_op_threads_is_limited(before: str | None, after: str, monkeypatch):
    variables = {"TF_NUM_INTRAOP_THREADS": "1", **({"TF_NUM_INTEROP_THREADS": before} if before else {})}
    monkeypatch.setattr(os, "environ", variables)
    monkeypatch.setattr(logs, "start", lambda: None)
    monkeypatch.setattr(server, "Server", lambda _: 1 / 0)  # everything before it has happened
    with pytest.raises(ZeroDivisionError):
        server.serve(ServingOptions(model=["a=b"], threads=3))
    assert variables == {"TF_NUM_INTEROP_THREADS": after, "TF_NUM_INTRAOP_THREADS": "3"}


# The fast test serves an ONNX model, because importing TensorFlow takes seconds.
@pytest.mark.parametrize(("number", "format_name"), slow_after(1, [
    (signal.SIGTERM, ONNX), (signal.SIGTERM, SAVED_MODEL), (signal.SIGHUP, SAVED_MODEL)
]))  # fmt: skip
def test_a_signal_stops_the_server_after_pending_requests(number: signal.Signals, format_name: str, export_kind):
    folder = pathlib.Path(export_kind(CLASSIFICATION, format_name)).parent
    command = [sys.executable, "-m", "official_bert_cli", "serve", f"--model=m={folder}", "--port=0"]
    if number == signal.SIGTERM:  # started like nohup does
        command = ["env", "--ignore-signal=HUP", *command]
    # Without TensorFlow's own messages, which users do not see either.
    quiet = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    with (
        subprocess.Popen(command, cwd=ROOT, env=quiet, stderr=subprocess.PIPE, text=True) as process,
        contextlib.ExitStack() as whatever_happens,
    ):
        whatever_happens.callback(process.kill)
        log = map(json.loads, process.stderr)  # each line of the log is JSON
        ready = next(line for line in log if line["event"] == "ready")
        assert ready["models"] == ["m"]
        client = Client(ready["url"])
        if number == signal.SIGTERM:
            os.kill(process.pid, signal.SIGHUP)
        body = {"instances": ["the cat"]}
        answer, request = client.predict("m", body), make_request("m", body)
        with sent(client, request[:-10]) as connection:
            assert eventually(lambda: read_metric(client, "official_bert_requests_in_flight") == 2)
            os.kill(process.pid, number)
            assert eventually(lambda: not get_status(client))
            connection.sendall(request[-10:])
            assert connection.makefile("rb").read().endswith(answer.body)
        lines = list(log)
        assert process.wait() == 0
    assert not [each for each in lines if each.get("path") == "/metrics"]  # probes are not logged
    events = [each["event"] for each in lines]
    assert "draining" in events
    assert events[-2:] == ["request", "stopped"]
    assert lines[-2]["status"] == 200


SECRET = b"sEcReT"
POST = b"POST /v1/models/length:predict HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


@contextlib.contextmanager
def logged():
    """Yields what the server writes to stderr while the block runs."""
    loggers = map(logging.getLogger, ("official_bert.serving", "aiohttp", "asyncio"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", io.StringIO())
        for logger, name in itertools.product(loggers, ("handlers", "propagate", "level")):
            patch.setattr(logger, name, getattr(logger, name))
        logs.start()
        yield sys.stderr


@pytest.mark.parametrize("content", [
    POST.replace(b"\r\n", b"\n") + b"X: " + SECRET + b"\n\n",
    POST + SECRET + b" x\r\n\r\n",
    POST + b"X: " + SECRET * 2000 + b"\r\n\r\n",
    POST + b"Content-Length: " + SECRET + b"\r\n\r\n",
    POST + b"Transfer-Encoding: " + SECRET + b"\r\n\r\n",
    b"GET http://[" + SECRET + b" HTTP/1.1\r\n\r\n",
    make_request("length", b"{}") + SECRET + b"\r\n\r\n",
    CHUNKED + b"5;" + SECRET + b"\n" + SECRET + b"\r\nhello\r\n0\r\n\r\n",
    CHUNKED + b"5\r\nhello" + SECRET + b"\r\n0\r\n\r\n",
    *(make_request("length", SECRET, f"Content-Encoding: {encoding}") for encoding in ("gzip", "deflate", "br")),
    make_request("length", SECRET),
    make_request("length", b'{"%b": []}' % SECRET),
    make_request("length", b'{"instances": ["%b", "!"]}' % SECRET),
])  # fmt: skip
def test_the_content_of_rejected_requests_is_not_logged(client: Client, content: bytes):
    with logged() as log:
        with sent(client, content) as connection:
            status = int(connection.makefile("rb").readline().split()[1])
        client.get("/healthz")  # the log line of a request is written after its response
    assert 400 <= status < 500
    assert SECRET.decode() not in log.getvalue()
    assert "traceback" not in log.getvalue()


def test_requests_are_logged_with_the_reason_of_a_rejection_except_successful_probes(client: Client):
    with logged() as log:
        client.predict("length", {"instances": ["a", "b"]})
        client.get("/metrics", Host="evil.example")
        with sent(client, POST + b"Content-Length: x\r\n\r\n") as connection:
            connection.makefile("rb").read()
        for path in ("/metrics", "/healthz"):
            client.get(path)
    first, second, malformed = map(json.loads, log.getvalue().splitlines())
    request = {"event": "request", "method": "POST", "path": "/v1/models/length:predict", "client": "127.0.0.1"}
    request |= {"level": "info", "status": 200, "model": "length", "version": 1, "instances": 2}
    assert request.items() <= first.items()
    assert (second["path"], second["status"]) == ("/metrics", 403)
    assert "localhost" in second["refusal"]
    assert "BadHttpMessage" in malformed["refusal"]
    assert datetime.datetime.fromisoformat(first["time"]).utcoffset() == datetime.timedelta(0)


def test_metrics_count_by_model_and_status(exports: pathlib.Path):
    with running({name: exports / name for name in ("size", "length")}) as (_, client):
        client.predict("size", {"instances": ["ab"]})
        client.predict("size", {"instances": [3]})
        client.predict("unknown" * 3, {"instances": ["ab"]})
        answers = client.predict("length", {"instances": ["x" * 99, "x" * 101, "x" * 200]}).json["predictions"]
        client.get("/nowhere")
        answer = client.get("/metrics")
        text = answer.body.decode()
        assert read_metric(client, "official_bert_version", "size") == 1
        assert read_metric(client, "official_bert_texts_cut_total", "length") == 2
    for line in (
        *(f'requests_total{{action="predict",model="size",status="{status}"}} 1.0' for status in (200, 400)),
        'requests_total{action="predict",model="",status="404"} 1.0',
        'requests_total{action="unknown",model="",status="404"} 1.0',
        'request_seconds_count{action="predict",model="size"} 2.0',
        'batch_seconds_count{model="size"} 1.0',
        'queue_seconds_count{model="length"} 3.0',
        'loads_total{model="size",result="loaded"} 1.0',
    ):
        assert f"\nofficial_bert_{line}\n" in text
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4;")
    assert "unknownunknown" not in text  # names sent by clients must not create time series
    assert [answer["is_truncated"] for answer in answers] == [False, True, True]


def test_openapi_describes_every_model_with_its_limits(exports: pathlib.Path):
    with running({"answers": exports / "answers"}, max_instances=7) as (_, client):
        description = client.get("/openapi.json").json
    assert {path for path in description["paths"] if path.endswith(":predict")} == {
        f"/v1/models/answers{place}:predict" for place in ("", "/versions/1")
    }
    operation = description["paths"]["/v1/models/answers:predict"]["post"]
    rows, _ = operation["requestBody"]["content"]["application/json"]["schema"]["anyOf"]
    instances = rows["properties"]["instances"]
    assert (instances["minItems"], instances["maxItems"]) == (1, 7)
    row = instances["items"]["anyOf"][0]
    assert row["required"] == ["context", "question"]
    assert row["properties"]["question"] == {"type": "string", "maxLength": 100_000}
    forms = openapi._forms({"text": {"type": "string"}}, ["title", "body"], accepts_others=True)["anyOf"]
    assert [form.get("required") for form in forms] == [["text"], ["title", "body"], None]
    assert operation["summary"] == "Answers: answer, end, null_score_difference, probability, start"
    assert "security" not in description


def test_openapi_describes_tensors_of_any_type():
    options = ServingOptions(["m=/m"], max_body_bytes=50)
    byte = {"type": "integer", "minimum": -128, "maximum": 127}
    pairs = {"type": "array", "items": byte, "minItems": 2, "maxItems": 2}
    expected = {"type": "array", "items": pairs, "minItems": 0, "maxItems": 50}
    assert openapi._value(Tensor("int8", (None, None, 2)), options) == expected
    assert openapi._value(Tensor("bool", (None,)), options) == {"type": "boolean"}


def test_openapi_requires_the_token_except_for_health_checks_and_public_metrics():
    for public_metrics in (False, True):
        paths = openapi.describe([], ServingOptions(["m=/m"], public_metrics=public_metrics), needs_token=True)["paths"]
        needed = {path: "security" not in paths[path]["get"] for path in ("/healthz", "/metrics", "/v1/models")}
        assert needed == {"/healthz": False, "/metrics": not public_metrics, "/v1/models": True}


def schemathesis(client: Client, *flags: str) -> str:
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{client.url}/openapi.json", "--no-color",
               "--generation-deterministic", *flags]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_the_server_conforms_to_its_openapi_description(exports: pathlib.Path):
    with running({"size": exports / "size"}, max_instances=20, max_text_bytes=200) as (_, client):
        told = schemathesis(client, "--checks=all", "--max-examples=40")
    assert "No issues found" in told
    models = {name: exports / name for name in ("answers", "endings")}
    with running(models, max_instances=20, max_text_bytes=200) as (_, client):
        # OpenAPI cannot express that columns have equal length, so some requests that it allows are refused.
        flags = ["--exclude-checks=positive_data_acceptance", "--max-examples=20", "--include-path-regex=predict"]
        schemathesis(client, "--checks=all", *flags)


def test_a_model_without_a_name_gets_the_name_of_its_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    models = ["exports/mine", "gs://bucket/exports/remote/", "name=exports/other", ".", "root=/"]
    folders = ["exports/mine", "gs://bucket/exports/remote", "exports/other", ".", "/"]
    names = ["mine", "remote", "name", "here", "root"]
    assert ServingOptions(models).folders() == dict(zip(names, folders, strict=True))
