"""The server of `python -m serve`, over HTTP, with small SavedModels in place of BERT."""

import base64
import concurrent.futures
import contextlib
import gzip
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.export.warmup import EXAMPLES, warmup_requests
from official_bert.inference.exports import WARMUP_FILE
from official_bert.serving.models import PARALLEL_BATCHES
from official_bert.serving.options import TOKEN_VARIABLE, Options
from official_bert.serving.saved_model import SavedModel
from tests.conftest import ROOT
from tests.serving import served_models
from tests.serving.serving_client import Client, eventually, head_of, running, sent

LIMITS = {"max_instances": 8, "max_text_bytes": 1000, "max_body_bytes": 20_000}


@pytest.fixture(scope="module")
def client(exports: pathlib.Path):
    with running({name: exports / name for name in served_models.ALL}, label=["length:stable=1"], **LIMITS) as (
        _,
        client,
    ):
        yield client


# TensorFlow Serving's API.


def test_rows_are_answered_in_rows(client: Client):
    answer = client.predict("length", {"instances": ["abcd", {"text": "x" * 80}]})
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json"
    first, second = answer.json["predictions"]
    assert first == {"label": "short", "probability": 0.96, "labels": ["short", "long"], "probabilities": [0.96, 0.04]}
    assert second["label"] == "long"


def test_columns_are_answered_in_columns(client: Client):
    for inputs in (["abcd", "ab"], {"text": ["abcd", "ab"]}):
        answer = client.predict("length", {"inputs": inputs, "signature_name": "serving_default"})
        assert answer.json["outputs"]["probability"] == [0.96, 0.98]
    pair = {"inputs": {"text": ["ab"], "text_pair": ["abc"]}}
    assert client.predict("pair", pair).json["outputs"]["probabilities"] == [[0.02, 0.03]]


def test_a_signature_with_one_output_answers_without_its_name(client: Client):
    assert client.predict("size", {"instances": ["ab"]}).json == {"predictions": [1002.0]}
    assert client.predict("size", {"inputs": ["ab"]}).json == {"outputs": [1002.0]}


def test_ids_are_taken_by_serving_ids(client: Client):
    row = {"input_ids": [5, 6, 7], "input_mask": [1, 1, 0], "segment_ids": [0, 1, 0]}
    answer = client.predict("length", {"signature_name": "serving_ids", "instances": [row]})
    assert answer.json == {"predictions": [12]}


def test_base64_stands_for_a_string(client: Client):
    encoded = {"b64": base64.b64encode("Ünder".encode()).decode()}
    for instance in (encoded, {"text": encoded}):
        assert client.predict("size", {"instances": [instance]}).json == {"predictions": [1006.0]}


def test_models_with_several_or_nested_inputs_are_asked_by_name(client: Client):
    row = {"question": "what?", "context": "Über alles"}
    assert client.predict("answers", {"instances": [row]}).json["predictions"][0]["answer"] == "Über"
    row = {"prompt": "p", "endings": ["a", "bb", "cccc", "d"]}
    assert client.predict("endings", {"instances": [row]}).json["predictions"][0]["choice"] == 2


def test_answers_are_padded_to_the_widest_of_the_request_alone(client: Client):
    assert client.predict("names", {"instances": ["Anna", "I saw Bob"]}).json["predictions"][0] == {
        "words": ["Anna", "", ""], "tags": ["NAME", "", ""], "starts": [0, -1, -1], "ends": [4, -1, -1],
        "probabilities": [0.75, 0.0, 0.0],
    }  # fmt: skip
    alone = client.predict("names", {"instances": ["Anna"]}).json["predictions"][0]
    assert alone["words"] == ["Anna"]


def test_texts_without_a_mask_have_no_candidates(client: Client):
    nothing = {"tokens": [], "probabilities": []}
    assert client.predict("mask", {"instances": ["none"]}).json == {"predictions": [nothing]}
    first, second = client.predict("mask", {"instances": ["none", "a [MASK]"]}).json["predictions"]
    assert first == {"tokens": [[""] * 5], "probabilities": [[0.0] * 5]}
    assert second["tokens"][0][:2] == ["paris", "lyon"]


