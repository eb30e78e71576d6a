"""What users hand to fit and predict: lists, NumPy arrays, columns with to_list (as pandas' are), tensors, tf.data.

C classes
"""

import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from official_bert.errors import UserError
from official_bert.kinds.features import Array

LARGEST = 1e18  # of labels and weights: the square of more, in a sum over a batch, is no number of float32
_TRUTH = ("False", "True")
BALANCED = "balanced"  # in place of class weights: each class weighs as much as any other altogether


def is_data_set(x: Any) -> bool:
    """Whether x is a tf.data.Dataset, which nobody has made before TensorFlow was imported."""
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(x, tf.data.Dataset)


def are_ids(x: Any) -> bool:
    """Whether x is what the network reads: a dict of ids, or a data set of such, alone or with labels."""
    if is_data_set(x):
        spec = x.element_spec
        return are_ids(spec[0] if isinstance(spec, tuple) else spec)
    return isinstance(x, Mapping) and "input_ids" in x


def as_list(values: Any, name: str = "x") -> list[Any]:
    """Returns the elements of a list, tuple, NumPy array, tensor, or anything with to_list, as a pandas column.

    Of a frame, as pandas', these are its rows, or the values of its only column.

    Raises:
        UserError: it is a single text, or has no order.
    """
    if isinstance(values, list):
        return list(values)
    if isinstance(values, str | bytes):
        raise UserError(f"one text was given, {shown(values)}; expected several: put it into a list")
    tf = sys.modules.get("tensorflow")
    if tf is not None and tf.is_tensor(values):
        values = values.numpy()
    if is_frame(values):
        rows = values.to_numpy()
        return list(rows[:, 0] if rows.shape[1] == 1 else rows)
    if hasattr(values, "to_list"):  # pandas; its tolist does the same
        return list(values.to_list())
    if isinstance(values, Mapping | Set) or not isinstance(values, Iterable):
        raise UserError(f"{name} is {shown(values)}; expected several: a list, an array or a column")
    return list(values)


def is_frame(values: Any) -> bool:
    """Whether the values are a table with named columns, as pandas' DataFrame."""
    return hasattr(values, "columns") and hasattr(values, "to_numpy")


def of_classes(y: Any, labels: Sequence[str]) -> Any:
    """Returns labels; of a frame with a column for each class the columns in the order of the classes, float64 [E, C].

    Columns without names of their own, 0 to C - 1, are in that order.

    Raises:
        UserError: the columns are others.
    """
    if not is_frame(y) or len(y.columns) == 1:
        return y
    names, classes = [class_name(name) for name in y.columns], [class_name(label) for label in labels]
    if sorted(names) == sorted(classes):
        order = [names.index(each) for each in classes]
    elif names == [str(number) for number in range(len(classes))]:
        order = list(range(len(classes)))
    else:
        raise UserError(f"y has the columns {', '.join(names)}; expected one for each of {', '.join(labels)}")
    rows = [[as_number(row[column]) for column in order] for row in y.to_numpy()]
    return np.array(rows, np.float64).reshape(len(rows), len(order))


def as_texts(values: Any, name: str = "x") -> list[str]:
    """Returns texts as str.

    Raises:
        UserError: one of them is no text, or not UTF-8.
    """
    return [as_text(value, f"{name}[{number}]") for number, value in enumerate(as_list(values, name))]


def as_text(value: Any, name: str) -> str:
    """Returns a text as str.

    Raises:
        UserError: it is none, or not UTF-8, or has half a surrogate.
    """
    if isinstance(value, bytes | np.bytes_):
        try:
            value = bytes(value).decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{name} is not UTF-8: {shown(value)}") from error
    if not isinstance(value, str):
        raise UserError(f"{name} is {shown(value)}; expected a text")
    if re.search("[\ud800-\udfff]", value):
        raise UserError(f"{name} has half a surrogate, which is no character: {shown(value)}; remove it")
    return str(value)


