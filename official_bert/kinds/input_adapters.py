"""Input adapters: convert the containers that users pass to `fit` and `predict`, such as arrays and DataFrames."""

import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from official_bert.errors import UserError
from official_bert.kinds.features import Array
from official_bert.utils.counting import pluralize

# Maximum magnitude of labels and weights. The sum of the squares of larger ones overflows float32.
MAX_MAGNITUDE = 1e18
_PAIR = ("text", "text_pair")


def are_ids(x: Any) -> bool:
    """Returns whether `x` contains token ids instead of texts.

    True for a dict with the key input_ids, and for a tf.data.Dataset whose elements are such dicts or (dict, labels)
    tuples.
    """
    tf = sys.modules.get("tensorflow")  # Does not import it.
    if tf is not None and isinstance(x, tf.data.Dataset):
        x = x.element_spec[0] if isinstance(x.element_spec, tuple) else x.element_spec
    return isinstance(x, Mapping) and "input_ids" in x


def to_list(values: Any, name: str = "x") -> list[Any]:
    """Converts a list, tuple, NumPy array, tensor or pandas column to a list of its elements.

    For a DataFrame, returns the list of its rows, or of the values of its only column.

    Args:
        values: The values.
        name: Name of the argument, for error messages.

    Raises:
        UserError: If `values` is a single text, a dict, a set or not iterable.
    """
    if isinstance(values, list):
        return list(values)
    if isinstance(values, str | bytes):
        raise UserError(f"{name} is a single text, {format_value(values)}; expected several texts: pass a list")
    tf = sys.modules.get("tensorflow")
    if tf is not None and tf.is_tensor(values):
        values = values.numpy()
    if is_frame(values):
        rows = values.to_numpy()
        return list(rows[:, 0] if rows.shape[1] == 1 else rows)
    if hasattr(values, "to_list"):  # a pandas column
        return list(values.to_list())
    if isinstance(values, Mapping | Set) or not isinstance(values, Iterable):
        raise UserError(f"{name} is {format_value(values)}; expected a list, an array or a column")
    return list(values)


def is_frame(values: Any) -> bool:
    """Returns whether the values are a table with named columns, such as a pandas DataFrame."""
    return hasattr(values, "columns") and hasattr(values, "to_numpy")


def to_texts(values: Any, name: str = "x") -> list[str]:
    """Converts a list, array or column of str or UTF-8 bytes to a list of str.

    Args:
        values: The texts.
        name: Name of the argument, for error messages.

    Raises:
        UserError: If a value is missing (None or NaN), is not a text, or is not valid UTF-8.
    """
    if is_frame(values) and len(values.columns) > 1:
        column = "text" if "text" in values.columns else values.columns[0]
        raise UserError(
            f"{name} has the columns {', '.join(map(str, values.columns))}; pass the column that contains the texts, "
            f"such as {name}[{column!r}], or for pairs of texts, create the model with pair=True"
        )
    elements = to_list(values, name)
    missing = [number for number, value in enumerate(elements) if _is_missing(value)]
    if missing:
        raise UserError(
            f"{name}[{missing[0]}] is {format_value(elements[missing[0]])}; expected a text; {len(missing):,} of "
            f"{pluralize(len(elements), 'text')} are missing: remove these rows, or replace the missing texts by ''"
        )
    return [to_text(value, f"{name}[{number}]") for number, value in enumerate(elements)]


def _is_missing(value: Any) -> bool:
    """Returns whether a value is None, NaN, or the missing value of pandas."""
    is_nan = isinstance(value, float | np.floating) and math.isnan(value)
    return value is None or is_nan or type(value).__name__ in ("NAType", "NaTType")


def to_text(value: Any, name: str) -> str:
    """Converts a str or UTF-8 bytes to str.

    Args:
        value: The text.
        name: What the value is called in error messages, such as "x[3]".

    Raises:
        UserError: If the value is not a text, is not valid UTF-8, or contains half of a surrogate pair.
    """
    if isinstance(value, bytes | np.bytes_):
        try:
            value = bytes(value).decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{name} is not UTF-8: {format_value(value)}; encode the text as UTF-8") from error
    if not isinstance(value, str):
        is_pair = _is_column(value) or isinstance(value, tuple)
        hint = "; for pairs of texts, create the model with pair=True" if is_pair else ""
        raise UserError(f"{name} is {format_value(value)}; expected a text{hint}")
    if re.search("[\ud800-\udfff]", value):
        raise UserError(f"{name} contains half of a surrogate pair: {format_value(value)}; remove it")
    return str(value)


