"""Parsing requests and rendering answers as JSON. The sizes of a request are checked before its elements."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from official_bert.inference.predictor import Signature, Tensor
from official_bert.serving import json_api
from official_bert.serving.options import ServingOptions
from tests.make import assert_mentions

OPTIONS = ServingOptions(["m=/m"], max_instances=8, max_text_bytes=1000)
TEXT = Tensor("string", (None,))
ENDINGS = {"prompt": TEXT, "endings": Tensor("string", (None, 4))}
CLASSIFIER = {"kind": "classification"}
ROWS = json_api.PredictRequest("m", {"text": np.array([b"x", b"y"], object)}, in_rows=True)


def read(request: Any, inputs: Any, metadata: Any, options: ServingOptions = OPTIONS) -> json_api.PredictRequest:
    """Parses a request to a signature with these inputs."""
    return json_api.parse(json.dumps(request).encode(), {"serving_default": Signature(inputs, {})}, options, metadata)


def assert_refused(names: list, function: Any, *arguments: Any) -> None:
    """Checks that a call raises a RequestError that mentions each name."""
    with pytest.raises(json_api.RequestError) as caught:
        function(*arguments)
    assert_mentions(caught.value.message, *names)


MANY = 200_000
TRAINED = "title, body, claim"
MANY_ENDINGS = {"prompt": "p", "endings": ["a"] * MANY}


@pytest.mark.parametrize(("request_", "names"), [
    # Sizes are checked before elements.
    ({"inputs": {"prompt": ["a"] * MANY, "endings": [["a"] * 4]}}, [MANY, 8]),
    ({"inputs": {"prompt": ["a"], "endings": [["a"] * MANY]}}, ["endings", [MANY], [4]]),
    ({"instances": [MANY_ENDINGS] * 2}, ["endings", [MANY], [4]]),
    ({"instances": [MANY_ENDINGS] * 9}, [9, 8]),
    ({"instances": [{"prompt": "p", "endings": "abcd"}]}, ["instances[0].endings", "string", "list"]),
    ({"inputs": {"prompt": ["p"], "endings": [["a"] * 4, 5]}}, ["inputs.endings[1]", "number", "list"]),
    ({"inputs": {"prompt": ["p"], "endings": [["a"] * 4, ["a"]]}}, [4, "inputs.endings[0]", 1, "inputs.endings[1]"]),
])  # fmt: skip
def test_invalid_sizes_and_elements_are_named(request_: dict, names: list, monkeypatch: pytest.MonkeyPatch):
    texts: list[str] = []
    monkeypatch.setattr(json_api, "count_text_bytes", lambda leaf: texts.append(leaf) or 0)
    assert_refused(names, read, request_, ENDINGS, {"kind": "multiple_choice"})
    assert len(texts) <= 2  # the labels before it


def test_a_text_of_exactly_max_text_bytes_is_accepted():
    accepting, refusing = (dataclasses.replace(OPTIONS, max_text_bytes=count) for count in (10, 9))
    for text in ("ä" * 5, "b" * 10):
        request = {"instances": [{"prompt": text, "endings": list("abcd")}]}
        read(request, ENDINGS, {}, accepting)
        assert_refused([10, 9], read, request, ENDINGS, {}, refusing)


@pytest.mark.parametrize(("dtype", "taken", "refused"), [
    ("int32", [-(2**31), 2**31 - 1], [-(2**31) - 1, 2**31, True]), ("uint8", [0, 255], [-1, 256]),
    ("uint16", [0, 65_535], [65_536]), ("float16", [0.5], [True]), ("bool", [True, False], [1]),
    ("int64", [-(2**63), 2**63 - 1], [2**63]), ("float32", [1, 0.5, -2], [True, "1"]),
])  # fmt: skip
def test_numbers_are_accepted_up_to_the_limits_of_their_type(dtype: str, taken: list, refused: list):
    inputs = {"x": Tensor(dtype, (None,))}
    x = read({"inputs": taken}, inputs, {}).inputs["x"]
    assert (x.dtype, x.tolist()) == (dtype, taken)
    for value in refused:
        for others in (taken, []):
            names = [f"inputs.x[{len(others)}]", json.dumps(value)]
            assert_refused(names, read, {"inputs": [*others, value]}, inputs, {})


def test_tensors_are_described_as_in_tensorflow_serving():
    x = Tensor("bfloat16", (None, 0, 3))
    assert (x.is_floating, x.numpy_type) == (True, np.float32)
    dimensions = [{"size": size, "name": ""} for size in ("-1", "0", "3")]
    assert x.describe("x")["tensor_shape"] == {"dim": dimensions, "unknown_rank": False}
    unknown = {"dim": [], "unknown_rank": True}
    assert Tensor("float16", None).describe("y") == {"dtype": "DT_HALF", "tensor_shape": unknown, "name": "y"}


def test_inputs_of_another_type_or_shape_are_rejected_and_lists_may_be_empty():
    assert_refused(["x", "complex64"], read, {"inputs": [1]}, {"x": Tensor("complex64", (None,))}, {})
    inputs = {"x": Tensor("int32", (None, None, 2))}
    assert_refused(["x", [1, 3], "[any, 2]"], read, {"inputs": [[[1, 2, 3]]]}, inputs, {})
    inputs = {"x": Tensor("int32", (None, None, None))}
    assert read({"inputs": [[]]}, inputs, {}).inputs["x"].shape == (1, 0, 0)


def test_arrays_of_any_type_are_rendered():
    x, y, z = np.array([0.5, 2], np.float16), np.array([[1], [2]], np.uint8)[:, ::-1], np.array([0.1, 1e99])
    predictions = [{"x": 0.5, "y": [1], "z": 0.1}, {"x": 2.0, "y": [2], "z": 1e99}]
    assert json.loads(json_api.render({"x": x, "y": y, "z": z}, ROWS)) == {"predictions": predictions}


def read_pair(request: dict, table: dict) -> tuple[list[str], list[str]]:
    inputs = read(request, {"text": TEXT, "text_pair": TEXT}, {**CLASSIFIER, "table": table}).inputs
    return inputs["text"].tolist(), inputs["text_pair"].tolist()


def test_rows_may_have_the_columns_of_the_training_table():
    table = {"text_column": "title,body", "text_pair_column": "text"}
    expected = ["a b", "d e"], ["c", "f"]
    row, other = {"title": "a", "body": "b", "text": "c"}, {"title": "d", "body": "e", "text": "f"}
    assert read_pair({"instances": [row, other]}, table) == expected
    assert read_pair({"inputs": {name: [row[name], other[name]] for name in row}}, table) == expected
    table["text_pair_column"] = "claim"
    for one in ({"text": "a b", "text_pair": "c"}, {"title": "a", "body": "b", "text_pair": "c"},
                {"text": "a b", "claim": "c"}, {"title": "a b", "body": None, "claim": "c", "lang": "en"}):  # fmt: skip
        assert read_pair({"instances": [one]}, table) == (["a b"], ["c"])
        assert read_pair({"inputs": {name: [value] for name, value in one.items()}}, table) == (["a b"], ["c"])


@pytest.mark.parametrize(("request_", "names"), [
    ({"instances": [{"title": "a", "text_pair": "c"}]}, ["instances[0]", "lacks body", "text, text_pair", TRAINED]),
    ({"instances": [{"text": "a"}]}, ["instances[0]", "lacks text_pair", TRAINED]),
    ({"instances": [{"text": "a", "text_pair": 5}, {"text": "a", "claim": "b"}]}, ["instances[0].text_pair", 5]),
    ({"instances": [{"text": "a", "claim": "b" * 1001}]}, ["instances[0].claim", 1001, 1000]),
    ({"inputs": {"text": ["a"], "claim": [5]}}, ["inputs.claim[0]", 5]),
    ({"inputs": {"title": ["a"], "body": ["b"]}}, ["inputs", "lacks claim", "text, text_pair"]),
    ({"inputs": {"title": "a", "body": "b"}}, ["inputs.title", "string", "list"]),
    ({"instances": [{"text": "a", "title": "b", "claim": "c"}]}, ["instances[0]", "text, title, claim", TRAINED]),
    ({"instances": [{"title": 1, "body": "b", "claim": "c"}]}, ["instances[0]", "title", 1]),
    ({"inputs": {"title": ["a", "b"], "body": ["c"], "claim": ["d", "e"]}}, ["'title': 2", "'body': 1", "'claim': 2"]),
    ({"inputs": {"title": ["a", None], "body": ["c", None], "claim": ["e", "f"]}}, ["row 1", "title", "null"]),
    ({"inputs": {"title": ["a"] * 9, "body": ["b"] * 9, "claim": ["c"] * 9}}, [9, 8]),
])  # fmt: skip
def test_a_missing_column_is_named(request_: dict, names: list):
    assert_refused(names, read_pair, request_, {"text_column": "title,body", "text_pair_column": "claim"})


def test_a_missing_input_of_a_signature_without_texts_is_named():
    inputs, metadata = {"input_ids": Tensor("int32", (None, None))}, {"table": {"text_column": "title"}}
    assert_refused(["instances[0]", "lacks input_ids"], read, {"instances": [{"ids": [1]}]}, inputs, metadata)


@pytest.mark.parametrize(
    "request_", [{"instances": [{"text": "a", "context": "b"}]}, {"inputs": {"text": ["a"], "context": ["b"]}}]
)
def test_inputs_of_other_kinds_of_models_are_rejected(request_: dict):
    assert_refused(["context", "text"], read, request_, {"text": TEXT}, CLASSIFIER)
    assert_refused(["unknown input", "context"], read, request_, {"text": TEXT}, {})
    own = {**CLASSIFIER, "table": {"text_column": "text", "label_column": "context"}}
    assert read(request_, {"text": TEXT}, own).instances == 1
    assert read({"inputs": {"text": ["a"], "language": ["en"]}}, {"text": TEXT}, CLASSIFIER).instances == 1


def test_a_signature_without_rows_is_rejected():
    inputs = {"text": TEXT, "count": Tensor("int32", ())}
    assert_refused(["serving_default", "dimension"], read, {"inputs": {}}, inputs, {})


def test_only_row_requests_need_one_output_per_instance():
    outputs = {"tokens": np.array([1, 2, 3])}
    assert json.loads(json_api.render(outputs, dataclasses.replace(ROWS, in_rows=False))) == {"outputs": [1, 2, 3]}
    assert_refused(["m", "tokens", [3], 2, '{"inputs": ...}'], json_api.render, outputs, ROWS)
    assert json.loads(json_api.render({"tokens": np.array([1, 2])}, ROWS)) == {"predictions": [1, 2]}
