"""The server's HTTP endpoints, with small SavedModels in place of BERT."""

import base64
import logging
import pathlib
from typing import Any

import pytest

from official_bert.serving import json_api
from tests.serving.serving_client import Client, make_head, running, sent

TEXTS = {"instances": ["abcd"]}


SUMS = {"signature_name": "serving_ids"}
IDS = {"input_ids": [5, 6, 7], "input_mask": [1, 1, 0], "segment_ids": [0, 1, 0]}
ENCODED = {"b64": base64.b64encode("Ünder".encode()).decode()}
LONG_ANSWER = {"label": "long", "probability": 0.8, "labels": ["short", "long"], "probabilities": [0.2, 0.8]}
NAMES = {"words": ["Anna", "", ""], "tags": ["NAME", "", ""], "starts": [0, -1, -1], "ends": [4, -1, -1]}
NAMES["probabilities"] = [0.75, 0.0, 0.0]


@pytest.mark.parametrize(("model", "request_", "expected"), [
    ("length", {"instances": ["abcd", {"text": "x" * 80}]}, {"predictions": [
        {"label": "short", "probability": 0.96, "labels": ["short", "long"], "probabilities": [0.96, 0.04],
         "is_truncated": False}, LONG_ANSWER | {"is_truncated": False}]}),
    *(("length", {"inputs": inputs, "signature_name": name}, {"outputs": {"probability": [0.96, 0.98]}})
      for inputs, name in ((["abcd", "ab"], "serving_default"), ({"text": ["abcd", "ab"]}, ""))),
    ("pair", {"inputs": {"text": ["ab"], "text_pair": ["abc"]}}, {"outputs": {"probabilities": [[0.02, 0.03]]}}),
    # A signature with one output answers without its name.
    ("size", {"instances": ["ab"]}, {"predictions": [1002.0]}),
    ("size", {"inputs": ["ab"]}, {"outputs": [1002.0]}),
    ("size", {"instances": [ENCODED, {"text": ENCODED}]}, {"predictions": [1006.0, 1006.0]}),
    ("length", {**SUMS, "instances": [IDS]}, {"predictions": [12]}),
    # Several or nested inputs.
    ("answers", {"instances": [{"question": "a?", "context": "Über alles"}]}, {"predictions": [{"answer": "Über"}]}),
    ("endings", {"instances": [{"prompt": "p", "endings": ["a", "bb", "ccc", "d"]}]}, {"predictions": [{"choice": 2}]}),
    # Answers are padded to the widest answer of the same request.
    ("names", {"instances": ["Anna", "I saw Bob"]}, {"predictions": [NAMES, {"tags": ["NAME", "O", "NAME"]}]}),
    ("names", {"instances": ["Anna"]}, {"predictions": [{name: value[:1] for name, value in NAMES.items()}]}),
    ("mask", {"instances": ["none"]}, {"predictions": [{"tokens": [], "probabilities": []}]}),
    ("mask", {"instances": ["none", "a [MASK]"]},
     {"predictions": [{"tokens": [[""] * 5], "probabilities": [[0.0] * 5]}, {}]}),
    # A signature whose outputs have no batch dimension.
    ("encoder", {"signature_name": "tokenize", "inputs": ["ab", "c"]}, {"outputs": [97, 98, 99]}),
])  # fmt: skip
def test_responses_have_the_row_or_column_form_of_requests(client: Client, model: str, request_: Any, expected: Any):
    answer = client.predict(model, request_)
    assert answer.status == 200
    assert (answer.headers["Content-Type"], answer.headers["X-Model-Version"]) == ("application/json", "1")
    assert answer.json.keys() == expected.keys()
    assert_contains(answer.json, expected)


def assert_contains(actual: Any, expected: Any) -> None:
    """Checks that a JSON value equals another, apart from further keys of inner objects."""
    if isinstance(expected, dict | list):
        assert isinstance(expected, dict) or len(actual) == len(expected)
        for key, inner in expected.items() if isinstance(expected, dict) else enumerate(expected):
            assert_contains(actual[key], inner)
    else:
        assert actual == pytest.approx(expected)


def test_status_metadata_and_models_are_returned(client: Client):
    available = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    for path in ("/v1/models/length", "/v1/models/length/versions/1"):
        assert client.get(path).json == {"model_version_status": [available]}
    assert client.predict("length/versions/1", TEXTS).headers["X-Model-Version"] == "1"
    metadata = client.get("/v1/models/length/metadata").json
    assert metadata["model_spec"] == {"name": "length", "signature_name": "", "version": "1"}
    signature = metadata["metadata"]["signature_def"]["signature_def"]["serving_default"]
    shape = {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}
    assert signature["inputs"]["text"].items() >= {"dtype": "DT_STRING", "tensor_shape": shape}.items()
    assert signature["outputs"]["probability"]["dtype"] == "DT_FLOAT"
    models = {each["name"]: each for each in client.get("/v1/models").json["models"]}
    assert models["endings"]["num_choices"] == 4
    assert models["answers"]["inputs"] == ["question", "context"]
    assert models["length"]["labels"] == ["short", "long"]