def test_status_metadata_and_models_are_told(client: Client):
    available = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    for path in ("/v1/models/length", "/v1/models/length/versions/1", "/v1/models/length/labels/stable"):
        assert client.get(path).json == {"model_version_status": [available]}
    metadata = client.get("/v1/models/length/metadata").json
    assert metadata["model_spec"] == {"name": "length", "signature_name": "", "version": "1"}
    signatures = metadata["metadata"]["signature_def"]["signature_def"]
    shape = {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}
    text = signatures["serving_default"]["inputs"]["text"]
    assert (text["dtype"], text["tensor_shape"]) == ("DT_STRING", shape)
    models = {each["name"]: each for each in client.get("/v1/models").json["models"]}
    assert models["answers"]["inputs"] == ["question", "context"]
    assert models["length"]["labels"] == ["short", "long"]


def test_versions_and_labels_are_addressed(client: Client):
    for place in ("length/versions/1", "length/labels/stable"):
        answer = client.predict(place, {"instances": ["ab"]})
        assert (answer.status, answer.headers["X-Model-Version"]) == (200, "1")


@pytest.mark.parametrize(("method", "path", "status", "message"), [
    ("POST", "/v1/models/none:predict", 404, "there is no model 'none'; there are length"),
    ("GET", "/v1/models/none", 404, "there is no model 'none'"),
    ("GET", "/v1/models/length/versions/7", 404, "version 7 of length is not served; there are 1"),
    ("POST", "/v1/models/length/versions/99999999999999999999:predict", 404, "is not served"),
    ("GET", "/v1/models/length/labels/none/metadata", 404, "no label 'none'; there are stable"),
    ("POST", "/v1/models/length:classify", 400, "use :predict"),
    ("GET", "/v1/models/length:predict", 405, "use POST"),
    ("POST", "/healthz", 405, "use GET"),
    ("GET", "/nowhere", 404, "there is nothing at /nowhere"),
    ("GET", "/../../etc/passwd", 404, "there is nothing"),
    ("GET", "/%ff%00", 404, "there is nothing"),
])  # fmt: skip
def test_wrong_addresses_are_refused(client: Client, method: str, path: str, status: int, message: str):
    answer = client.send(method, path, "{}")
    assert (answer.status, message in answer.error) == (status, True), answer.body


IDS = {"input_ids": [1, 2], "input_mask": [1, 1], "segment_ids": [0, 0]}


def ids(rows=None, columns=None) -> dict:
    asked = {"instances": rows} if rows else {"inputs": columns}
    return {"signature_name": "serving_ids"} | asked


