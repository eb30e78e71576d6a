"""Checks the numeric arguments of fit, evaluate and predict, and counts steps."""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.kinds.input_adapters import format_value

NO_EXAMPLES = "x contains no examples"


def count_steps(data: Any, batch_size: int, validation_split: float) -> int:
    """Returns the number of batches per epoch. Iterates over a data set of unknown cardinality to count them.

    Args:
        data: A tf.data.Dataset of batches, or a dict of token ids.
        batch_size: Batch size, if `data` are token ids.
        validation_split: Fraction of the token ids that is held out for validation.

    Raises:
        UserError: If the data set is infinite or empty.
    """
    if isinstance(data, tf.data.Dataset):
        steps = int(data.cardinality())
        if steps == tf.data.INFINITE_CARDINALITY:
            raise UserError("the data set is infinite; pass steps_per_epoch")
        if steps == tf.data.UNKNOWN_CARDINALITY:
            steps = int(data.reduce(np.int64(0), lambda count, *_: count + 1))
    else:
        rows = len(data["input_ids"])
        steps = -(-(count_kept(rows, validation_split) if validation_split else rows) // batch_size)
    if not steps:
        raise UserError(NO_EXAMPLES)
    return steps


def check_split(validation_split: Any, validation_data: Any) -> float:
    """Returns `validation_split` as a float, or 0.0 for None.

    Raises:
        UserError: If validation_split is not a number in [0, 1), or is combined with validation_data.
    """
    if validation_split is None:
        return 0.0
    if not (isinstance(validation_split, int | float | np.number) and 0 <= validation_split < 1):
        raise UserError(
            f"validation_split is {format_value(validation_split)}; expected a number, at least 0 and less than 1"
        )
    if validation_split and validation_data is not None:
        raise UserError("validation_split and validation_data cannot be combined; pass one of them")
    return float(validation_split)


def count_kept(examples: int, validation_split: float) -> int:
    """Returns the number of examples for training, after the fraction `validation_split` is held out.

    Raises:
        UserError: If no example is left for training or for validation.
    """
    kept = math.floor(examples * (1 - validation_split))
    if not 0 < kept < examples:
        raise UserError(
            f"validation_split={validation_split:g} of {examples} examples leaves none to train or to validate on"
        )
    return kept


def check_count(value: Any, name: str, default: int | None = 1, least: int = 1) -> Any:
    """Returns an integer argument as int, or `default` if it is None.

    Args:
        value: The argument.
        name: Name of the argument, for the error message.
        default: The value for None.
        least: Minimum of the argument.

    Raises:
        UserError: If the value is not an integer, is less than `least`, or is 2**31 or more.
    """
    if value is None:
        return default
    if not isinstance(value, int | np.integer) or not least <= value < 2**31:
        raise UserError(f"{name} is {format_value(value)}; expected an integer, at least {least} and below 2**31")
    return int(value)