@pytest.mark.parametrize(("method", "path", "status", "names"), [
    ("POST", "/v1/models/none:predict", 404, ("'none'", "length")),
    ("GET", "/v1/models/length/versions/7", 404, (7, "length", 1)),
    ("GET", "/v1/models/length/versions/0", 404, (0, "length", 1)),
    ("GET", f"/v1/models/length/versions/{'9' * 5000}", 404, ()),
    ("POST", "/v1/models/length:classify", 404, ("/v1/models/length:classify",)),
    ("GET", "/v1/models/length:predict", 405, ("GET", "/v1/models/length:predict", "POST")),
    ("POST", "/healthz", 405, ("POST", "/healthz", "GET,HEAD")),
    ("GET", "/nowhere", 404, ("/nowhere",)),
    ("GET", "/%ff%00", 404, ("/openapi.json",)),
])  # fmt: skip
def test_unknown_paths_are_rejected(client: Client, method: str, path: str, status: int, names: tuple):
    answer = client.send(method, path, "{}")
    answer.assert_rejected(status, *names)
    assert answer.headers["Allow"] == (names[-1] if status == 405 else None)
    assert len(answer.json["error"]) < 200


@pytest.mark.parametrize(("body", "status", "names"), [
    (b'{"instances": ["a"', 400, ["JSON"]),
    (b'{"instances": ["\xff"]}', 400, ["UTF-8", "0xff", 16]),
    (b'{"instances": ["\\ud800"]}', 400, ["JSON"]),
    ([], 400, ["list", "object"]),
    ({}, 400, ["either", '{"instances": [...]}', '{"inputs": ...}']),
    ({"instances": ["a"], "inputs": ["a"]}, 400, ["either", '{"instances": [...]}', '{"inputs": ...}']),
    ({"instances": ["a"], "x" * 5000: "x"}, 400, ['"' + "x" * 39 + "...", "signature_name"]),
    ({"instances": ["a"], "signature_name": "x"}, 400, ['"x"', "serving_default, serving_ids"]),
    ({"instances": ["a"], "signature_name": 3}, 400, ["signature_name", 3, "string"]),
    ({"instances": []}, 400, ["instances", [], "list"]),
    ({"instances": "a"}, 400, ["instances", '"a"', "list"]),
    ({"instances": ["a", None]}, 400, ["instances[1]", "null"]),
    ({"instances": [{"words": "a"}]}, 400, ["instances[0]", "lacks text"]),
    ({"instances": [{"b64": "YW#I="}]}, 400, ["instances[0]", '{"b64":"YW#I="}', "string"]),
    ({"instances": [{"b64": "/w=="}]}, 400, ['{"b64":"/w=="}', "string"]),  # not UTF-8
    ({"inputs": True}, 400, ["inputs.text", "boolean", "list"]),
    ({"inputs": None}, 400, ["inputs.text", "null", "list"]),
    ({"inputs": {"text": []}}, 400, ["inputs.text", "empty"]),
    ({"instances": ["!"]}, 400, ["[no ! please]"]),
    ({"instances": ["a" * 30_000]}, 413, [20000]),
    ({**SUMS, "instances": [IDS | {"input_ids": [1, 2.5, 3]}]}, 400, ["instances[0].input_ids[1]", 2.5, "integer"]),
    ({**SUMS, "inputs": {name: [[1]] * (1 + (name == "input_ids")) for name in IDS}}, 400, ["'input_ids': 2"]),
    ({**SUMS, "instances": [IDS | {"input_ids": [1, 2]}]}, 400, ["rejects"]),
])  # fmt: skip
def test_invalid_requests_are_rejected_with_a_reason(client: Client, body: Any, status: int, names: list):
    client.predict("length", body).assert_rejected(status, *names)
    assert client.predict("length", TEXTS).status == 200


CHUNKED = b"POST /v1/models/length:predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(("content", "status"), [
    (make_head("length", 10**6, "Content-Encoding: br") + b"\x1f\x8b", 415),
    (make_head("length", 10**6, "Content-Encoding: identity, gzip") + b"\x1f\x8b", 415),
    (make_head("length", 99999999999) + b"{", 413),
    (make_head("none", 100) + b"{", 404),
    (make_head("length", 20_000) + b'{"instances": ["a"]}'.ljust(20_000), 200),
    (CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (20_001, b" " * 20_001), 413),
    (CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (20_000, b'{"instances": ["a"]}'.ljust(20_000)), 200),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
])  # fmt: skip
def test_compressed_and_too_large_bodies_are_rejected_before_they_are_received(client, content: bytes, status: int):
    with sent(client, content) as connection:
        assert f" {status} ".encode() in connection.makefile("rb").readline()
    assert client.predict("length", TEXTS, **{"Content-Encoding": "Identity"}).status == 200


def test_security_headers(client: Client):
    assert client.get("/v1/models", Expect="other").headers["Server"] == "official-bert"
    with sent(client, b"no HTTP\r\n\r\n") as connection:
        assert b"\r\nServer: official-bert\r\n" in connection.makefile("rb").read()
    assert client.get("/page.css").headers["Content-Type"] == "text/css; charset=utf-8"
    for path in ("/", "/page.js", "/page.css", "/v1/models", "/nowhere", "/healthz"):
        headers = client.get(path).headers
        assert headers["Server"] == "official-bert"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in headers
        assert (headers["Referrer-Policy"], headers["Cache-Control"]) == ("no-referrer", "no-store")


def test_an_unexpected_error_is_reported_as_the_servers(client: Client, monkeypatch, caplog):
    monkeypatch.setattr(json_api, "render", lambda *_: 1 / 0)
    with caplog.at_level(logging.ERROR, "official_bert.serving"):
        assert client.predict("length", TEXTS).status == 500
    (record,) = caplog.records
    assert record.exc_info[0] is ZeroDivisionError


def test_a_body_that_does_not_arrive_times_out(exports: pathlib.Path):
    with (
        running({"length": exports / "length"}, timeout_seconds=0.3) as (_, client),
        sent(client, make_head("length", 100) + b"{") as connection,
    ):
        answer = connection.makefile("rb").read()  # reads to the end: the server closes the connection
    assert b" 408 " in answer.splitlines()[0]
    assert b"0.3" in answer