@pytest.mark.parametrize(("body", "status", "message"), [
    (b"", 400, "is not JSON"),
    (b'{"instances": ["a"', 400, "is not JSON"),
    (b'{"instances": ["\xff"]}', 400, "not UTF-8: byte 0xff at 16"),
    (b'{"instances": ["\\ud800"]}', 400, "is not JSON"),
    (b"[" * 15_000, 400, "is not JSON"),
    (b'{"instances": [NaN]}', 400, "is not JSON"),
    ([], 400, "is a list; expected an object"),
    ({}, 400, "expected either"),
    ({"instances": ["a"], "inputs": ["a"]}, 400, "expected either"),
    ({"instances": ["a"], "signature": "x"}, 400, 'unknown key "signature"'),
    ({"instances": ["a"], "signature_name": "x"}, 400, "has serving_default, serving_ids"),
    ({"instances": ["a"], "signature_name": 3}, 400, "expected a string"),
    ({"instances": []}, 400, "expected a list with one or more"),
    ({"instances": "a"}, 400, "expected a list with one or more"),
    ({"instances": [3]}, 400, "text has 3; expected a string"),
    ({"instances": ["a", None]}, 400, "text has null"),
    ({"instances": [["a"]]}, 400, 'text has ["a"]'),
    ({"instances": [{"words": "a"}]}, 400, "instances[0] lacks text"),
    ({"instances": [{"text": "a", "more": "b"}]}, 400, 'instances[0] has "more"'),
    ({"instances": [{"b64": "?"}]}, 400, "is not base64"),
    ({"instances": [{"b64": "/w=="}]}, 400, "b64 that is not UTF-8: byte 0xff"),
    ({"inputs": "a"}, 400, "inputs.text is a string; expected a list"),
    ({"inputs": {"text": []}}, 400, "empty list"),
    ({"instances": ["!"]}, 400, "the model refuses the input: assertion failed: [no ! please]"),
    ({"instances": ["a"] * 9}, 400, "9 instances; at most 8"),
    ({"inputs": ["a"] * 9}, 400, "9 instances; at most 8"),
    ({"instances": ["é" * 501]}, 400, "a text of 1002 bytes; at most 1000"),
    ({"instances": ["a" * 30_000]}, 413, "larger than 20000 bytes"),
    (ids([IDS | {"input_ids": [1, 2.5]}]), 400, "has 2.5; expected an integer"),
    (ids([IDS | {"input_ids": [1, True]}]), 400, "has true; expected an integer"),
    (ids([IDS | {"input_ids": [1, 2**31]}]), 400, "int32 holds"),
    (ids([IDS | {"input_ids": [1, 2**70]}]), 400, "expected an integer"),
    (ids([IDS | {"input_ids": 1}]), 400, "input_ids is a number; expected a list"),
    (ids([IDS, {name: [1] for name in IDS}]), 400, "has shape [2] in instances[0]"),
    (ids(columns={name: [[1, 2], [1]] for name in IDS}), 400, "lists of different lengths"),
    (ids(columns={name: [[1]] * (1 + (name == "input_ids")) for name in IDS}), 400,
     "different numbers of instances"),
    (ids([IDS | {"input_ids": [1, 2, 3]}]), 400,
     "the model refuses the input"),
])  # fmt: skip
def test_wrong_requests_are_refused_and_say_why(client: Client, body, status: int, message: str):
    answer = client.predict("length", body)
    assert (answer.status, message in answer.error) == (status, True), answer.body
    assert client.predict("length", {"instances": ["abcd"]}).status == 200


def test_a_model_with_a_fixed_shape_says_which(client: Client):
    answer = client.predict("endings", {"instances": [{"prompt": "p", "endings": ["a", "b"]}]})
    assert (answer.status, answer.error) == (400, "endings has shape [2] for each instance; expected [4]")


def test_a_compressed_request_is_limited_by_what_it_unpacks_to(client: Client):
    small = gzip.compress(json.dumps({"instances": ["abcd"]}).encode())
    assert client.predict("length", small, **{"Content-Encoding": "gzip"}).status == 200
    bomb = gzip.compress(b" " * 10_000_000)
    assert len(bomb) < 20_000
    assert client.predict("length", bomb, **{"Content-Encoding": "gzip"}).status == 413
    assert client.predict("length", b"no gzip", **{"Content-Encoding": "gzip"}).status == 400


# Clients that misbehave.


@pytest.fixture(scope="module")
def hasty(exports: pathlib.Path):
    """A client of a server that waits for a second only."""
    with running({"length": exports / "length"}, timeout_seconds=1.0) as (_, client):
        yield client


def test_a_body_that_does_not_arrive_is_given_up(hasty: Client):
    head = head_of("length", 100) + b"{"
    with sent(hasty, head) as connection:
        answer = connection.makefile("rb").read()  # to the end: the server closes
    assert b" 408 " in answer.splitlines()[0]
    assert b"did not arrive within 1 seconds" in answer


def test_a_connection_that_says_nothing_is_closed(hasty: Client):
    for start in (b"", b"GET / HTTP/1.1\r\nX-Slow: "):
        with sent(hasty, start) as connection:
            assert connection.makefile("rb").read() == b""


def test_a_body_far_too_large_is_refused_before_it_has_arrived(client: Client):
    head = head_of("length", 99999999999) + b"{"
    with sent(client, head) as connection:
        assert b" 413 " in connection.makefile("rb").readline()


