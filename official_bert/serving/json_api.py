"""TensorFlow Serving's JSON: requests become columns of arrays, and columns become answers.

A request is in rows, {"instances": [...]}, or in columns, {"inputs": ...}, and its answer has the same form. The size
of a list is checked before its elements, so that the cost of a request that is much too large is little more than
parsing its JSON.

B instances
"""

import base64
import dataclasses
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import orjson

from official_bert.inference.exports import Columns, list_trained_columns, read_row
from official_bert.inference.predictor import BOOL, STRING, Signature, Tensor, count_text_bytes
from official_bert.kinds.names import DEFAULT_SIGNATURE
from official_bert.serving.options import Options


class RequestError(Exception):
    """An error that becomes the JSON answer to a refused request.

    Args:
        status: The HTTP status.
        message: What was received, what was expected, and what to do.
        retry_after: Number of seconds after which to try again. None if that would not help.
    """

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after


def refuse(message: str) -> NoReturn:
    """Raises the error for a malformed request."""
    raise RequestError(400, message)


@dataclasses.dataclass(frozen=True)
class PredictRequest:
    """The inputs of a signature, [B, ...] each, and whether the request was in rows."""

    signature: str
    inputs: Columns
    in_rows: bool

    @property
    def instances(self) -> int:
        """The number of instances, B."""
        return len(next(iter(self.inputs.values())))


def parse(
    body: bytes, signatures: Mapping[str, Signature], options: Options, metadata: Mapping[str, Any]
) -> PredictRequest:
    """Parses the body of a request.

    Args:
        body: JSON.
        signatures: The model's signatures.
        options: The limits.
        metadata: The export's metadata. Its strings must be UTF-8, and its inputs may be given by the columns of the
            table on which the model was trained. Empty for a SavedModel of another tool.

    Raises:
        RequestError: If the body is malformed or too large.
    """
    message = _json_object(body)
    unknown = message.keys() - {"signature_name", "instances", "inputs"}
    if unknown:
        refuse(f"unknown key {_shown(min(unknown))}; a request has instances or inputs, and perhaps signature_name")
    name = message.get("signature_name", DEFAULT_SIGNATURE)
    if not isinstance(name, str):
        refuse(f"signature_name is {_shown(name)}; expected a string")
    if name not in signatures:
        refuse(f"there is no signature {_shown(name)}; the model has {', '.join(signatures)}")
    signature = signatures[name]
    if not signature.takes_rows:
        refuse(f"signature {name} cannot be called over REST: its inputs have no dimension for instances")
    if ("instances" in message) == ("inputs" in message):
        refuse('expected either {"instances": [...]} (a row for each) or {"inputs": ...} (a column for each input)')
    texts, table = bool(metadata), metadata.get("table") or {}
    if "instances" in message:
        inputs = _from_rows(message["instances"], signature, options, texts, table)
    else:
        inputs = _from_columns(message["inputs"], signature, options, texts, table)
    return PredictRequest(name, inputs, "instances" in message)


def render(outputs: Columns, request: PredictRequest) -> bytes:
    """Returns the JSON of a request's answer. Floats have the fewest digits that identify them; bytes become base64.

    Raises:
        RequestError: If the request is in rows, but an output does not have a row for each instance.
    """
    count = request.instances
    for name, value in outputs.items():
        if request.in_rows and value.shape[:1] != (count,):
            raise RequestError(
                400,
                f"signature {request.signature} gives {name} of shape {list(value.shape)} for {count} "
                'instances, which are no rows; ask for columns, {"inputs": ...}',
            )
    values = {name: _as_json(value) for name, value in outputs.items()}
    if not request.in_rows:
        answer: Any = {"outputs": next(iter(values.values())) if len(values) == 1 else values}
    elif len(values) == 1:
        answer = {"predictions": next(iter(values.values()))}
    else:
        answer = {"predictions": [{name: value[i] for name, value in values.items()} for i in range(count)]}
    return orjson.dumps(answer, default=_encode_bytes, option=orjson.OPT_SERIALIZE_NUMPY)


def _as_json(value: np.ndarray) -> Any:
    """Returns an output in a form that orjson can write."""
    if value.dtype == object:
        return value.tolist()
    return np.ascontiguousarray(value if value.dtype.char in "?bhilqBHILQfd" else value.astype(np.float32))