def to_pairs(values: Any, columns: tuple[str, ...] = _PAIR) -> tuple[list[str], list[str]]:
    """Converts the text pairs `x` in any supported form to a list of first texts and a list of second texts.

    Args:
        values: Two columns (a tuple or list of two, or a dict or DataFrame with the names in `columns`, or text and
            text_pair), or rows of two texts (a list of tuples, an array [E, 2], or any other DataFrame). A list of
            lists is always read as columns.
        columns: Names of the first and the second texts.

    Raises:
        UserError: If `values` has another type, or the two columns differ in length.
    """
    if isinstance(values, Mapping) or is_frame(values):
        found = next((names for names in (columns, _PAIR) if set(values) == set(names)), None)
        if found:
            values = tuple(values[column] for column in found)
        elif isinstance(values, Mapping) or len(values.columns) > 2:
            raise UserError(f"x has the columns {', '.join(map(str, values))}; expected {' and '.join(columns)}")
    first, second = to_columns(values, 2, 2)
    return first, second


def to_columns(values: Any, least: int, most: int) -> list[list[str]]:
    """Converts the pairs or triplets of texts `x` in any supported form to a list of columns, each a list of texts.

    Args:
        values: Columns (a tuple or list), or rows (a list of tuples, an array, or a DataFrame). A list of lists is
            always read as columns.
        least: Minimum number of columns.
        most: Maximum number of columns.

    Raises:
        UserError: If `values` has another form, or the columns differ in length.
    """
    expected = "triplets" if least == 3 else "pairs or triplets" if most == 3 else "pairs"
    if isinstance(values, list) and values and all(map(_is_column, values)):
        if not 2 <= len(values) <= most:
            raise UserError(
                f"x is a list of {len(values)} lists, which are read as columns; pass rows as tuples: "
                "x = [tuple(row) for row in x]"
            )
        values = tuple(values)
    if not isinstance(values, tuple):
        rows = to_list(values)
        sizes = [0 if isinstance(row, str) else len(row) for row in rows]
        wrong = next((i for i, size in enumerate(sizes) if not least <= size <= most or size != sizes[0]), None)
        if wrong is not None:
            raise UserError(
                f"x[{wrong}] is {format_value(rows[wrong])}; expected {expected} of texts, or a tuple of columns"
            )
        values = tuple(zip(*rows, strict=True)) if rows else ((),) * least
    if not least <= len(values) <= most:
        raise UserError(f"x is a tuple of {len(values)} columns; expected {expected} of texts")
    columns = [to_texts(column, f"x[{number}]") for number, column in enumerate(values)]
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise UserError(f"x has columns of {', '.join(map(str, lengths))} texts; pass the same number in each")
    return columns


def _is_column(values: Any) -> bool:
    """Returns whether a value is a list, an array or a pandas column. A text or a tuple is not a column."""
    return isinstance(values, list) or bool(getattr(values, "shape", ()))


def check_same_length(examples: int, values: Sequence[Any] | Array, name: str) -> None:
    """Raises a UserError unless `values` has `examples` elements, one for each example."""
    if len(values) != examples:
        raise UserError(f"{name} has {len(values)} values for {examples} examples; pass one value per example")


def to_number(value: Any) -> float:
    """Converts a value, or a list or array of one value, to float. Returns NaN if it is not a number."""
    try:
        return float(unwrap(value))
    except (TypeError, ValueError, OverflowError):
        return math.nan


def unwrap(value: Any) -> Any:
    """Returns the only element of a list, tuple or array of length 1. Returns any other value unchanged."""
    return value[0] if is_row(value) and len(value) == 1 else value


def is_row(value: Any) -> bool:
    """Returns whether a value is a list, a tuple or an array with at least one dimension."""
    return isinstance(value, list | tuple | np.ndarray) and bool(np.ndim(value))


def check_weights(values: Any, name: str) -> Array:
    """Converts sample weights to float32 [E].

    Args:
        values: A weight for each example.
        name: Name of the argument, for error messages.

    Raises:
        UserError: If a weight is negative, not finite, or above MAX_MAGNITUDE.
    """
    return np.array(
        [check_number(value, f"{name}[{number}]", 0) for number, value in enumerate(to_list(values, name))], np.float32
    )


def check_number(value: Any, name: str, least: float = -MAX_MAGNITUDE) -> float:
    """Converts a label or a weight to float.

    Args:
        value: The number.
        name: What the number is called in error messages.
        least: The minimum. The maximum is MAX_MAGNITUDE.

    Raises:
        UserError: If the value is not a number, not finite, or out of range.
    """
    number = to_number(value)
    if not least <= number <= MAX_MAGNITUDE:
        raise UserError(
            f"{name} is {format_value(value)}; expected a finite number from {least:g} to {MAX_MAGNITUDE:g}"
        )
    return number


def format_value(value: Any) -> str:
    """Formats a value for an error message: its repr on one line, shortened to 60 characters."""
    text = " ".join(repr(value.item() if isinstance(value, np.generic) else value).split())
    return text if len(text) <= 60 else text[:57] + "..."