def test_bytes_that_are_no_http_are_refused(client: Client):
    with sent(client, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n") as connection:
        assert b" 400 " in connection.makefile("rb").readline()
    assert client.get("/healthz").status == 200


def test_clients_that_go_away_harm_nobody(client: Client):
    body = json.dumps({"instances": ["abcd"] * 8}).encode()
    head = head_of("length", len(body))
    for _ in range(20):
        sent(client, head + body).close()
        sent(client, head + body[:50]).close()
        assert client.predict("length", {"instances": ["abcd"]}).json["predictions"][0]["probability"] == 0.96


def test_a_signature_whose_outputs_are_no_rows_answers_in_columns(tmp_path: pathlib.Path):
    served_models.encoder(tmp_path)
    with running({"encoder": tmp_path}) as (_, client):
        asked = {"signature_name": "tokenize", "inputs": ["ab", "c"]}
        assert client.predict("encoder", asked).json["outputs"] == [97, 98, 99]
        answer = client.predict("encoder", {"signature_name": "tokenize", "instances": ["ab", "c"]})
        assert (answer.status, "which are no rows; ask for columns" in answer.error) == (400, True)


# Batches.


def test_what_an_encoder_says_of_a_text_does_not_depend_on_its_batch(tmp_path: pathlib.Path):
    served_models.encoder(tmp_path)
    texts = ["x" * (1 + i % 9) for i in range(100)]
    serving = running({"encoder": tmp_path}, max_wait_ms=20.0)
    with serving as (_, client), concurrent.futures.ThreadPoolExecutor(32) as threads:
        answers = list(threads.map(lambda text: client.predict("encoder", {"instances": [text]}).json, texts))
    for text, answer in zip(texts, answers, strict=True):
        expected = {"input_mask": [1] * len(text), "sequence_output": [[120.0]] * len(text)}
        assert answer == {"predictions": [expected]}


def test_requests_at_the_same_time_share_batches_and_each_gets_its_own_answer(exports: pathlib.Path):
    texts = ["x" * (1 + 37 * i % 900) for i in range(300)]
    with running({"size": exports / "size"}, max_wait_ms=20.0) as (_, client):
        with concurrent.futures.ThreadPoolExecutor(32) as threads:
            answers = list(threads.map(lambda text: client.predict("size", {"instances": [text]}).json, texts))
        metrics = client.get("/metrics").body.decode()
    assert answers == [{"predictions": [1000.0 + len(text)]} for text in texts]
    batches = float(metrics.split('official_bert_batch_size_count{model="size"} ')[1].split()[0])
    instances = float(metrics.split('official_bert_batch_size_sum{model="size"} ')[1].split()[0])
    assert instances == len(texts)
    assert batches < len(texts)


def test_an_instance_that_the_model_refuses_harms_no_other_of_its_batch(exports: pathlib.Path):
    texts = ["!" if i % 7 == 3 else "abcd" for i in range(140)]
    serving = running({"length": exports / "length"}, max_wait_ms=20.0)
    with serving as (_, client), concurrent.futures.ThreadPoolExecutor(32) as threads:
        answers = list(threads.map(lambda text: client.predict("length", {"instances": [text]}).status, texts))
    assert answers == [400 if text == "!" else 200 for text in texts]


# More than the model can do.


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch):
    """Models compute while it is set; it is, to begin with."""
    opened = threading.Event()
    opened.set()
    run = SavedModel.run

    def waits(self, *given):
        assert opened.wait(60)
        return run(self, *given)

    monkeypatch.setattr(SavedModel, "run", waits)
    yield opened
    opened.set()


def waiting(client: Client) -> float:
    text = client.get("/metrics").body.decode()
    return float(text.split('official_bert_waiting{model="size"} ')[1].split()[0])


def test_a_full_queue_refuses_and_says_when_to_come_back(exports: pathlib.Path, gate: threading.Event):
    limits = {"max_batch_size": 1, "max_queue": 4, "max_instances": 4}
    serving = running({"size": exports / "size"}, **limits)
    with serving as (_, client), concurrent.futures.ThreadPoolExecutor(6) as threads:
        assert value(client) == 1002
        gate.clear()
        # As many as are computed at a time, and then as many as may wait.
        asked = [threads.submit(value, client) for _ in range(PARALLEL_BATCHES + limits["max_queue"])]
        assert eventually(lambda: waiting(client) == limits["max_queue"])
        refused = client.predict("size", {"instances": ["ab"]})
        assert (refused.status, refused.error) == (429, "4 instances wait for size already; try again later")
        assert 1 <= int(refused.headers["Retry-After"]) <= 60
        assert client.get("/readyz").status == 200
        gate.set()
        assert [each.result() for each in asked] == [1002] * len(asked)
        assert value(client) == 1002


