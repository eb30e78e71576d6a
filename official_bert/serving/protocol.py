"""TensorFlow Serving's REST formats: JSON to tensors, tensors to JSON.

A request is in rows, {"instances": [...]}, or in columns, {"inputs": ...}; its answer is in the same format.
"""

import base64
import binascii
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import numpy as np
import orjson
import tensorflow as tf

from official_bert.serving.refused import RefusedError
from official_bert.serving.saved_model import DEFAULT_SIGNATURE, Signature, Tensors


@dataclasses.dataclass(frozen=True)
class Limits:
    """The largest request: instances, and bytes of each text."""

    instances: int
    text_bytes: int


@dataclasses.dataclass(frozen=True)
class Request:
    """What a request asks: a signature's inputs, each [B, ...], and whether it was in rows."""

    signature: str
    inputs: Tensors
    in_rows: bool

    @property
    def instances(self) -> int:
        """How many instances there are, B."""
        return len(next(iter(self.inputs.values())))


def parse(body: bytes, signatures: Mapping[str, Signature], limits: Limits, texts: bool) -> Request:
    """Reads a request's body.

    Args:
        body: JSON.
        signatures: the model's.
        limits: what is too large.
        texts: whether strings are texts, so that they must be UTF-8.

    Raises:
        RefusedError: it cannot be read, or is too large.
    """
    message = _json_object(body)
    unknown = message.keys() - {"signature_name", "instances", "inputs"}
    if unknown:
        _refuse(f"unknown key {_shown(min(unknown))}; a request has instances or inputs, and perhaps signature_name")
    name = message.get("signature_name", DEFAULT_SIGNATURE)
    if not isinstance(name, str):
        _refuse(f"signature_name is {_shown(name)}; expected a string")
    if name not in signatures:
        _refuse(f"there is no signature {_shown(name)}; the model has {', '.join(signatures)}")
    signature = signatures[name]
    if not signature.takes_rows:
        _refuse(f"signature {name} cannot be called over REST: its inputs have no dimension for instances")
    if ("instances" in message) == ("inputs" in message):
        _refuse('expected either {"instances": [...]} (a row for each) or {"inputs": ...} (a column for each input)')
    if "instances" in message:
        inputs = _from_rows(message["instances"], signature, limits, texts)
    else:
        inputs = _from_columns(message["inputs"], signature, limits, texts)
    return Request(name, inputs, "instances" in message)


def render(outputs: Tensors, asked: Request) -> bytes:
    """Returns an answer's JSON; floats have the fewest digits that give them back.

    Raises:
        RefusedError: rows were asked for, but the signature does not give one for each instance.
    """
    for name, value in outputs.items():
        if asked.in_rows and value.shape[:1] != (asked.instances,):
            _refuse(
                f"signature {asked.signature} gives {name} of shape {list(value.shape)} for {asked.instances} "
                'instances, which are no rows; ask for columns, {"inputs": ...}'
            )
    values = {name: _plain(name, value) for name, value in outputs.items()}
    if not asked.in_rows:
        answer: Any = {"outputs": next(iter(values.values())) if len(values) == 1 else values}
    elif len(values) == 1:
        answer = {"predictions": next(iter(values.values()))}
    else:
        rows = range(asked.instances)
        answer = {"predictions": [{name: value[i] for name, value in values.items()} for i in rows]}
    return as_json(answer)


