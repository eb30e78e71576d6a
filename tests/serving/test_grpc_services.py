import concurrent.futures
import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from official_bert.errors import UserError
from official_bert.serving.options import TOKEN_VARIABLE, Options
from tests.serving import served_models
from tests.serving.serving_client import Client, eventually, running


class Stubs:
    """TensorFlow Serving's own client."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.prediction = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        self.model = model_service_pb2_grpc.ModelServiceStub(channel)
        self.health = health_pb2_grpc.HealthStub(channel)

    def predict(self, name: str, metadata: Any = None, spec: Any = None, **inputs: Any) -> Any:
        return self.prediction.Predict(predict_request(name, spec, **inputs), timeout=120, metadata=metadata)


def predict_request(name: str, spec: Any = None, **inputs: Any) -> Any:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = name
    if spec is not None:
        spec(request.model_spec)
    for key, value in inputs.items():
        tensor = value if isinstance(value, tensor_pb2.TensorProto) else tf.make_tensor_proto(value)
        request.inputs[key].CopyFrom(tensor)
    return request


@contextlib.contextmanager
def serving(models: dict[str, Any], **options: Any) -> Iterator[tuple[Any, Client, Stubs]]:
    with (
        running(models, grpc_port=0, **options) as (server, client),
        grpc.insecure_channel(server.grpc_address) as channel,
    ):
        yield server, client, Stubs(channel)


@pytest.fixture(scope="module")
def served(exports: pathlib.Path) -> Iterator[tuple[Any, Client, Stubs]]:
    """A server of all models; no test stops it."""
    with serving({name: exports / name for name in served_models.ALL}, label=["size:stable=1"]) as all_of_it:
        yield all_of_it


@pytest.fixture
def stubs(served: tuple[Any, Client, Stubs]) -> Stubs:
    return served[2]


def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code(), error.value.details()


def test_predict_answers_as_over_http(served: tuple[Any, Client, Stubs]):
    _, client, stubs = served
    texts = ["a", "größer", ""]
    answer = stubs.predict("length", text=texts)
    assert (answer.model_spec.name, answer.model_spec.version.value) == ("length", 1)
    assert answer.model_spec.signature_name == "serving_default"
    outputs = {name: tf.make_ndarray(value) for name, value in answer.outputs.items()}
    rows = client.predict("length", {"instances": texts}).json["predictions"]
    assert set(outputs) == set(rows[0])
    assert [label.decode() for label in outputs["label"]] == [row["label"] for row in rows]
    np.testing.assert_allclose(outputs["probabilities"], [row["probabilities"] for row in rows], rtol=1e-6)
    np.testing.assert_array_equal(outputs["is_truncated"], [False] * 3)


def test_predict_takes_several_inputs_signatures_and_an_output_filter(stubs: Stubs):
    endings = [["a", "bbb", "cc", "d"]]
    answer = stubs.predict("endings", prompt=["x"], endings=endings)
    assert tf.make_ndarray(answer.outputs["choice"]).tolist() == [1]
    ids = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), np.ones([2, 3], np.int32))

    def by_ids(spec: Any) -> None:
        spec.signature_name = "serving_ids"

    answer = stubs.predict("length", spec=by_ids, **ids)
    assert tf.make_ndarray(answer.outputs["sums"]).tolist() == [6, 6]
    request = predict_request("length", text=["a"])
    request.output_filter.append("label")
    assert set(stubs.prediction.Predict(request).outputs) == {"label"}
    request.output_filter.append("colour")
    code, message = refusal(lambda: stubs.prediction.Predict(request))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert message.startswith("there is no output 'colour'; the signature has is_truncated, label,")


def test_versions_are_named_by_number_and_label(stubs: Stubs):
    def by_label(spec: Any) -> None:
        spec.version_label = "stable"

    def by_number(spec: Any) -> None:
        spec.version.value = 7

    assert tf.make_ndarray(stubs.predict("size", spec=by_label, text=["ab"]).outputs["value"]).tolist() == [1002]
    assert refusal(lambda: stubs.predict("size", spec=by_number, text=["ab"])) == (
        grpc.StatusCode.NOT_FOUND, "version 7 of size is not served; there are 1"
    )  # fmt: skip
    code, message = refusal(lambda: stubs.predict("none", text=["ab"]))
    assert (code, message[:25]) == (grpc.StatusCode.NOT_FOUND, "there is no model 'none';")


def examples(request: Any, name: str, rows: list[dict[str, list[bytes]]]) -> Any:
    request.model_spec.name = name
    for row in rows:
        example = request.input.example_list.examples.add()
        for feature, values in row.items():
            example.features.feature[feature].bytes_list.value.extend(values)
    return request


def test_classify_and_regress_go_by_what_the_model_is(stubs: Stubs):
    request = examples(classification_pb2.ClassificationRequest(), "length", [{"text": [b"a" * 30]}, {"text": [b""]}])
    answer = stubs.prediction.Classify(request)
    first, second = answer.result.classifications
    assert [each.label for each in first.classes] == ["short", "long"]
    np.testing.assert_allclose([each.score for each in first.classes], [0.7, 0.3], rtol=1e-5)
    assert second.classes[1].score == 0.0
    several = classification_pb2.ClassificationRequest()
    several.model_spec.name = "pair"
    both = several.input.example_list_with_context
    both.context.features.feature["text_pair"].bytes_list.value.append(b"12345")
    both.examples.add().features.feature["text"].bytes_list.value.append(b"1")
    classes = stubs.prediction.Classify(several).result.classifications[0].classes
    np.testing.assert_allclose([each.score for each in classes], [0.01, 0.05], rtol=1e-5)
    request = examples(regression_pb2.RegressionRequest(), "size", [{"text": [b"abc"]}])
    assert [each.value for each in stubs.prediction.Regress(request).result.regressions] == [1003.0]


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("size", [{"text": [b"a"]}], "size is a model of regression; this wants classification or multi_label"),
        ("length", [], "the input has no examples"),
        ("length", [{"text": [b"a", b"b"]}], "text has 2 texts in example 0; expected one"),
        ("length", [{"text": [b"a"]}, {}], "the input text is missing; expected text"),
        ("length", [{"text": [b"a"], "colour": [b"b"]}], "there is no input 'colour'; expected text"),
        ("length", [{"text": [b"\xff"]}], "text has a text that is not UTF-8: byte 0xff at 0"),
    ],
)
def test_examples_that_a_model_cannot_classify_are_refused(
    name: str, rows: list[dict[str, list[bytes]]], message: str, stubs: Stubs
):
    request = examples(classification_pb2.ClassificationRequest(), name, rows)
    code, details = refusal(lambda: stubs.prediction.Classify(request))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert details.startswith(message)


def huge() -> Any:
    tensor = tf.make_tensor_proto(["a"])
    tensor.tensor_shape.dim[0].size = 1 << 40  # one value for all of them
    return tensor


def short() -> Any:
    tensor = tf.make_tensor_proto(np.zeros([2, 3], np.int32))
    tensor.tensor_content = tensor.tensor_content[:-1]
    return tensor


IDS = dict.fromkeys(("input_mask", "segment_ids"), np.ones([2, 3], np.int32))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "the input text is missing; expected text"),
        ({"text": ["a"], "more": ["b"]}, "there is no input 'more'; expected text"),
        ({"text": [1]}, "text is of type int32; expected string"),
        ({"text": "a"}, "text has shape []; expected [None]"),
        ({"text": [["a"]]}, "text has shape [1, 1]; expected [None]"),
        ({"text": np.array([], object)}, "the inputs have these numbers of instances: {'text': 0}"),
        ({"text": ["a" * 1001]}, "text has a text of 1001 bytes; at most 1000 are taken"),
        ({"text": [b"a\xc3"]}, "text has a text that is not UTF-8: byte 0xc3 at 1"),
        ({"text": ["a"] * 9}, "text has shape [9]; at most 8 instances are taken at once"),
        ({"text": huge()}, "text has shape [1099511627776]; at most 8 instances are taken at once"),
        ({"text": ["!"]}, "the model refuses the input"),
        ({"input_ids": short(), **IDS}, "input_ids has shape [2, 3], but other values"),
        ({"input_ids": np.ones([1, 3], np.int32), **IDS}, "the inputs have these numbers of instances"),
    ],
)
def test_requests_that_cannot_be_read_are_refused(inputs: dict[str, Any], message: str, exports: pathlib.Path):
    def spec(each: Any) -> None:
        each.signature_name = "serving_ids" if "input_ids" in inputs else ""

    with serving({"length": exports / "length"}, max_text_bytes=1000, max_instances=8) as (_, _, stubs):
        code, details = refusal(lambda: stubs.predict("length", spec=spec, **inputs))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert details.startswith(message)
        assert stubs.predict("length", text=["a"]).outputs


def test_a_request_that_is_too_large_is_refused(exports: pathlib.Path):
    limits = {"max_body_bytes": 5000, "max_in_flight_bytes": 6000}
    with serving({"length": exports / "length"}, **limits) as (_, _, stubs):
        code, _ = refusal(lambda: stubs.predict("length", text=["a" * 6000]))
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        for _ in range(3):  # what was refused or answered is not in flight
            assert stubs.predict("length", text=["a" * 4000]).outputs


def test_metadata_has_the_signatures(stubs: Stubs):
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "length"
    answer = stubs.prediction.GetModelMetadata(request)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert answer.metadata["signature_def"].Unpack(signatures)
    assert set(signatures.signature_def) == {"serving_default", "serving_ids"}
    assert set(signatures.signature_def["serving_default"].inputs) == {"text"}
    request.metadata_field.append("weights")
    assert refusal(lambda: stubs.prediction.GetModelMetadata(request))[0] == grpc.StatusCode.INVALID_ARGUMENT


def test_the_status_of_versions_is_told(stubs: Stubs):
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "size"
    (version,) = stubs.model.GetModelStatus(request).model_version_status
    available = get_model_status_pb2.ModelVersionStatus.AVAILABLE
    assert (version.version, version.state, version.status.error_code) == (1, available, 0)
    request.model_spec.version.value = 2
    assert refusal(lambda: stubs.model.GetModelStatus(request))[0] == grpc.StatusCode.NOT_FOUND


def test_the_token_is_asked_for_but_not_for_health(exports: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    with serving({"length": exports / "length"}) as (_, _, stubs):
        for metadata in (None, [("authorization", "Bearer wrong")], [("authorization", "secret")]):
            code, message = refusal(lambda metadata=metadata: stubs.predict("length", metadata, text=["a"]))
            assert code == grpc.StatusCode.UNAUTHENTICATED
            assert "secret" not in message
        assert stubs.predict("length", [("authorization", "Bearer secret")], text=["a"]).outputs
        assert stubs.health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING


def test_requests_of_both_protocols_share_batches_and_are_counted(served: tuple[Any, Client, Stubs]):
    _, client, stubs = served

    def metric(line: str) -> float:
        lines = [each for each in client.get("/metrics").body.decode().splitlines() if each.startswith(line)]
        return float(lines[0].rsplit(" ", 1)[1]) if lines else 0.0

    counted = 'official_bert_requests_total{action="predict",model="names",status="OK"}'
    before = metric(counted)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: stubs.predict("names", text=[f"Ada {n}"]), range(40)))
    assert metric(counted) == before + 40
    tags = [tf.make_ndarray(answer.outputs["tags"]).tolist() for answer in answers]
    assert tags == [[[b"NAME", b"I-NAME"]]] * 40
    refusal(lambda: stubs.predict("hidden", text=["a"]))
    assert metric('official_bert_requests_total{action="predict",model="",status="NOT_FOUND"}') >= 1


def test_health_says_when_the_server_stops_and_requests_in_flight_are_answered(exports: pathlib.Path):
    with serving({"length": exports / "length"}) as (server, _, stubs):
        statuses = stubs.health.Watch(health_pb2.HealthCheckRequest())
        assert next(statuses).status == health_pb2.HealthCheckResponse.SERVING
        server.loop.call_soon_threadsafe(server.stop)
        assert next(statuses).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert eventually(lambda: refused(stubs))


def refused(stubs: Stubs) -> bool:
    try:
        stubs.predict("length", text=["a"])
    except grpc.RpcError as error:
        return error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    return False


def test_a_port_that_is_taken_or_none_is_an_error(exports: pathlib.Path, served: tuple[Any, Client, Stubs]):
    taken = int(served[0].grpc_address.rsplit(":", 1)[1])
    message = rf"--grpc_port={taken} of 127\.0\.0\.1 cannot be listened at"
    with (
        pytest.raises(UserError, match=message),
        running({"length": exports / "length"}, grpc_port=taken),
    ):
        pass
    for wrong in (-1, 70_000, 8501):
        with pytest.raises(UserError, match="--grpc_port is"):
            Options(model=["a=b"], grpc_port=wrong)