def test_an_answer_that_takes_too_long_is_given_up(exports: pathlib.Path, gate: threading.Event):
    with running({"size": exports / "size"}, timeout_seconds=0.3, max_batch_size=1) as (_, client):
        gate.clear()
        for _ in range(PARALLEL_BATCHES + 1):  # the last one while it waits for its turn
            answer = client.predict("size", {"instances": ["ab"]})
            assert (answer.status, answer.error) == (504, "no answer within 0.3 seconds; send less at once")
        gate.set()
        assert eventually(lambda: waiting(client) == 0)
        assert value(client) == 1002


def test_a_model_that_is_not_loaded_yet_asks_to_come_back(exports: pathlib.Path):
    with running({"size": exports / "size"}, reload_seconds=1000.0) as (server, client):
        server.models["size"].versions.clear()
        for answer in (client.predict("size", {"instances": ["ab"]}), client.get("/readyz")):
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")


# Versions.


def value(client: Client, place: str = "size") -> float | None:
    answer = client.predict(place, {"instances": ["ab"]})
    return answer.json["predictions"][0] if answer.status == 200 else None


def test_a_new_version_takes_over_without_a_lost_request(tmp_path: pathlib.Path):
    served_models.versioned(tmp_path, 1)
    with running({"size": tmp_path}) as (server, client), concurrent.futures.ThreadPoolExecutor(4) as threads:
        stop = False

        def ask() -> list[float | None]:
            values = []
            while not stop:
                values.append(value(client))
            return values

        asking = [threads.submit(ask) for _ in range(4)]
        for version in (2, 3):
            served_models.versioned(tmp_path, version)
            assert eventually(lambda version=version: value(client) == 1000 * version + 2)
        stop = True
        for each in asking:
            values = each.result()
            assert values == sorted(values)  # none is None, and none goes back
            assert set(values) <= {1002, 2002, 3002}
        assert eventually(
            lambda: [each.state for each in server.models["size"].versions.values()] == ["END", "END", "AVAILABLE"]
        )
        assert client.get("/v1/models/size/versions/1").status == 404
        assert server.models["size"].versions[1].model is None


def test_a_request_that_arrives_while_versions_change_gets_the_new_one(tmp_path: pathlib.Path):
    served_models.versioned(tmp_path, 1)
    body = json.dumps({"instances": ["ab"]}).encode()
    head = head_of("size", len(body))
    with running({"size": tmp_path}) as (server, client), sent(client, head + body[:5]) as connection:
        served_models.versioned(tmp_path, 2)
        assert eventually(lambda: server.models["size"].versions[1].model is None)
        connection.sendall(body[5:])
        with connection.makefile("rb") as answer:
            assert b" 200 " in answer.readline()


def test_a_damaged_version_is_passed_over_until_it_is_whole(tmp_path: pathlib.Path):
    served_models.versioned(tmp_path, 1)
    with running({"size": tmp_path}) as (_, client):
        whole = served_models.versioned(tmp_path / "elsewhere", 2)
        (tmp_path / "2").mkdir()
        shutil.copy(whole / "saved_model.pb", tmp_path / "2")
        assert eventually(lambda: "END" in client.get("/v1/models/size").body.decode())
        status = client.get("/v1/models/size").json["model_version_status"][0]
        assert status["version"] == "2"
        assert "cannot be loaded" in status["status"]["error_message"]
        assert value(client) == 1002
        shutil.copytree(whole / "variables", tmp_path / "2" / "variables")
        assert eventually(lambda: value(client) == 2002)


def write_warmup_file(version: pathlib.Path, content: bytes) -> None:
    (version / WARMUP_FILE).write_bytes(content)