def as_json(value: Any) -> bytes:
    """Returns JSON, NumPy arrays included."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        try:
            body.decode()
        except UnicodeDecodeError as wrong:
            _refuse(f"the request is not UTF-8: byte 0x{body[wrong.start]:02x} at {wrong.start}")
        _refuse(f"the request is not JSON: {error}")
    if not isinstance(message, dict):
        _refuse(f'the request is {_kind(message)}; expected an object: {{"instances": [...]}}')
    return message


def _from_rows(instances: Any, signature: Signature, limits: Limits, texts: bool) -> Tensors:
    if not isinstance(instances, list) or not instances:
        _refuse(f"instances is {_shown(instances)}; expected a list with one or more")
    _check_count(len(instances), limits)
    inputs = {}
    only = next(iter(signature.inputs)) if len(signature.inputs) == 1 else None
    rows = [{only: row} if only and not (isinstance(row, dict) and row.keys() != {"b64"}) else row for row in instances]
    for i, row in enumerate(rows):
        _check_names(row, signature, f"instances[{i}]")
    for name, spec in signature.inputs.items():
        parts = [
            _flat(row[name], spec.shape.rank - 1, f"instances[{i}]" + ("" if only else f".{name}"))
            for i, row in enumerate(rows)
        ]
        for i, (_, shape) in enumerate(parts):
            if shape != parts[0][1]:
                _refuse(
                    f"{name} has shape {list(parts[0][1])} in instances[0] but {list(shape)} in instances[{i}]; pad "
                    "them to one length, or send them apart"
                )
        leaves = [leaf for part, _ in parts for leaf in part]
        inputs[name] = _tensor(leaves, (len(rows), *parts[0][1]), name, spec, limits, texts)
    return inputs


def _from_columns(columns: Any, signature: Signature, limits: Limits, texts: bool) -> Tensors:
    if len(signature.inputs) == 1 and not isinstance(columns, dict):
        columns = {next(iter(signature.inputs)): columns}
    _check_names(columns, signature, "inputs")
    inputs = {}
    for name, spec in signature.inputs.items():
        leaves, shape = _flat(columns[name], spec.shape.rank, f"inputs.{name}")
        if not shape[0]:
            _refuse(f"inputs.{name} is an empty list; expected one or more instances")
        _check_count(shape[0], limits)
        inputs[name] = _tensor(leaves, shape, name, spec, limits, texts)
    counts = {name: len(value) for name, value in inputs.items()}
    if len(set(counts.values())) > 1:
        _refuse(f"the inputs have different numbers of instances: {counts}")
    return inputs


def _check_count(count: int, limits: Limits) -> None:
    if count > limits.instances:
        _refuse(f"the request has {count} instances; at most {limits.instances} are taken at once")


def _check_names(values: Any, signature: Signature, where: str) -> None:
    expected = ", ".join(signature.inputs)
    if not isinstance(values, dict):
        _refuse(f"{where} is {_kind(values)}; expected an object with {expected}")
    for name in signature.inputs:
        if name not in values:
            _refuse(f"{where} lacks {name}; expected an object with {expected}")
    for name in values:
        if name not in signature.inputs:
            _refuse(f"{where} has {_shown(name)}, which is no input; expected {expected}")


def _flat(value: Any, rank: int, where: str) -> tuple[list[Any], tuple[int, ...]]:
    """Returns the leaves of nested lists, and their shape."""
    if rank == 0:
        return [value], ()
    if not isinstance(value, list):
        _refuse(f"{where} is {_kind(value)}; expected a list")
    if not value:
        return [], (0,) * rank
    parts = [_flat(each, rank - 1, f"{where}[{i}]") for i, each in enumerate(value)]
    shape = parts[0][1]
    for i, (_, other) in enumerate(parts):
        if other != shape:
            _refuse(f"{where} has lists of different lengths: {list(shape)} at 0, {list(other)} at {i}")
    return [leaf for part, _ in parts for leaf in part], (len(value), *shape)


def _tensor(
    leaves: list[Any], shape: tuple[int, ...], name: str, spec: tf.TensorSpec, limits: Limits, texts: bool
) -> np.ndarray:
    if not spec.shape[1:].is_compatible_with(shape[1:]):
        _refuse(f"{name} has shape {list(shape[1:])} for each instance; expected {_dimensions(spec)}")
    if spec.dtype == tf.string:
        values = np.empty(len(leaves), object)
        values[:] = [_bytes(leaf, name, limits, texts) for leaf in leaves]
    elif spec.dtype == tf.bool:
        values = np.array(list(_of_types(leaves, (bool,), name, "true or false")), bool)
    elif spec.dtype.is_integer:
        values = np.array(list(_integers(leaves, name, spec.dtype)), spec.dtype.as_numpy_dtype)
    elif spec.dtype.is_floating:
        values = np.array(list(_of_types(leaves, (int, float), name, "a number")), spec.dtype.as_numpy_dtype)
    else:
        _refuse(f"{name} is of type {spec.dtype.name}, which cannot be sent as JSON")
    return values.reshape(shape)


def _dimensions(spec: tf.TensorSpec) -> str:
    return "[" + ", ".join("any" if size is None else str(size) for size in spec.shape[1:]) + "]"


def _bytes(leaf: Any, name: str, limits: Limits, texts: bool) -> bytes:
    if isinstance(leaf, str):
        value = leaf.encode()
    elif isinstance(leaf, dict) and leaf.keys() == {"b64"} and isinstance(leaf["b64"], str):
        try:
            value = base64.b64decode(leaf["b64"], validate=True)
        except (binascii.Error, ValueError) as error:
            _refuse(f"{name} has a b64 that is not base64: {error}")
        if texts:
            try:
                value.decode()
            except UnicodeDecodeError as wrong:
                _refuse(f"{name} has a b64 that is not UTF-8: byte 0x{value[wrong.start]:02x} at {wrong.start}")
    else:
        _refuse(f'{name} has {_shown(leaf)}; expected a string, or {{"b64": "..."}}')
    if len(value) > limits.text_bytes:
        _refuse(f"{name} has a text of {len(value)} bytes; at most {limits.text_bytes} are taken")
    return value


def _of_types(leaves: list[Any], types: tuple[type, ...], name: str, expected: str) -> Iterable[Any]:
    for leaf in leaves:
        if type(leaf) not in types:
            _refuse(f"{name} has {_shown(leaf)}; expected {expected}")
        yield leaf


def _integers(leaves: list[Any], name: str, dtype: tf.DType) -> Iterable[int]:
    for leaf in _of_types(leaves, (int,), name, "an integer"):
        if not dtype.min <= leaf <= dtype.max:
            _refuse(f"{name} has {leaf}; {dtype.name} holds {dtype.min} to {dtype.max}")
        yield leaf


def _plain(name: str, value: np.ndarray) -> Any:
    """An output as what orjson takes: numbers as they are, strings as text, or as b64 where they are not text."""
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


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _shown(value: Any) -> str:
    text = as_json(value).decode()
    return text if len(text) <= 40 else f"{text[:40]}..."


def _refuse(message: str) -> NoReturn:
    raise RefusedError(400, message)
