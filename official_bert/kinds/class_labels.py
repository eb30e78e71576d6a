"""Labels of classes that users pass to `fit`: by name, by number, one-hot, or as columns. And weights of classes.

E examples, R rows, C classes
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from official_bert.errors import UserError
from official_bert.kinds.features import Array
from official_bert.kinds.input_adapters import (
    check_weight,
    check_weights,
    format_value,
    is_frame,
    is_row,
    to_list,
    to_number,
    unwrap,
)

BALANCED = "balanced"  # in place of class weights: all classes have the same total weight
UNKNOWN_LABELS = ("(unknown label)", "(another unknown label)")  # of a model that learns its labels from y
_TRUTH = ("False", "True")
_ROUNDING = 1e-3  # largest accepted difference of a sum of probabilities from 1


def order_class_columns(y: Any, labels: Sequence[str]) -> Any:
    """Returns labels. If a DataFrame has a column per class, puts them in the order of the classes, float64 [E, C].

    Columns named 0 to C - 1 already have that order.

    Raises:
        UserError: If there is not one column per class.
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
    rows = [[to_number(row[column]) for column in order] for row in y.to_numpy()]
    return np.array(rows, np.float64).reshape(len(rows), len(order))


def check_label_names(labels: Any, least: int, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of classes that a user passed to a model.

    Args:
        labels: Names or numbers. None returns UNKNOWN_LABELS.
        least: Minimum number of classes.
        settings: The other arguments, by name.

    Raises:
        UserError: If there are too few classes, a value cannot be a name, or two names are equal.
    """
    counts = [f"{name}={settings[name]!r}" for name in ("num_classes", "num_labels") if name in settings]
    if labels is None and not counts:
        return UNKNOWN_LABELS
    is_several = not counts and isinstance(labels, Iterable) and not isinstance(labels, str | bytes)
    values = to_list(labels, "labels") if is_several else []
    names = tuple(str(value) for value in values if _is_name(value))
    if len(names) < max(least, len(values)) or len({class_name(name) for name in names}) < len(names):
        received = f"{counts[0]} was given" if counts else f"labels is {format_value(labels)}"
        count = "two or more" if least > 1 else "one or more"
        raise UserError(f"{received}; expected the names of {count} different classes, as labels=['no', 'yes']")
    return names


def learn_label_names(y: Any) -> list[str]:
    """Returns the names of the classes in y: numbers in ascending order, or names in alphabetical order.

    Args:
        y: Labels, or lists of labels.

    Raises:
        UserError: If a label is missing, or the labels are rows of numbers.
    """
    names = set()
    for number, value in enumerate(to_list(y, "y")):
        is_numbers = isinstance(value, np.ndarray) and value.size > 1 and value.dtype.kind in "biuf"
        each_name = list(value) if is_row(value) else [value]
        if is_numbers or not all(map(_is_name, each_name)):
            raise UserError(f"y[{number}] is {format_value(value)}, which does not name a class; pass labels=[...]")
        names |= {class_name(name) for name in each_name}
    return sorted(names, key=float) if are_whole_numbers(list(names)) else sorted(names)


def _is_name(value: Any) -> bool:
    """Returns whether a value can be the name of a class. A gap in a column, None or NaN, cannot."""
    return isinstance(value, str | int | float | np.number | np.bool_) and value == value


def class_name(value: Any) -> str:
    """Returns the name of a class. 3.0 becomes 3, since columns with missing numbers are written with points."""
    name = str(value)
    return name.partition(".")[0] if re.fullmatch(r"-?[0-9]+\.0+", name) else name


def numbers_by_name(labels: Sequence[str]) -> dict[str, int]:
    """Returns the number of each class, by its label and by its `class_name`."""
    numbers = {class_name(label): number for number, label in enumerate(labels)}
    return numbers | {label: number for number, label in enumerate(labels)}


def are_whole_numbers(labels: Sequence[str]) -> bool:
    """Returns whether all classes are named by whole numbers. A number then is a name, never the index of a class."""
    return all(re.fullmatch("-?[0-9]+", class_name(label)) for label in labels)


def are_values(labels: Sequence[str]) -> bool:
    """Returns whether a class is named by a number or a truth value. Such a value then is a name, as above."""
    return any(re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", label) or label in _TRUTH for label in labels)


def class_numbers(values: Iterable[Any], labels: Sequence[str], name: str = "y") -> list[int]:
    """Returns the numbers of classes that are given by name or, unless one of the names is a number, by number.

    For the classes False and True, in this order, 0 and 1 are numbers. A value may be in a list of its own, as in a
    column [E, 1], or be one-hot, [C].

    Raises:
        UserError: If a value is not a class.
    """
    by_name = numbers_by_name(labels)
    are_names = are_values(labels) and tuple(labels) != _TRUTH
    numbers = []
    for position, value in enumerate(values):
        is_one_hot = is_probability_row(value, len(labels)) and max(value) == 1
        number = int(np.argmax(value)) if is_one_hot else _find_number(unwrap(value), by_name, are_names)
        if not 0 <= number < len(labels):
            or_number = "" if are_names else f", or a number from 0 to {len(labels) - 1}"
            raise UserError(
                f"{name}[{position}] is {format_value(value)}; expected one of {', '.join(labels)}{or_number}"
            )
        numbers.append(number)
    return numbers


def _find_number(value: Any, by_name: Mapping[str, int], are_names: bool) -> int:
    """Returns the number of a class that is given by name or by number, or -1 if it is unknown."""
    if isinstance(value, bytes | np.bytes_):
        value = bytes(value).decode("utf-8", "replace")
    if isinstance(value, str):
        return by_name.get(value, by_name.get(class_name(value), -1))
    if are_names:
        return by_name.get(str(value), by_name.get(class_name(value), -1))
    number = to_number(value)
    return int(number) if number.is_integer() else -1


def is_probability_row(value: Any, classes: int) -> bool:
    """Returns whether a value has a probability for each class, such as a one-hot row."""
    if not is_row(value) or np.ndim(value) != 1 or len(value) != classes or classes == 1:
        return False
    row = np.asarray(value)
    return bool(row.dtype.kind in "biuf" and ((row >= 0) & (row <= 1)).all() and abs(row.sum() - 1) <= _ROUNDING)


def convert_label_form(targets: Array, has_one_hot: bool | None, classes: int) -> Array:
    """Returns labels of single classes as rows, float32 [R, C], or as indices, int32 [R].

    Args:
        targets: Indices or rows.
        has_one_hot: Whether to return rows. None keeps the form.
        classes: C.

    Raises:
        UserError: If indices are expected, and a row is not one-hot.
    """
    if has_one_hot is None or has_one_hot == (targets.ndim == 2):
        return targets
    if has_one_hot:
        return np.eye(classes, dtype=np.float32)[targets]
    if (soft := targets.max(axis=1) < 1).any():
        row = ", ".join(f"{value:g}" for value in targets[soft][0])
        raise UserError(
            f"y contains probabilities, such as [{row}], but the loss reads the index of a class; compile with "
            "loss=keras.losses.CategoricalCrossentropy(from_logits=True)"
        )
    return np.asarray(targets.argmax(axis=1), np.int32)


def is_balanced(class_weight: Any) -> bool:
    """Returns whether classes are weighted by how rare they are."""
    return isinstance(class_weight, str) and class_weight == BALANCED


def weights_by_class(class_weight: Any, labels: Sequence[str]) -> Array:
    """Returns the weight of each class, float32 [C]. The default weight is 1.

    Args:
        class_weight: Weights by the name or number of a class, or a weight for each class in the order of the labels,
            as scikit-learn's compute_class_weight returns them.
        labels: The names of the classes.

    Raises:
        UserError: If a class is unknown, or a weight is negative or not a finite number.
    """
    if is_row(class_weight) and len(class_weight) == len(labels):
        return check_weights(class_weight, "class_weight")
    if not isinstance(class_weight, Mapping):
        raise UserError(
            f"class_weight is {format_value(class_weight)}; expected a dict of weights by class, an array of "
            f"{len(labels)} weights in the order of the labels, or {BALANCED!r}"
        )
    by_class = np.ones(len(labels), np.float32)
    keys = list(class_weight)
    numbers = class_numbers(keys, labels, "class_weight")
    by_class[numbers] = [check_weight(class_weight[key], f"class_weight[{key!r}]") for key in keys]
    return by_class


def balanced_weights(numbers: Array, classes: int) -> Array:
    """Returns the weight of each class, float64 [C], with equal totals per class and a mean of 1 per row.

    Args:
        numbers: The class of each row, int [R].
        classes: C.
    """
    counts = np.bincount(numbers, minlength=classes)
    return np.asarray(len(numbers) / (np.maximum(counts, 1) * np.count_nonzero(counts)))
