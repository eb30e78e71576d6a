"""The server's HTTP endpoints, with small SavedModels in place of BERT."""

import base64
import concurrent.futures
import contextlib
import gzip
import json
import pathlib
import threading
import time

import pytest

from official_bert.inference.predictor import PARALLEL_BATCHES
from official_bert.inference.saved_model import SavedModelPredictor
from tests.serving import served_models
from tests.serving.serving_client import Client, eventually, make_head, running, sent, value

LIMITS = {"max_instances": 8, "max_text_bytes": 1000, "max_body_bytes": 20_000}


@pytest.fixture(scope="module")
def client(exports: pathlib.Path):
    with running({name: exports / name for name in served_models.ALL}, **LIMITS) as (_, client):
        yield client


def test_rows_are_answered_in_rows(client: Client):
    answer = client.predict("length", {"instances": ["abcd", {"text": "x" * 80}]})
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json"
    first, second = answer.json["predictions"]
    assert first == {
        "label": "short", "probability": 0.96, "labels": ["short", "long"], "probabilities": [0.96, 0.04],
        "is_truncated": False,
    }  # fmt: skip
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
    for path in ("/v1/models/length", "/v1/models/length/versions/1"):
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


def test_an_answer_names_its_version(client: Client):
    for place in ("length", "length/versions/1"):
        answer = client.predict(place, {"instances": ["ab"]})
        assert (answer.status, answer.headers["X-Model-Version"]) == (200, "1")


@pytest.mark.parametrize(("method", "path", "status", "message"), [
    ("POST", "/v1/models/none:predict", 404, "no model is named 'none'; the models are length"),
    ("GET", "/v1/models/none", 404, "no model is named 'none'"),
    ("GET", "/v1/models/length/versions/7", 404, "version 7 of length is not served; available: 1"),
    ("POST", "/v1/models/length/versions/99999999999999999999:predict", 404, "is not served"),
    ("POST", "/v1/models/length:classify", 404, "there is nothing at /v1/models/length:classify"),
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
    ({"instances": [3]}, 400, "instances[0] is 3; expected a string"),
    ({"instances": ["a", None]}, 400, "instances[1] is null"),
    ({"instances": [["a"]]}, 400, 'instances[0] is ["a"]'),
    ({"instances": [{"words": "a"}]}, 400, "instances[0] lacks text"),
    ({"instances": [{"b64": "?"}]}, 400, 'instances[0] is {"b64":"?"}; expected a string'),
    ({"instances": [{"b64": "/w=="}]}, 400, "expected a string"),  # not UTF-8
    ({"inputs": "a"}, 400, "inputs.text is a string; expected a list"),
    ({"inputs": {"text": []}}, 400, "empty list"),
    ({"instances": ["!"]}, 400, "the model rejects the input: assertion failed: [no ! please]"),
    ({"instances": ["a"] * 9}, 400, "9 instances; at most 8"),
    ({"inputs": ["a"] * 9}, 400, "9 instances; at most 8"),
    ({"instances": ["é" * 501]}, 400, "instances[0] has 1002 bytes; at most 1000"),
    ({"instances": ["a" * 30_000]}, 413, "larger than 20000 bytes"),
    (ids([IDS | {"input_ids": [1, 2.5]}]), 400, "instances[0].input_ids[1] is 2.5; expected an integer"),
    (ids([IDS | {"input_ids": [1, True]}]), 400, "instances[0].input_ids[1] is true; expected an integer"),
    (ids([IDS | {"input_ids": [1, 2**31]}]), 400, "instances[0].input_ids[1] is 2147483648; int32 holds"),
    (ids([IDS | {"input_ids": [1, 2**70]}]), 400, "expected an integer"),
    (ids([IDS | {"input_ids": 1}]), 400, "input_ids is a number; expected a list"),
    (ids([IDS, {name: [1] for name in IDS}]), 400,
     "lengths: 2 at instances[0].input_ids, 1 at instances[1].input_ids; pad them to one length"),
    (ids(columns={name: [[1, 2], [1]] for name in IDS}), 400, "lists of different lengths"),
    (ids(columns={name: [[1]] * (1 + (name == "input_ids")) for name in IDS}), 400,
     "different numbers of instances"),
    (ids([IDS | {"input_ids": [1, 2, 3]}]), 400,
     "the model rejects the input"),
])  # fmt: skip
def test_wrong_requests_are_refused_and_say_why(client: Client, body, status: int, message: str):
    answer = client.predict("length", body)
    assert (answer.status, message in answer.error) == (status, True), answer.body
    assert client.predict("length", {"instances": ["abcd"]}).status == 200


