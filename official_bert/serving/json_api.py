"""TensorFlow Serving's JSON format: converts requests to arrays, and arrays to responses.

A request has rows, {"instances": [...]}, or columns, {"inputs": ...}, and its response has the same form. The length of
a list is checked before its elements, so that a request that is much too large costs little more than parsing its JSON.

B instances
"""

import base64
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import numpy as np
import orjson

from official_bert.inference.exports import Columns, find_column, list_trained_columns, read_row
from official_bert.inference.predictor import BOOL, STRING, Signature, Tensor, count_text_bytes
from official_bert.kinds.all_kinds import SPECS
from official_bert.kinds.names import DEFAULT_SIGNATURE
from official_bert.serving.options import ServingOptions

# The names of the texts that models of all kinds take. For most kinds they depend on whether the model takes pairs.
_KINDS: Iterable[Any] = SPECS.values()
_TEXT_INPUTS = {"text", "text_pair"}.union(*(kind.text_inputs for kind in _KINDS if type(kind.text_inputs) is tuple))


class RequestError(Exception):
    """An error that is sent to the client as JSON.

    Args:
        status: The HTTP status.
        message: What was received, what was expected, and what to do.
        retry_after: Number of seconds after which the client may try again. None if that would not help.
    """

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after


def refuse(message: str) -> NoReturn:
    """Raises a RequestError with status 400, for a malformed request."""
    raise RequestError(400, message)


@dataclasses.dataclass(frozen=True)
class PredictRequest:
    """The inputs of a signature in a request.

    Attributes:
        signature: Name of the signature.
        inputs: An array [B, ...] for each input.
        in_rows: Whether the request has rows ("instances") instead of columns ("inputs").
    """

    signature: str
    inputs: Columns
    in_rows: bool

    @property
    def instances(self) -> int:
        """The number of instances, B."""
        return len(next(iter(self.inputs.values())))


def parse(
    body: bytes, signatures: Mapping[str, Signature], options: ServingOptions, metadata: Mapping[str, Any]
) -> PredictRequest:
    """Parses the body of a request.

    Args:
        body: The JSON text.
        signatures: The model's signatures.
        options: The options of the server, with its limits.
        metadata: The export's metadata. If it names the columns of the table that the model was trained on, a request
            may use these names. Empty for a SavedModel of another tool.

    Raises:
        RequestError: If the body is malformed or too large.
    """
    message = _parse_object(body)
    unknown = message.keys() - {"signature_name", "instances", "inputs"}
    if unknown:
        refuse(f"unknown key {_format_value(min(unknown))}; the keys are instances or inputs, and signature_name")
    name = message.get("signature_name", "")
    if not isinstance(name, str):
        refuse(f"signature_name is {_format_value(name)}; expected a string")
    name = name or DEFAULT_SIGNATURE
    if name not in signatures:
        refuse(f"the model has no signature {_format_value(name)}; it has {', '.join(signatures)}")
    if not signatures[name].takes_rows:
        refuse(f"signature {name} cannot be called over REST: its inputs have no dimension for instances")
    if ("instances" in message) == ("inputs" in message):
        refuse('expected either {"instances": [...]} (a row for each) or {"inputs": ...} (a column for each input)')
    reader = _Reader(signatures[name], options, metadata, "instances" in message)
    columns = reader.read_rows(message["instances"]) if reader.in_rows else reader.read_columns(message["inputs"])
    return PredictRequest(name, reader.to_arrays(columns), reader.in_rows)


def render(outputs: Columns, request: PredictRequest) -> bytes:
    """Returns the JSON of the response to a request.

    Floats have the fewest digits that identify them.

    Args:
        outputs: An array [B, ...] for each output.
        request: The request, whose form (rows or columns) the response has.

    Raises:
        RequestError: If the request has rows, but an output does not have one element per instance.
    """
    count = request.instances
    for name, value in outputs.items():
        if request.in_rows and value.shape[:1] != (count,):
            raise RequestError(
                400,
                f"signature {request.signature} returns {name} of shape {list(value.shape)} for {count} instances, so "
                'it cannot answer in rows; send columns, {"inputs": ...}',
            )
    values = {name: _to_json(value) for name, value in outputs.items()}
    if not request.in_rows:
        answer: Any = {"outputs": next(iter(values.values())) if len(values) == 1 else values}
    elif len(values) == 1:
        answer = {"predictions": next(iter(values.values()))}
    else:
        answer = {"predictions": [{name: value[i] for name, value in values.items()} for i in range(count)]}
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def _to_json(value: np.ndarray) -> Any:
    """Converts an output to a list or to an array of a dtype that orjson can write."""
    if value.dtype == object:
        return value.tolist()
    return np.ascontiguousarray(value if value.dtype.char in "?bhilqBHILQfd" else value.astype(np.float32))


def _parse_object(body: bytes) -> dict[str, Any]:
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        try:
            body.decode()
        except UnicodeDecodeError as not_utf8:
            refuse(f"the request is not UTF-8: byte 0x{body[not_utf8.start]:02x} at {not_utf8.start}")
        refuse(f"the request is not JSON: {error}")
    if not isinstance(message, dict):
        refuse(f'the request is {_describe_type(message)}; expected an object: {{"instances": [...]}}')
    return message