def _encode_bytes(value: Any) -> dict[str, str]:
    return {"b64": base64.b64encode(value).decode()}


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        try:
            body.decode()
        except UnicodeDecodeError as not_utf8:
            refuse(f"the request is not UTF-8: byte 0x{body[not_utf8.start]:02x} at {not_utf8.start}")
        refuse(f"the request is not JSON: {error}")
    if not isinstance(message, dict):
        refuse(f'the request is {_kind(message)}; expected an object: {{"instances": [...]}}')
    return message


def _from_rows(
    instances: Any, signature: Signature, options: Options, texts: bool, table: Mapping[str, Any]
) -> Columns:
    if not isinstance(instances, list) or not instances:
        refuse(f"instances is {_shown(instances)}; expected a list with one or more")
    _check_count(len(instances), options)
    inputs = {}
    only = next(iter(signature.inputs)) if len(signature.inputs) == 1 else None
    rows = [{only: row} if only and not (isinstance(row, dict) and row.keys() != {"b64"}) else row for row in instances]
    for i, row in enumerate(rows):
        if texts and isinstance(row, dict):
            rows[i] = row = _by_inputs(row, signature, table, f"instances[{i}]")
        _check_names(row, signature, f"instances[{i}]", table)
    for name, spec in signature.inputs.items():
        leaves: list[Any] = []
        shapes = []
        for i, row in enumerate(rows):
            where = f"instances[{i}]" + ("" if only else f".{name}")
            more, shape = _flat(row[name], name, spec, 1, where)
            leaves += more
            shapes.append(shape)
            if shape != shapes[0]:
                refuse(
                    f"{name} has shape {list(shapes[0])} in instances[0] but {list(shape)} in instances[{i}]; pad them "
                    "to one length, or send them apart"
                )
        inputs[name] = _tensor(leaves, (len(rows), *shapes[0]), name, spec, options, texts)
    return inputs


def _from_columns(
    columns: Any, signature: Signature, options: Options, texts: bool, table: Mapping[str, Any]
) -> Columns:
    if len(signature.inputs) == 1 and not isinstance(columns, dict):
        columns = {next(iter(signature.inputs)): columns}
    if texts and isinstance(columns, dict):  # other columns are ignored, whatever they hold
        known = {*signature.inputs, *list_trained_columns(table)} & columns.keys()
        columns = {name: columns[name] for name in columns if name in known} or columns
        is_other = columns and (table or columns.keys() != signature.inputs.keys())
        if is_other and all(isinstance(each, list) for each in columns.values()):
            _check_count(max(map(len, columns.values())), options)
            _check_lengths(columns)
            named = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
            rows = [_by_inputs(row, signature, table, f"row {number} of inputs") for number, row in enumerate(named)]
            columns = {name: [row.get(name) for row in rows] for name in rows[0]} if rows else columns
    _check_names(columns, signature, "inputs", table)
    inputs = {}
    for name, spec in signature.inputs.items():
        column = columns[name]
        if not isinstance(column, list):
            refuse(f"inputs.{name} is {_kind(column)}; expected a list")
        if not column:
            refuse(f"inputs.{name} is an empty list; expected one or more instances")
        _check_count(len(column), options)
        leaves, shape = _flat(column, name, spec, 0, f"inputs.{name}")
        inputs[name] = _tensor(leaves, shape, name, spec, options, texts)
    _check_lengths(inputs)
    return inputs


