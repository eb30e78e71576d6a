"""Requests that are too large are refused by their sizes, before their elements are looked at."""

import json

import pytest
import tensorflow as tf

from official_bert.serving import json_requests
from official_bert.serving.json_requests import parse
from official_bert.serving.options import Options
from official_bert.serving.request_error import RequestError


class Endings:
    """The signature of multiple choice."""

    inputs = {"prompt": tf.TensorSpec([None], tf.string), "endings": tf.TensorSpec([None, 4], tf.string)}  # noqa: RUF012
    takes_rows = True


def options(max_text_bytes: int) -> Options:
    return Options(["m=/m"], max_instances=8, max_text_bytes=max_text_bytes)


MANY = 200_000
MANY_ENDINGS = {"prompt": "p", "endings": ["a"] * MANY}


@pytest.mark.parametrize(("request_", "message"), [
    ({"inputs": {"prompt": ["a"] * MANY, "endings": [["a"] * 4]}}, f"{MANY} instances; at most 8"),
    ({"inputs": {"prompt": ["a"], "endings": [["a"] * MANY]}}, rf"has shape \[{MANY}\] for each .* expected \[4\]"),
    ({"instances": [MANY_ENDINGS] * 2}, rf"has shape \[{MANY}\] for each instance; expected \[4\]"),
    ({"instances": [MANY_ENDINGS] * 9}, "9 instances; at most 8"),
])  # fmt: skip
def test_sizes_are_checked_before_elements(request_: dict, message: str, monkeypatch: pytest.MonkeyPatch):
    texts: list[str] = []
    monkeypatch.setattr(json_requests, "_bytes", lambda leaf, *_: texts.append(leaf) or b"")
    with pytest.raises(RequestError, match=message):
        parse(json.dumps(request_).encode(), {"serving_default": Endings()}, options(1000), texts=True)
    assert len(texts) <= 2  # those before


def test_a_text_of_as_many_bytes_as_are_taken_is_taken():
    signatures = {"serving_default": Endings()}
    for text in ("ä" * 5, "b" * 10):
        body = json.dumps({"instances": [{"prompt": text, "endings": list("abcd")}]}).encode()
        parse(body, signatures, options(10), texts=True)
        with pytest.raises(RequestError, match="a text of 10 bytes; at most 9 are taken"):
            parse(body, signatures, options(9), texts=True)


def test_the_position_of_a_wrong_element_is_named():
    signatures = {"serving_default": Endings()}
    for request, message in (
        ({"instances": [{"prompt": "p", "endings": "abcd"}]}, r"instances\[0\].endings is a string; expected a list"),
        ({"inputs": {"prompt": ["p"], "endings": [["a"] * 4, 5]}}, r"inputs.endings\[1\] is a number; expected a list"),
        ({"inputs": {"prompt": ["p"], "endings": [["a"] * 4, ["a"]]}},
         r"inputs.endings has lists of different lengths: 4 at \[0\], 1 at \[1\]"),
    ):  # fmt: skip
        with pytest.raises(RequestError, match=message):
            parse(json.dumps(request).encode(), signatures, options(1000), texts=True)