def as_pairs(values: Any, name: str = "x") -> tuple[list[str], list[str]]:
    """Returns first and second texts, from two columns or from rows of two texts.

    Columns are a tuple, list or dict of two. Rows are tuples in a list, an array [E, 2], or a frame. Lists in a list
    are always columns, however many texts they hold.

    Raises:
        UserError: the values have another form, or the columns another length.
    """
    if isinstance(values, Mapping) or (is_frame(values) and sorted(map(str, values.columns)) == ["text", "text_pair"]):
        if set(values) != {"text", "text_pair"}:
            raise UserError(f"{name} has the columns {', '.join(map(str, values))}; expected text and text_pair")
        values = (values["text"], values["text_pair"])
    if isinstance(values, list):
        values = columns_as_tuple(values, 2, name)
    if not isinstance(values, tuple):
        rows = as_list(values, name)
        wrong = next((number for number, row in enumerate(rows) if isinstance(row, str) or len(row) != 2), None)
        if wrong is not None:
            raise UserError(
                f"{name}[{wrong}] is {shown(rows[wrong])}; expected a pair of texts, or a tuple of two columns"
            )
        values = ([row[0] for row in rows], [row[1] for row in rows])
    elif len(values) != 2:
        raise UserError(f"{name} is a tuple of {len(values)} columns; expected two, of first and of second texts")
    first, second = as_texts(values[0], f"{name}[0]"), as_texts(values[1], f"{name}[1]")
    if len(first) != len(second):
        raise UserError(f"{name} has {len(first)} first texts and {len(second)} second ones")
    return first, second


def columns_as_tuple(values: list[Any], most: int, name: str) -> Any:
    """Returns a list of columns as a tuple, and a list of rows, which are tuples, unchanged.

    Raises:
        UserError: the columns are fewer than two or more than `most`.
    """
    if not values or not all(_is_column(each) for each in values):
        return values
    if not 2 <= len(values) <= most:
        raise UserError(
            f"{name} is a list of {len(values)} lists, which are read as columns; give rows as tuples: "
            f"{name} = [tuple(row) for row in {name}]"
        )
    return tuple(values)


def _is_column(values: Any) -> bool:
    """Whether the values are a list, an array or a column of a frame, rather than a text or a row."""
    return isinstance(values, list) or bool(getattr(values, "shape", ()))


def check_same_length(examples: int, values: Sequence[Any] | Array, name: str) -> None:
    """Raises a UserError if there is not one value for each example."""
    if len(values) != examples:
        raise UserError(f"there are {examples} examples and {len(values)} values in {name}")