def test_a_model_with_a_fixed_shape_says_which(client: Client):
    answer = client.predict("endings", {"instances": [{"prompt": "p", "endings": ["a", "b"]}]})
    assert (answer.status, answer.error) == (400, "endings has shape [2] for each instance; expected [4]")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "identity, gzip"])
def test_a_compressed_request_is_refused_before_it_is_read(client: Client, encoding: str):
    head = make_head("length", 10**6).replace(b"\r\n\r\n", f"\r\nContent-Encoding: {encoding}\r\n\r\n".encode())
    with sent(client, head + b"\x1f\x8b") as connection:
        assert b" 415 " in connection.makefile("rb").readline()


def test_compressed_bodies_do_not_keep_others_waiting(client: Client):
    body = gzip.compress(b" " * 50_000_000)
    with contextlib.ExitStack() as stack:
        head = make_head("length", len(body)).replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
        connections = [stack.enter_context(sent(client, head + body)) for _ in range(10)]
        start = time.monotonic()
        assert client.get("/healthz").status == 200
        assert time.monotonic() - start < 1.0
        for connection in connections:
            assert b" 415 " in connection.makefile("rb").readline()


def test_a_body_without_compression_may_say_so(client: Client):
    assert client.predict("length", {"instances": ["abcd"]}, **{"Content-Encoding": "identity"}).status == 200


def test_the_server_header_has_no_versions(client: Client):
    for answer in (client.get("/healthz"), client.get("/none"), client.get("/v1/models", Expect="other")):
        assert answer.headers["Server"] == "official-bert"
    with sent(client, b"no HTTP\r\n\r\n") as connection:
        assert b"\r\nServer: official-bert\r\n" in connection.makefile("rb").read()


def test_a_body_that_does_not_arrive_is_given_up(exports: pathlib.Path):
    with (
        running({"length": exports / "length"}, timeout_seconds=1.0) as (_, client),
        sent(client, make_head("length", 100) + b"{") as connection,
    ):
        answer = connection.makefile("rb").read()  # reads to the end: the server closes the connection
    assert b" 408 " in answer.splitlines()[0]
    assert b"did not arrive within 1 seconds" in answer


def test_a_body_far_too_large_is_refused_before_it_has_arrived(client: Client):
    head = make_head("length", 99999999999) + b"{"
    with sent(client, head) as connection:
        assert b" 413 " in connection.makefile("rb").readline()


def test_a_chunked_body_has_the_same_limit(client: Client):
    head = b"POST /v1/models/length:predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with sent(client, head + b"%x\r\n%b\r\n0\r\n\r\n" % (30_000, b" " * 30_000)) as connection:
        assert b" 413 " in connection.makefile("rb").readline()


def test_bytes_that_are_no_http_are_refused(client: Client):
    with sent(client, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n") as connection:
        assert b" 400 " in connection.makefile("rb").readline()
    assert client.get("/healthz").status == 200


def test_clients_that_go_away_harm_nobody(client: Client):
    body = json.dumps({"instances": ["abcd"] * 8}).encode()
    head = make_head("length", len(body))
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
        assert (answer.status, "so it cannot answer in rows; send columns" in answer.error) == (400, True)


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


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch):
    """An event that lets models compute while it is set. It is set initially."""
    opened = threading.Event()
    opened.set()
    run = SavedModelPredictor.call

    def waits(self, *given):
        assert opened.wait(60)
        return run(self, *given)

    monkeypatch.setattr(SavedModelPredictor, "call", waits)
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
        # As many as are computed at a time, plus as many as may wait.
        asked = [threads.submit(value, client) for _ in range(PARALLEL_BATCHES + limits["max_queue"])]
        assert eventually(lambda: waiting(client) == limits["max_queue"])
        refused = client.predict("size", {"instances": ["ab"]})
        assert (refused.status, refused.error) == (429, "4 instances are already waiting for size; try again later")
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
            assert (answer.status, answer.error) == (504, "no answer within 0.3 seconds; send less per request")
        gate.set()
        assert eventually(lambda: waiting(client) == 0 and value(client) == 1002)


def test_nothing_of_the_server_lets_a_page_run_foreign_code(client: Client):
    for path in ("/", "/page.js", "/page.css", "/v1/models", "/nowhere"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("place", ["size/versions/" + "9" * 5000, "size/versions/" + "9" * 5000 + "/metadata"])
def test_a_version_of_thousands_of_digits_is_not_served(client: Client, place: str):
    answer = client.get(f"/v1/models/{place}")
    assert answer.status == 404
    assert len(answer.error) < 200