def _by_inputs(row: Mapping[str, Any], signature: Signature, table: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Returns the model's inputs in a row, which may have the columns of the training table and other columns."""
    values, problem = read_row(row, signature.inputs, table)
    if problem:
        refuse(f"{where}: {problem}")
    return values if len(values) == len(signature.inputs) else row


def _check_lengths(inputs: Mapping[str, Any]) -> None:
    counts = {name: len(value) for name, value in inputs.items()}
    if len(set(counts.values())) > 1:
        refuse(f"the inputs have different numbers of instances: {counts}")


def _check_count(count: int, options: Options) -> None:
    if count > options.max_instances:
        refuse(f"the request has {count} instances; at most {options.max_instances} are taken at once")


def _check_names(values: Any, signature: Signature, where: str, table: Mapping[str, Any]) -> None:
    expected = ", ".join(signature.inputs)
    columns = list_trained_columns(table)
    if set(columns) - set(signature.inputs):
        expected += f" (or the columns of the training table: {', '.join(columns)})"
    if not isinstance(values, dict):
        refuse(f"{where} is {_kind(values)}; expected an object with {expected}")
    for name in signature.inputs:
        if name not in values:
            refuse(f"{where} lacks {name}; expected an object with {expected}")
    for name in values:
        if name not in signature.inputs:
            refuse(f"{where} has {_shown(name)}, which is no input; expected {expected}")


def _flat(value: Any, name: str, spec: Tensor, first_dimension: int, where: str) -> tuple[list[Any], tuple[int, ...]]:
    """Returns the elements of nested lists, and the shape of the lists.

    Lists are flattened dimension by dimension, and each dimension is checked before the next.

    Args:
        value: Nested lists.
        name: Name of the input, for error messages.
        spec: Type and shape of the input.
        first_dimension: The dimension of `spec` that the outermost list is: 0 for a column, 1 for one instance.
        where: Position of the value in the request, for error messages.
    """
    level: list[Any] = [value]
    shape: tuple[int, ...] = ()
    sizes = spec.shape or ()
    for dimension in range(first_dimension, len(sizes)):
        for i, each in enumerate(level) if set(map(type, level)) - {list} else ():
            if not isinstance(each, list):
                refuse(f"{where}{_index(i, shape)} is {_kind(each)}; expected a list")
        lengths = list(map(len, level))
        if len(set(lengths)) > 1:
            other = next(i for i, length in enumerate(lengths) if length != lengths[0])
            refuse(
                f"{where} has lists of different lengths: {lengths[0]} at {_index(0, shape)}, {lengths[other]} at "
                f"{_index(other, shape)}"
            )
        shape = (*shape, lengths[0] if lengths else 0)
        if dimension and sizes[dimension] not in (None, shape[-1]):
            inner, expected = shape[1 - first_dimension :], ", ".join(map(str, sizes[1:])).replace("None", "any")
            refuse(f"{name} has shape {list(inner)} for each instance; expected [{expected}]")
        level = [each for part in level for each in part]
    return level, shape


def _index(number: int, shape: tuple[int, ...]) -> str:
    """Converts a flat index to the nested form `[0][3]` used in error messages."""
    return "".join(f"[{i}]" for i in np.unravel_index(number, shape)) if shape else ""


def _tensor(
    leaves: list[Any], shape: tuple[int, ...], name: str, spec: Tensor, options: Options, texts: bool
) -> np.ndarray:
    if spec.dtype == STRING:
        values = np.empty(len(leaves), object)
        values[:] = [_text(leaf, name, options, texts) for leaf in leaves]
        return values.reshape(shape)
    if spec.dtype == BOOL:
        _check_types(leaves, {bool}, name, "true or false")
    elif spec.is_integer:
        _check_types(leaves, {int}, name, "an integer")
        for leaf in (min(leaves), max(leaves)) if leaves else ():
            least, greatest = spec.range
            if not least <= leaf <= greatest:
                refuse(f"{name} has {leaf}; {spec.dtype} holds {least} to {greatest}")
    elif spec.is_floating:
        _check_types(leaves, {int, float}, name, "a number")
    else:
        refuse(f"{name} is of type {spec.dtype}, which cannot be sent as JSON")
    return np.array(leaves, spec.numpy_type).reshape(shape)


def _text(leaf: Any, name: str, options: Options, texts: bool) -> str | bytes:
    """Returns a string, or bytes if they are base64 that need not be text."""
    value: str | bytes
    is_b64 = isinstance(leaf, dict) and leaf.keys() == {"b64"} and isinstance(leaf["b64"], str)
    if isinstance(leaf, str):
        value = leaf
    elif is_b64:
        try:
            value = base64.b64decode(leaf["b64"], validate=True)
        except ValueError as error:
            refuse(f"{name} has a b64 that is not base64: {error}")
    else:
        refuse(f'{name} has {_shown(leaf)}; expected a string, or {{"b64": "..."}}')
    what = f"{name} has a {'b64' if is_b64 else 'text'}"
    if (num_bytes := count_text_bytes(value)) > options.max_text_bytes:
        refuse(f"{what} of {num_bytes} bytes; at most {options.max_text_bytes} are taken")
    if isinstance(value, bytes) and texts:
        try:
            value = value.decode()
        except UnicodeDecodeError as error:
            refuse(f"{what} that is not UTF-8: byte 0x{error.object[error.start]:02x} at {error.start}")
    return value


def _check_types(leaves: list[Any], types: set[type], name: str, expected: str) -> None:
    if set(map(type, leaves)) - types:
        wrong = next(leaf for leaf in leaves if type(leaf) not in types)
        refuse(f"{name} has {_shown(wrong)}; expected {expected}")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _shown(value: Any) -> str:
    """Returns a value as JSON, truncated to 40 characters."""
    text = orjson.dumps(value[:40] if isinstance(value, str | list) else value).decode()
    return text if len(text) <= 40 else f"{text[:40]}..."