def test_a_version_is_warmed_up_by_its_own_requests(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    asked = []
    run = SavedModel.run
    monkeypatch.setattr(SavedModel, "run", lambda self, *given: asked.append(given) or run(self, *given))
    content = warmup_requests({"text": tf.TensorSpec([None], tf.string)})
    write_warmup_file(served_models.versioned(tmp_path, 1), content)
    with running({"size": tmp_path}):
        pass
    assert [signature for signature, _ in asked] == ["serving_default"] * len(EXAMPLES)
    assert [inputs["text"].tolist() for _, inputs in asked] == [[text.encode()] for text in EXAMPLES]


@pytest.mark.parametrize(("content", "message"), [
    (lambda whole: whole[:-1], "cannot be read as requests to warm up by"),
    (lambda whole: warmup_requests({"words": tf.TensorSpec([None], tf.string)}), "cannot answer request 1 of its"),
])  # fmt: skip
def test_a_version_that_cannot_be_warmed_up_is_passed_over_until_it_can(
    content: Callable[[bytes], bytes], message: str, tmp_path: pathlib.Path
):
    whole = warmup_requests({"text": tf.TensorSpec([None], tf.string)})
    served_models.versioned(tmp_path, 1)
    version = served_models.versioned(tmp_path / "elsewhere", 2)
    write_warmup_file(version, content(whole))
    with running({"size": tmp_path}) as (_, client):
        version = version.rename(tmp_path / "2")
        assert eventually(lambda: message in client.get("/v1/models/size").body.decode())
        assert value(client) == 1002
        write_warmup_file(version, whole)
        assert eventually(lambda: value(client) == 2002)


def test_taking_the_newest_version_away_brings_the_one_before_back(tmp_path: pathlib.Path):
    served_models.versioned(tmp_path, 1)
    served_models.versioned(tmp_path, 2)
    with running({"size": tmp_path}) as (_, client):
        assert value(client) == 2002
        (tmp_path / "2").rename(tmp_path / "taken-away")
        assert eventually(lambda: value(client) == 1002)
        (tmp_path / "1").rename(tmp_path / "taken-away-too")
        time.sleep(0.5)
        assert value(client) == 1002  # the last one goes on


def test_several_versions_and_labelled_ones_stay(tmp_path: pathlib.Path):
    for version in (1, 2, 3, 4):
        served_models.versioned(tmp_path, version)
    with running({"size": tmp_path}, versions=2, label=["size:stable=1"]) as (_, client):
        places = ("size", "size/versions/3", "size/versions/2", "size/labels/stable")
        assert [value(client, place) for place in places] == [4002, 3002, None, 1002]


# The server as a whole.


def test_the_token_guards_all_but_health_and_the_page(exports: pathlib.Path, tmp_path: pathlib.Path):
    (tmp_path / "token").write_text("s3cret\n")
    with running({"size": exports / "size"}, token_file=str(tmp_path / "token")) as (_, client):
        for path in ("/healthz", "/readyz", "/", "/page.js"):
            assert client.get(path).status == 200
        for path in ("/v1/models", "/v1/models/size", "/metrics", "/openapi.json"):
            assert client.get(path).status == 401
            assert client.get(path, Authorization="Bearer s3cret").status == 200
        body = {"instances": ["ab"]}
        for header in ("s3cret", "Bearer S3cret", "Basic s3cret", "Bearer s3cret2", "Bearer ", "Bearer \xe9"):
            answer = client.predict("size", body, Authorization=header)
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert client.predict("size", body, Authorization="Bearer s3cret").status == 200


def test_the_token_comes_from_the_environment_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "abc")
    assert Options(model=["a=b"]).token() == "abc"
    monkeypatch.setenv(TOKEN_VARIABLE, " ")
    with pytest.raises(UserError, match="holds no token"):
        Options(model=["a=b"]).token()


