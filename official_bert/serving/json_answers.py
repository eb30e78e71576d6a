"""Renders answers as TensorFlow Serving's JSON: rows for a request in rows, columns for one in columns."""

import base64
from typing import Any

import numpy as np
import orjson

from official_bert.inference.exports import Columns
from official_bert.serving.json_requests import PredictRequest
from official_bert.serving.request_error import RequestError


def render(outputs: Columns, request: PredictRequest) -> bytes:
    """Returns the JSON of a request's answer. Floats have the fewest digits that identify them; bytes become base64.

    Raises:
        RequestError: If the request is in rows, but an output does not have a row for each instance.
    """
    for name, value in outputs.items():
        if request.in_rows and value.shape[:1] != (request.instances,):
            raise RequestError(
                400,
                f"signature {request.signature} gives {name} of shape {list(value.shape)} for {request.instances} "
                'instances, which are no rows; ask for columns, {"inputs": ...}',
            )
    values = {name: _as_json(value) for name, value in outputs.items()}
    if not request.in_rows:
        answer: Any = {"outputs": next(iter(values.values())) if len(values) == 1 else values}
    elif len(values) == 1:
        answer = {"predictions": next(iter(values.values()))}
    else:
        rows = range(request.instances)
        answer = {"predictions": [{name: value[i] for name, value in values.items()} for i in rows]}
    return orjson.dumps(answer, default=_encode_bytes, option=orjson.OPT_SERIALIZE_NUMPY)


def _as_json(value: np.ndarray) -> Any:
    """Returns an output in a form that orjson can write."""
    if value.dtype == object:
        return value.tolist()
    return np.ascontiguousarray(value if value.dtype.char in "?bhilqBHILQfd" else value.astype(np.float32))


def _encode_bytes(value: Any) -> dict[str, str]:
    return {"b64": base64.b64encode(value).decode()}
