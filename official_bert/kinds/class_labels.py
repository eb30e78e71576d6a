"""Parses the class labels that users pass to `fit` (names, indices, one-hot rows or DataFrame columns), and weights.

E examples, R rows of the model's input (texts, or windows of long texts), C classes
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from official_bert.errors import UserError
from official_bert.kinds.features import Array
from official_bert.kinds.input_adapters import (
    check_number,
    check_weights,
    format_value,
    is_frame,
    is_row,
    to_list,
    to_number,
    unwrap,
)

BALANCED = "balanced"  # the class_weight that gives all classes the same total weight
UNKNOWN_LABELS = ("(unknown label)", "(another unknown label)")  # placeholders until `fit` learns the labels
_TRUTH = ("False", "True")
_ROUNDING = 1e-3  # how far a sum of probabilities may be from 1


def order_class_columns(y: Any, labels: Sequence[str]) -> Any:
    """Reorders the class columns of a DataFrame to the order of `labels`, and returns them as float64 [E, C].

    Columns named 0 to C - 1 are taken to be in that order already. Any other `y`, including a DataFrame with a single
    column, is returned unchanged.

    Args:
        y: The labels that a user passed.
        labels: Names of the classes, in the order of the logits.

    Raises:
        UserError: If `y` is a DataFrame with several columns that are not one per class.
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
    """Returns the class names that a user passed to a model as strings, after checking them.

    Args:
        labels: Names or numbers of the classes. If None, the placeholders UNKNOWN_LABELS are returned, and the model
            learns its labels from `y` later.
        least: Minimum number of classes.
        settings: The other arguments of the model. `num_classes` and `num_labels` are reported as errors, because the
            names are needed.

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
        raise UserError(f"{received}; expected the names of {count} different classes, such as labels=['no', 'yes']")
    return names


def learn_label_names(y: Any) -> list[str]:
    """Returns the distinct class names in `y`, sorted by value if all are whole numbers, else alphabetically.

    Args:
        y: A label for each example, or a list of labels for each example.

    Raises:
        UserError: If a label is missing, or an example has a row of numbers (such as one-hot) instead of names.
    """
    names = set()
    for number, value in enumerate(to_list(y, "y")):
        is_numbers = isinstance(value, np.ndarray) and value.size > 1 and value.dtype.kind in "biuf"
        each_name = list(value) if is_row(value) else [value]
        if is_numbers or not all(map(_is_name, each_name)):
            raise UserError(
                f"y[{number}] is {format_value(value)}, which is not the name of a class; pass the class names as "
                "labels=[...]"
            )
        names |= {class_name(name) for name in each_name}
    are_whole_numbers = all(re.fullmatch("-?[0-9]+", name) for name in names)
    return sorted(names, key=float) if are_whole_numbers else sorted(names)


def _is_name(value: Any) -> bool:
    """Returns whether a value is a string, a number or a bool.

    None and NaN, which mark gaps in a column, are not names.
    """
    return isinstance(value, str | int | float | np.number | np.bool_) and value == value


def class_name(value: Any) -> str:
    """Converts a label to the name of its class: 3.0 becomes "3".

    pandas turns integers into floats if some are missing.
    """
    name = str(value)
    return name.partition(".")[0] if re.fullmatch(r"-?[0-9]+\.0+", name) else name


def numbers_by_name(labels: Sequence[str]) -> dict[str, int]:
    """Returns a dict from each class name to the index of the class.

    A label such as "3.0" is also found under "3" (see `class_name`).
    """
    numbers = {class_name(label): number for number, label in enumerate(labels)}
    return numbers | {label: number for number, label in enumerate(labels)}


def are_values(labels: Sequence[str]) -> bool:
    """Returns whether at least one class name is a number, "False" or "True".

    In this case, a number or bool in `y` is the name of a class, not its index.
    """
    return any(re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", label) or label in _TRUTH for label in labels)


def class_numbers(values: Iterable[Any], labels: Sequence[str], name: str = "y") -> list[int]:
    """Converts labels (class names, indices or one-hot rows) to class indices.

    Numbers are indices, unless a class name is itself a number, "False" or "True" (see `are_values`). Exception: if the
    classes are exactly False and True, 0 and 1 are accepted as indices.

    Args:
        values: A label for each example. A label may also be wrapped in a list of length 1, as in a column [E, 1].
        labels: Names of the classes, in the order of the logits.
        name: Name of the argument, for error messages.

    Raises:
        UserError: If a value is not one of the classes.
    """
    class_indices = numbers_by_name(labels)
    are_names = are_values(labels) and tuple(labels) != _TRUTH
    numbers = []
    for position, value in enumerate(values):
        is_one_hot = is_probability_row(value, len(labels)) and max(value) == 1
        number = int(np.argmax(value)) if is_one_hot else _find_number(unwrap(value), class_indices, are_names)
        if not 0 <= number < len(labels):
            or_number = "" if are_names else f", or a number from 0 to {len(labels) - 1}"
            raise UserError(
                f"{name}[{position}] is {format_value(value)}; expected one of {', '.join(labels)}{or_number}"
            )
        numbers.append(number)
    return numbers


def _find_number(value: Any, class_indices: Mapping[str, int], are_names: bool) -> int:
    """Converts a label to a class index. Returns -1 if it is an unknown name or not a whole number.

    Args:
        value: A class name or a class index.
        class_indices: Class indices by name.
        are_names: Whether numbers are names of classes instead of indices.
    """
    if isinstance(value, bytes | np.bytes_):
        value = bytes(value).decode("utf-8", "replace")
    if are_names or isinstance(value, str):
        return class_indices.get(str(value), class_indices.get(class_name(value), -1))
    number = to_number(value)
    return int(number) if number.is_integer() else -1


def is_probability_row(value: Any, classes: int) -> bool:
    """Returns whether a value is a row of C probabilities that add up to 1, such as a one-hot row.

    False if there is one class.

    Args:
        value: A label.
        classes: C.
    """
    if not is_row(value) or np.ndim(value) != 1 or len(value) != classes or classes == 1:
        return False
    row = np.asarray(value)
    return bool(row.dtype.kind in "biuf" and ((row >= 0) & (row <= 1)).all() and abs(row.sum() - 1) <= _ROUNDING)


def convert_label_form(targets: Array, has_one_hot: bool | None, classes: int) -> Array:
    """Converts labels of single-label classification to one-hot rows, float32 [R, C], or to class indices, int32 [R].

    Args:
        targets: Class indices [R], or rows of probabilities [R, C].
        has_one_hot: True returns rows, False returns indices, and None returns `targets` unchanged.
        classes: C.

    Raises:
        UserError: If indices are wanted, but a row contains probabilities below 1 instead of being one-hot.
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
    """Returns whether `class_weight` is "balanced": each class gets the same total weight."""
    return isinstance(class_weight, str) and class_weight == BALANCED


def weights_by_class(class_weight: Any, labels: Sequence[str]) -> Array:
    """Returns the weight of each class, float32 [C]. Classes without a given weight have weight 1.

    Args:
        class_weight: A dict of weights by class name or index, or a weight for each class in the order of `labels`, as
            scikit-learn's compute_class_weight returns them.
        labels: Names of the classes, in the order of the logits.

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
    by_class[numbers] = [check_number(class_weight[key], f"class_weight[{key!r}]", 0) for key in keys]
    return by_class


def balanced_weights(numbers: Array, classes: int) -> Array:
    """Returns class weights, float64 [C], that give each class the same total weight.

    The mean weight of all examples is 1.

    Args:
        numbers: The class index of each example, int [R].
        classes: C.
    """
    counts = np.bincount(numbers, minlength=classes)
    return np.asarray(len(numbers) / (np.maximum(counts, 1) * np.count_nonzero(counts)))
