"""What users hand to fit and predict: lists, NumPy arrays, columns with to_list (as pandas' are), tensors, tf.data.

C classes
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.errors import UserError


def are_ids(x: Any) -> bool:
    """Whether x is what the network reads: a dict of ids, or a data set of such, alone or with labels."""
    if isinstance(x, tf.data.Dataset):
        spec = x.element_spec
        return are_ids(spec[0] if isinstance(spec, tuple) else spec)
    return isinstance(x, Mapping) and "input_ids" in x


def as_list(values: Any) -> list[Any]:
    """Returns the elements of a list, tuple, NumPy array, tensor, or anything with to_list, as a pandas column."""
    if isinstance(values, str | bytes):
        raise UserError(f"one text was given, {_short(values)}; expected several: put it into a list")
    if tf.is_tensor(values):
        values = values.numpy()
    if hasattr(values, "to_list"):  # pandas; its tolist does the same
        return list(values.to_list())
    return list(values)


def as_texts(values: Any, name: str = "x") -> list[str]:
    """Returns texts as str.

    Raises:
        UserError: one of them is no text, or not UTF-8.
    """
    return [as_text(value, f"{name}[{number}]") for number, value in enumerate(as_list(values))]


def as_text(value: Any, name: str) -> str:
    """Returns a text as str.

    Raises:
        UserError: it is none, or not UTF-8.
    """
    if isinstance(value, bytes | np.bytes_):
        try:
            value = bytes(value).decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{name} is not UTF-8: {_short(value)}") from error
    if not isinstance(value, str):
        raise UserError(f"{name} is {_short(value)}; expected a text")
    return str(value)


def as_pairs(values: Any, name: str = "x") -> tuple[list[str], list[str]]:
    """Returns first and second texts, from a tuple or dict of two columns or from rows of two texts.

    Raises:
        UserError: the values have another form, or the columns another length.
    """
    if isinstance(values, Mapping):
        if set(values) != {"text", "text_pair"}:
            raise UserError(f"{name} has the columns {', '.join(map(str, values))}; expected text and text_pair")
        values = (values["text"], values["text_pair"])
    if not isinstance(values, tuple):
        rows = as_list(values)
        wrong = next((number for number, row in enumerate(rows) if isinstance(row, str) or len(row) != 2), None)
        if wrong is not None:
            raise UserError(
                f"{name}[{wrong}] is {_short(rows[wrong])}; expected a pair of texts, or a tuple of two columns"
            )
        values = ([row[0] for row in rows], [row[1] for row in rows])
    elif len(values) != 2:
        raise UserError(f"{name} is a tuple of {len(values)} columns; expected two, of first and of second texts")
    first, second = as_texts(values[0], f"{name}[0]"), as_texts(values[1], f"{name}[1]")
    if len(first) != len(second):
        raise UserError(f"{name} has {len(first)} first texts and {len(second)} second ones")
    return first, second


def check_same_length(examples: int, values: Sequence[Any], name: str) -> None:
    """Raises a UserError if there is not one value for each example."""
    if len(values) != examples:
        raise UserError(f"there are {examples} examples and {len(values)} values in {name}")


def numbers_of(values: Iterable[Any], labels: Sequence[str], name: str = "y") -> list[int]:
    """Returns the numbers of classes that are given by number or by name.

    Raises:
        UserError: a value is neither.
    """
    number_of = {label: number for number, label in enumerate(labels)}
    numbers = []
    for position, value in enumerate(values):
        if isinstance(value, bytes | np.bytes_):
            value = bytes(value).decode("utf-8", "replace")
        if isinstance(value, str):
            number = number_of.get(value, -1)
        else:
            is_whole = isinstance(value, int | np.integer | np.bool_) or float(value).is_integer()
            number = int(value) if is_whole else -1
        if not 0 <= number < len(labels):
            raise UserError(
                f"{name}[{position}] is {_short(value)}; expected one of {', '.join(labels)}, or a number from 0 to "
                f"{len(labels) - 1}"
            )
        numbers.append(number)
    return numbers


def weights_by_class(class_weight: Mapping[Any, float], labels: Sequence[str]) -> Any:
    """Returns the weight of each class, float32 [C]; classes that are not named weigh 1.

    Args:
        class_weight: by name or by number.
        labels: the classes' names.
    """
    by_class = np.ones(len(labels), np.float32)
    keys = list(class_weight)
    by_class[numbers_of(keys, labels, "class_weight")] = [class_weight[key] for key in keys]
    return by_class


def is_batched(texts: Any) -> bool:
    """Whether a data set's texts come in batches, by their specification.

    Raises:
        UserError: it does not say so.
    """
    rank = tf.nest.flatten(texts)[0].shape.rank
    if rank is None:
        raise UserError(f"the data set's texts are {texts}; expected a known shape: [] for one, [None] for batches")
    return bool(rank)


def as_values(tensors: Any) -> Any:
    """Returns tensors of any structure as NumPy arrays, ragged ones as lists."""
    return tf.nest.map_structure(
        lambda each: each.to_list() if isinstance(each, tf.RaggedTensor) else each.numpy(), tensors
    )


def steps_in(data: Any, batch_size: int, validation_split: float) -> int:
    """Returns the batches of a data set, which are counted where it does not say, or of ids.

    Args:
        data: a tf.data.Dataset, or what the network reads.
        batch_size: of ids.
        validation_split: the share of ids that is not trained on.

    Raises:
        UserError: the data set never ends.
    """
    if not isinstance(data, tf.data.Dataset):
        rows = len(data["input_ids"])
        return -(-(split_off(rows, validation_split) if validation_split else rows) // batch_size)
    cardinality = int(data.cardinality())
    if cardinality == tf.data.INFINITE_CARDINALITY:
        raise UserError("the data set never ends; pass steps_per_epoch")
    if cardinality == tf.data.UNKNOWN_CARDINALITY:
        cardinality = int(data.reduce(np.int64(0), lambda count, *_: count + 1))
    return cardinality


def split_off(examples: int, validation_split: float) -> int:
    """Returns how many examples are left to train on when the last share of them is for validation.

    Raises:
        UserError: one of both parts would be empty.
    """
    kept = math.floor(examples * (1 - validation_split))
    if not 0 < kept < examples:
        raise UserError(f"validation_split={validation_split:g} of {examples} examples leaves one of both parts empty")
    return kept


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