class _Reader:
    """Reads the inputs of a signature from a parsed request. See `parse` for the arguments."""

    def __init__(
        self, signature: Signature, options: ServingOptions, metadata: Mapping[str, Any], in_rows: bool
    ) -> None:
        self.inputs, self.options, self.in_rows = signature.inputs, options, in_rows
        self.only_input = next(iter(self.inputs)) if len(self.inputs) == 1 else None
        self.is_foreign = not metadata
        takes_text = all(spec.dtype == STRING for spec in self.inputs.values())
        self.table = metadata.get("table") or {} if takes_text else {}
        self.trained_columns = list_trained_columns(self.table)
        self._rows: list[Any] = []  # as received, for error messages

    def read_rows(self, rows: Any) -> dict[str, list[Any]]:
        """Converts "instances", a list of rows, to a list of values for each input."""
        if not isinstance(rows, list) or not rows:
            refuse(f"instances is {_format_value(rows)}; expected a list of one or more instances")
        self._check_count(len(rows))
        if self.only_input:
            named = [isinstance(row, dict) and row.keys() != {"b64"} for row in rows]
            rows = [row if each else {self.only_input: row} for row, each in zip(rows, named, strict=True)]
        self._rows = list(rows)
        for i, row in enumerate(rows):
            if isinstance(row, dict) and not self.is_foreign:
                self._check_text_inputs(row, f"instances[{i}]")
                rows[i] = row = self._select_inputs(row, f"instances[{i}]")
            self._check_names(row, f"instances[{i}]")
        return {name: [row[name] for row in rows] for name in self.inputs}

    def read_columns(self, columns: Any) -> dict[str, list[Any]]:
        """Converts "inputs" to a list of values for each input.

        Args:
            columns: A dict of columns, or the column itself if there is only one input.
        """
        if self.only_input and not isinstance(columns, dict):
            columns = {self.only_input: columns}
        if isinstance(columns, dict) and not self.is_foreign:
            self._check_text_inputs(columns, "inputs")
            # Other columns are ignored, whatever their values are.
            names = {*self.inputs, *self.trained_columns}
            known = {name: column for name, column in columns.items() if name in names}
            self._check_columns(known)
            columns = known or columns
            if known and (self.table or columns.keys() != self.inputs.keys()):
                _check_lengths(columns)
                self._rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
                rows = [self._select_inputs(row, f"row {i} of inputs") for i, row in enumerate(self._rows)]
                columns = {name: [row.get(name) for row in rows] for name in rows[0]}
        self._check_names(columns, "inputs")
        self._check_columns(columns)
        return columns

    def _check_columns(self, columns: Mapping[str, Any]) -> None:
        for name, column in columns.items():
            if not isinstance(column, list):
                refuse(f"inputs.{name} is {_describe_type(column)}; expected a list")
            if not column:
                refuse(f"inputs.{name} is an empty list; expected one or more instances")
            self._check_count(len(column))

    def to_arrays(self, columns: Mapping[str, list[Any]]) -> Columns:
        """Converts the list of values of each input to an array, [B, ...]."""
        arrays = {}
        for name, spec in self.inputs.items():
            leaves, shape = self._flatten(columns[name], name, spec)
            locate = functools.partial(self._locate, shape=shape, name=name)
            arrays[name] = self._to_array(leaves, name, spec, locate).reshape(shape)
        _check_lengths(arrays)
        return arrays

    def _select_inputs(self, row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """Returns the values of the model's inputs in a row. The row may have further columns.

        Args:
            row: Values by name of an input, or by column of the table that the model was trained on.
            where: Position of the row in the request, for the error message.
        """
        values, problem = read_row(row, self.inputs, self.table)
        if problem:
            refuse(f"{where}: {problem}")
        return values if len(values) == len(self.inputs) else row

    def _check_text_inputs(self, names: Mapping[str, Any], where: str) -> None:
        """Refuses texts that only other kinds of models take. Other unknown names are columns of a table."""
        known = {*self.inputs, *self.trained_columns, self.table.get("label_column")}
        if others := sorted(_TEXT_INPUTS & names.keys() - known):
            refuse(f"{where} has {others[0]}, but the model takes {', '.join(self.inputs)}; remove {others[0]}")

    def _check_count(self, count: int) -> None:
        if count > self.options.max_instances:
            refuse(f"the request has {count} instances; at most {self.options.max_instances} are accepted per request")

    def _check_names(self, values: Any, where: str) -> None:
        if isinstance(values, dict) and values.keys() == self.inputs.keys():
            return
        expected = ", ".join(self.inputs)
        if set(self.trained_columns) - set(self.inputs):
            expected += f" (or the columns of the training table: {', '.join(self.trained_columns)})"
        if not isinstance(values, dict):
            refuse(f"{where} is {_describe_type(values)}; expected an object with {expected}")
        for name in self.inputs:
            column, is_present = find_column(name, values, self.table)
            if not is_present:
                refuse(f"{where} lacks {column}; expected an object with {expected}")
        unknown = next(name for name in values if name not in self.inputs)
        refuse(f"{where} has the unknown input {_format_value(unknown)}; expected {expected}")

    def _flatten(self, column: list[Any], name: str, spec: Tensor) -> tuple[list[Any], tuple[int, ...]]:
        """Flattens nested lists, and returns their elements and their shape.

        Each dimension is checked before the next one is flattened.

        Args:
            column: The values of an input.
            name: Name of the input.
            spec: Its dtype and shape.
        """
        level, shape = column, tuple[int, ...]((len(column),))
        sizes = (spec.shape or ())[1:]
        for size in sizes:
            for i, each in enumerate(level) if set(map(type, level)) - {list} else ():
                if not isinstance(each, list):
                    refuse(f"{self._locate(i, shape, name)} is {_describe_type(each)}; expected a list")
            lengths = list(map(len, level))
            if len(set(lengths)) > 1:
                other = next(i for i, length in enumerate(lengths) if length != lengths[0])
                places = [f"{lengths[i]} at {self._locate(i, shape, name)}" for i in (0, other)]
                refuse(
                    f"{name} has lists of different lengths: {', '.join(places)}; pad them to one length, or send them "
                    "in separate requests"
                )
            shape = (*shape, lengths[0] if lengths else 0)
            if size not in (None, shape[-1]):
                expected = ", ".join(map(str, sizes)).replace("None", "any")
                refuse(f"{name} has shape {list(shape[1:])} for each instance; expected [{expected}]")
            level = [each for part in level for each in part]
        return level, shape

    def _locate(self, number: int, shape: tuple[int, ...], name: str) -> str:
        """Converts a flat index to the position of an element in the request, such as instances[0].endings[3].

        Args:
            number: Flat index.
            shape: Shape of the nested lists.
            name: Name of the input.
        """
        indices = np.unravel_index(number, shape)
        name, _ = find_column(name, self._rows[indices[0]] if self._rows else (), self.table)
        first, *others = (f"[{i}]" for i in indices)
        if not self.in_rows:
            return "".join([f"inputs.{name}", first, *others])
        return "".join([f"instances{first}", "" if self.only_input else f".{name}", *others])

    def _to_array(self, leaves: list[Any], name: str, spec: Tensor, locate: Callable[[int], str]) -> np.ndarray:
        """Converts the elements of an input to an array, after checking their types.

        Args:
            leaves: The elements.
            name: Name of the input.
            spec: Its dtype and shape.
            locate: Function from the index of an element to its position in the request, for error messages.
        """
        if spec.dtype == STRING:
            leaves = list(map(_decode_base64, leaves))
            _check_types(leaves, {str}, locate, "a string")
            for number, leaf in enumerate(leaves):
                if (num_bytes := count_text_bytes(leaf)) > self.options.max_text_bytes:
                    most = self.options.max_text_bytes
                    refuse(f"{locate(number)} has {num_bytes} bytes; at most {most} are accepted per text")
        elif spec.dtype == BOOL:
            _check_types(leaves, {bool}, locate, "true or false")
        elif spec.is_integer:
            _check_types(leaves, {int}, locate, "an integer")
            for leaf in (min(leaves), max(leaves)) if leaves else ():
                least, greatest = spec.range
                if not least <= leaf <= greatest:
                    refuse(f"{locate(leaves.index(leaf))} is {leaf}; {spec.dtype} holds {least} to {greatest}")
        elif spec.is_floating:
            _check_types(leaves, {int, float}, locate, "a number")
        else:
            refuse(f"{name} is of type {spec.dtype}, which cannot be sent as JSON")
        return np.array(leaves, spec.numpy_type)


def _check_lengths(inputs: Mapping[str, Any]) -> None:
    counts = {name: len(value) for name, value in inputs.items()}
    if len(set(counts.values())) > 1:
        refuse(f"the inputs have different numbers of instances: {counts}")


def _decode_base64(leaf: Any) -> Any:
    """Returns the text of {"b64": ...}, the form of a string in base64 that TensorFlow Serving accepts."""
    if isinstance(leaf, dict) and leaf.keys() == {"b64"}:
        with contextlib.suppress(TypeError, ValueError):  # A malformed object is refused like other values.
            return base64.b64decode(leaf["b64"], validate=True).decode()
    return leaf


def _check_types(leaves: list[Any], types: set[type], locate: Callable[[int], str], expected: str) -> None:
    if set(map(type, leaves)) - types:
        number = next(i for i, leaf in enumerate(leaves) if type(leaf) not in types)
        refuse(f"{locate(number)} is {_format_value(leaves[number])}; expected {expected}")


def _describe_type(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _format_value(value: Any) -> str:
    """Formats a value as JSON, shortened to 40 characters."""
    text = orjson.dumps(value[:40] if isinstance(value, str | list) else value).decode()
    return text if len(text) <= 40 else f"{text[:40]}..."