def label_names(labels: Any, least: int, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of classes that a user gave to a model.

    Args:
        labels: names or numbers.
        least: how many there must be.
        settings: what else was given, by name.

    Raises:
        UserError: they are none, or too few, one of them is no name, or two of them are the same.
    """
    counts = [f"{name}={settings[name]!r}" for name in ("num_classes", "num_labels") if name in settings]
    is_several = not counts and isinstance(labels, Iterable) and not isinstance(labels, str | bytes)
    values = as_list(labels, "labels") if is_several else []
    names = tuple(str(value) for value in values if _is_name(value))
    if len(names) < max(least, len(values)) or len({class_name(name) for name in names}) < len(names):
        received = f"{counts[0]} was given" if counts else f"labels is {shown(labels)}"
        count = "two or more" if least > 1 else "one or more"
        raise UserError(f"{received}; expected the names of {count} different classes, as labels=['no', 'yes']")
    return names


def _is_name(value: Any) -> bool:
    """Whether a class can be called so; a gap in a column cannot, be it None or NaN."""
    return isinstance(value, str | int | float | np.number | np.bool_) and value == value


def class_name(value: Any) -> str:
    """Returns the name of a class: 3 and 3.0 are one, since columns with missing numbers are written with points."""
    name = str(value)
    return name.partition(".")[0] if re.fullmatch(r"-?[0-9]+\.0+", name) else name


def numbers_by_name(labels: Sequence[str]) -> dict[str, int]:
    """Returns the number of each class by its name, and by what `class_name` makes of it."""
    number_of = {class_name(label): number for number, label in enumerate(labels)}
    return number_of | {label: number for number, label in enumerate(labels)}


def are_whole_numbers(labels: Sequence[str]) -> bool:
    """Whether the names of all classes are whole numbers: a number then is a name, and never the number of a class."""
    return all(re.fullmatch("-?[0-9]+", class_name(label)) for label in labels)


def are_values(labels: Sequence[str]) -> bool:
    """Whether one of the classes is called by a number or a truth value: a value then is a name, as above."""
    return any(re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", label) or label in _TRUTH for label in labels)


def numbers_of(values: Iterable[Any], labels: Sequence[str], name: str = "y") -> list[int]:
    """Returns the numbers of classes that are given by name or, unless one of the names is a number, by number.

    Of the classes False and True, in this order, 0 and 1 are the numbers. Each value may be in a list of its own, as in
    a column [E, 1], or be a row of 0 and one 1, [C].

    Raises:
        UserError: a value is none of these.
    """
    number_of = numbers_by_name(labels)
    are_names = are_values(labels) and tuple(labels) != _TRUTH
    numbers = []
    for position, value in enumerate(values):
        number = _place_of_one(value, len(labels))
        if number is None:
            number = _number_of(_alone(value), number_of, are_names)
        if not 0 <= number < len(labels):
            or_number = "" if are_names else f", or a number from 0 to {len(labels) - 1}"
            raise UserError(f"{name}[{position}] is {shown(value)}; expected one of {', '.join(labels)}{or_number}")
        numbers.append(number)
    return numbers


def _number_of(value: Any, number_of: Mapping[str, int], are_names: bool) -> int:
    """The number of a class that is given by name or by number; -1 for none."""
    if isinstance(value, bytes | np.bytes_):
        value = bytes(value).decode("utf-8", "replace")
    if isinstance(value, str):
        return number_of.get(value, number_of.get(class_name(value), -1))
    if are_names:
        return number_of.get(str(value), number_of.get(class_name(value), -1))
    number = as_number(value)
    return int(number) if number.is_integer() else -1


def _alone(value: Any) -> Any:
    """The only value of a row; others as they are."""
    return value[0] if _is_row(value) and len(value) == 1 else value


def _place_of_one(value: Any, classes: int) -> int | None:
    """The place of the 1 in a row of 0 and one 1, [classes]; None for others."""
    if not _is_row(value) or np.ndim(value) != 1 or len(value) != classes or classes == 1:
        return None
    is_one_hot = all(each in (0, 1) for each in np.ravel(value).tolist()) and sum(value) == 1
    return int(np.argmax(value)) if is_one_hot else None


def _is_row(value: Any) -> bool:
    return isinstance(value, list | tuple | np.ndarray) and bool(np.ndim(value))


def as_number(value: Any) -> float:
    """Returns a value, or the only one of a row, as a number; NaN where it is none."""
    try:
        return float(_alone(value))
    except (TypeError, ValueError, OverflowError):
        return math.nan


def weights_of(values: Any, name: str) -> Array:
    """Returns how much each example weighs, float32 [E].

    Raises:
        UserError: a weight is no finite number, or negative.
    """
    return np.array(
        [_weight(value, f"{name}[{number}]") for number, value in enumerate(as_list(values, name))], np.float32
    )


def _weight(value: Any, name: str) -> float:
    weight = as_number(value)
    if not 0 <= weight <= LARGEST:
        raise UserError(f"{name} is {shown(value)}; expected a finite number, 0 or more, at most {LARGEST:g}")
    return weight


def is_balanced(class_weight: Any) -> bool:
    """Whether classes are to be weighed by how rare they are."""
    return isinstance(class_weight, str) and class_weight == BALANCED


def weights_by_class(class_weight: Mapping[Any, float] | str, labels: Sequence[str]) -> Any:
    """Returns the weight of each class, float32 [C]; classes that are not named weigh 1.

    Args:
        class_weight: by name or by number.
        labels: the classes' names.

    Raises:
        UserError: there is no such class, or a weight is no finite number, or negative.
    """
    if not isinstance(class_weight, Mapping):
        raise UserError(f"class_weight is {shown(class_weight)}; expected a dict of weights by class, or {BALANCED!r}")
    by_class = np.ones(len(labels), np.float32)
    keys = list(class_weight)
    numbers = numbers_of(keys, labels, "class_weight")
    by_class[numbers] = [_weight(class_weight[key], f"class_weight[{key!r}]") for key in keys]
    return by_class


def balanced_weights(numbers: Array, classes: int) -> Array:
    """Returns the weight of each class, float64 [C], by which all that occur weigh alike, and a row 1 on average.

    Args:
        numbers: of the rows' classes, int [R].
        classes: how many there are.
    """
    counts = np.bincount(numbers, minlength=classes)
    return np.asarray(len(numbers) / (np.maximum(counts, 1) * np.count_nonzero(counts)))


def shown(value: Any) -> str:
    """Returns a value for a message, in one line."""
    text = " ".join(repr(value.item() if isinstance(value, np.generic) else value).split())
    return text if len(text) <= 60 else text[:57] + "..."
