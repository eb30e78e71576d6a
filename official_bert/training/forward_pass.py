"""The forward pass of a model that learns or answers, for rows of one sequence and for rows of several.

B rows, N sequences of a row, S sequence
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from official_bert.modeling.fast.last_block import skip_unread_positions
from official_bert.training.replicas import get_sizes


def make_forward_pass(model: keras.Model, rematerialize: bool = False) -> Callable[..., Any]:
    """Returns a function that is called as the model is, see `skip_unread_positions`.

    A model of one sequence, [B, S], also takes rows of several, [B, N, S], and gives one output for each, [B, N, ...].
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
