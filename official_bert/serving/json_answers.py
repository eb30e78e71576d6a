"""Tensors as TensorFlow Serving's JSON answers: in rows for a request in rows, in columns for one in columns."""

import base64
from typing import Any

import numpy as np
import orjson

from official_bert.serving.json_requests import PredictRequest
from official_bert.serving.request_error import RequestError
from official_bert.serving.signatures import Tensors


def render(outputs: Tensors, request: PredictRequest) -> bytes:
    """Returns the JSON of a request's answer; floats have the fewest digits that give them back.

    Raises:
        RequestError: the request is in rows, but the signature does not answer each instance with one.
    """
    for name, value in outputs.items():
        if request.in_rows and value.shape[:1] != (request.instances,):
            raise RequestError(
                400,
                f"signature {request.signature} gives {name} of shape {list(value.shape)} for {request.instances} "
                'instances, which are no rows; ask for columns, {"inputs": ...}',
            )
    values = {name: _as_json(name, value) for name, value in outputs.items()}
    if not request.in_rows:
        answer: Any = {"outputs": next(iter(values.values())) if len(values) == 1 else values}
    elif len(values) == 1:
        answer = {"predictions": next(iter(values.values()))}
    else:
        rows = range(request.instances)
        answer = {"predictions": [{name: value[i] for name, value in values.items()} for i in rows]}
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def _as_json(name: str, value: np.ndarray) -> Any:
    """An output as orjson takes it: numbers as they are, strings as text, or as b64 where they are not text."""
    if value.dtype != object:
        return np.ascontiguousarray(value if value.dtype.char in "?bhilqBHILQfd" else value.astype(np.float32))
    return _strings(value.tolist(), name.endswith("_bytes"))


def _strings(value: Any, as_bytes: bool) -> Any:
    if isinstance(value, list):
        return [_strings(each, as_bytes) for each in value]
    if not as_bytes:
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return {"b64": base64.b64encode(value).decode()}
