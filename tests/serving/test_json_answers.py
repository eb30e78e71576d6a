"""Answers as JSON, of any shape and kind."""

import json

import numpy as np
import pytest

from official_bert.inference.saved_model import decode_strings
from official_bert.serving.json_answers import render
from official_bert.serving.json_requests import PredictRequest
from official_bert.serving.request_error import RequestError

ROWS = PredictRequest("m", {"text": np.array([b"x", b"y"], object)}, in_rows=True)
COLUMNS = PredictRequest("m", {"text": np.array([b"x", b"y"], object)}, in_rows=False)


def test_strings_are_text_but_those_named_bytes_or_that_are_none():
    outputs = {"word": np.array([b"a", b"\xff"], object), "word_bytes": np.array([b"a", b"b"], object)}
    decoded = {name: decode_strings(name, value) for name, value in outputs.items()}
    assert json.loads(render(decoded, COLUMNS)) == {
        "outputs": {"word": ["a", {"b64": "/w=="}], "word_bytes": [{"b64": "YQ=="}, {"b64": "Yg=="}]}
    }


def test_only_a_request_in_rows_wants_a_row_for_each_instance():
    outputs = {"tokens": np.array([1, 2, 3])}
    assert json.loads(render(outputs, COLUMNS)) == {"outputs": [1, 2, 3]}
    with pytest.raises(RequestError, match="gives tokens of shape \\[3\\] for 2 instances, which are no rows"):
        render(outputs, ROWS)
    assert json.loads(render({"tokens": np.array([1, 2])}, ROWS)) == {"predictions": [1, 2]}
