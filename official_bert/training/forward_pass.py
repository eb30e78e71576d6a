"""The forward pass of training and prediction, for rows with one or several sequences.

B rows, N sequences per row, S sequence length
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from official_bert.modeling.fast.last_block import skip_unread_positions
from official_bert.training.replicas import get_sizes


def make_forward_pass(model: keras.Model, rematerialize: bool = False) -> Callable[..., Any]:
    """Returns a function that computes a model, but skips positions that the head does not read.

    The function has the arguments of the model. If the model takes [B, S], the function also accepts rows of several
    sequences, [B, N, S], and then returns [B, N, ...].

    Args:
        model: The model.
        rematerialize: Whether the backward pass recomputes encoder blocks to save memory.
    """
    forward = skip_unread_positions(model, rematerialize)
    axes = len(next(iter(model.input.values())).shape)

    def call(inputs: dict[str, Any], training: bool = False) -> Any:
        rows, *inner = get_sizes(inputs["input_mask"])
        if len(inner) + 1 == axes:
            return forward(inputs, training=training)
        texts, length = inner
        folded = {name: tf.reshape(each, (rows * texts, length)) for name, each in inputs.items()}
        outputs = forward(folded, training=training)
        return tf.reshape(outputs, (rows, texts, *outputs.shape[1:]))

    return call
