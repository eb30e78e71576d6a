"""Sizes and shapes of the data sets that users pass to `fit`."""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.kinds.input_adapters import is_data_set, shown


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
        UserError: the data set never ends, or there is nothing in it.
    """
    if is_data_set(data):
        steps = int(data.cardinality())
        if steps == tf.data.INFINITE_CARDINALITY:
            raise UserError("the data set never ends; pass steps_per_epoch")
        if steps == tf.data.UNKNOWN_CARDINALITY:
            steps = int(data.reduce(np.int64(0), lambda count, *_: count + 1))
    else:
        rows = len(data["input_ids"])
        steps = -(-(split_off(rows, validation_split) if validation_split else rows) // batch_size)
    if not steps:
        raise UserError("there are no examples")
    return steps


def checked_split(validation_split: Any, validation_data: Any) -> float:
    """Returns the share of the examples that is for validation, 0 for none.

    Raises:
        UserError: it is no share, or there are other examples for validation.
    """
    if validation_split is None:
        return 0.0
    if not (isinstance(validation_split, int | float | np.number) and 0 <= validation_split < 1):
        raise UserError(f"validation_split is {shown(validation_split)}; expected a share from 0 to 1, less than 1")
    if validation_split and validation_data is not None:
        raise UserError("validation_split and validation_data are both given; give one of them")
    return float(validation_split)


def split_off(examples: int, validation_split: float) -> int:
    """Returns how many examples are left to train on when the last share of them is for validation.

    Raises:
        UserError: one of both parts would be empty.
    """
    kept = math.floor(examples * (1 - validation_split))
    if not 0 < kept < examples:
        raise UserError(f"validation_split={validation_split:g} of {examples} examples leaves one of both parts empty")
    return kept