@pytest.mark.parametrize(("options", "message"), [
    ({"model": ["size"]}, "give NAME=FOLDER"),
    ({"model": ["a/b=c"]}, "give NAME=FOLDER"),
    ({"model": ["a=b", "a=c"]}, "names a twice"),
    ({"port": 70000}, "the highest is 65535"),
    ({"max_wait_ms": -1.0}, "give 0 or more"),
    ({"timeout_seconds": 0.0}, "give more than 0"),
    ({"max_queue": 10}, "could never be answered"),
    ({"label": ["a:x"]}, "give NAME:LABEL=VERSION"),
    ({"label": ["b:x=1"]}, "there is no model b"),
])  # fmt: skip
def test_options_that_cannot_be_are_refused(options: dict, message: str):
    with pytest.raises(UserError, match=message):
        Options(**({"model": ["a=b"]} | options))


def test_folders_without_a_model_are_refused(tmp_path: pathlib.Path):
    served_models.versioned(tmp_path / "good", 1)
    (tmp_path / "damaged" / "1").mkdir(parents=True)
    (tmp_path / "damaged" / "1" / "saved_model.pb").write_bytes(b"no model")
    for folder, message in (
        ("none", "there is no such folder"),
        (".", "has no versions"),
        ("good/1", "give the folder above it"),
        ("damaged", "no version of m can be loaded; version 1: .*damaged/1 cannot be loaded"),
    ):
        with pytest.raises(UserError, match=message), running({"m": tmp_path / folder}):
            pass


@pytest.mark.slow
def test_a_taken_port_is_refused(exports: pathlib.Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [
            sys.executable,
            "-m",
            "official_bert_cli",
            "serve",
            f"--model=size={exports / 'size'}",
            f"--port={taken.getsockname()[1]}",
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: cannot listen at 127.0.0.1, port")
    assert "Traceback" not in done.stderr


def test_sigterm_answers_what_is_under_way_and_ends(exports: pathlib.Path):
    command = [sys.executable, "-m", "official_bert_cli", "serve", f"--model=size={exports / 'size'}", "--port=0"]
    # Without TensorFlow's own remarks, which a user does not get either.
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
        body = json.dumps({"instances": ["abcd"]}).encode()
        head = head_of("size", len(body))
        with sent(client, head + body[:10]) as connection:
            assert eventually(lambda: "requests_under_way 2.0" in client.get("/metrics").body.decode())
            os.kill(process.pid, signal.SIGTERM)
            time.sleep(0.5)
            with pytest.raises(OSError, match="refused"):
                client.get("/healthz")
            connection.sendall(body[10:])
            assert connection.makefile("rb").read().endswith(b'{"predictions":[1004.0]}')
        lines += [json.loads(line) for line in process.stderr]
        assert process.wait() == 0
    assert [each["event"] for each in lines[-3:]] == ["draining", "request", "stopped"]
    assert lines[-2]["status"] == 200


def test_metrics_count_by_model_and_status(exports: pathlib.Path):
    with running({"size": exports / "size"}) as (_, client):
        client.predict("size", {"instances": ["ab"]})
        client.predict("size", {"instances": [3]})
        client.predict("unknown" * 3, {"instances": ["ab"]})
        text = client.get("/metrics").body.decode()
    assert 'official_bert_requests_total{action="predict",model="size",status="200"} 1.0' in text
    assert 'official_bert_requests_total{action="predict",model="size",status="400"} 1.0' in text
    assert 'official_bert_version{model="size"} 1.0' in text
    assert "unknownunknown" not in text  # names that anyone may send make no series


def test_nothing_of_the_server_lets_a_page_run_foreign_code(client: Client):
    for path in ("/", "/page.js", "/page.css", "/v1/models", "/nowhere"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in headers


def test_a_folder_named_009_is_version_9(tmp_path: pathlib.Path):
    served_models.versioned(tmp_path, 9).rename(tmp_path / "009")
    with running({"size": tmp_path}) as (_, client):
        assert value(client) == 9002
        assert value(client, "size/versions/9") == 9002


@pytest.mark.parametrize("place", ["size/versions/" + "9" * 5000, "size/versions/" + "9" * 5000 + "/metadata"])
def test_a_version_of_thousands_of_digits_is_not_served(client: Client, place: str):
    answer = client.get(f"/v1/models/{place}")
    assert answer.status == 404
    assert len(answer.error) < 200
