"""The last block where a head reads [CLS] alone: only that position's output is computed.

Keys and values are those of all positions, as before; queries, what follows the attention, and the feed-forward layer,
most of a block's products, are of one position instead of S.

B batch, S sequence (T the attended one), N heads, H hidden size
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from official_bert.modeling import layer_names
from official_bert.modeling.fast import verification
from official_bert.modeling.fast.model_parts import BlockLayers, ModelParts, replace_inner_model, split_model
from official_bert.modeling.fast.rematerialization import rematerialized


def skip_unread_positions(model: keras.Model, rematerialize: bool = False) -> Callable[..., Any]:
    """Returns a function that is called as the model is and gives the same outputs and gradients, in less time.

    Dropout has the same masks. The model itself, its layers, its variables and how it is saved do not change; where its
    head reads other positions than the first, or it is no encoder with a head, the function is the model.

    Args:
        model: a model with a head, or an encoder.
        rematerialize: whether its blocks (but the last, where only one position is computed) are computed a second time
            in the backward pass, see `rematerialized`.
    """
    parts = split_model(model)
    if parts is None:
        return replace_inner_model(model, functools.partial(skip_unread_positions, rematerialize=rematerialize))
    head = _head_of_first_position(model)
    if head is None or not verification.is_faithful(_read_first, first_position_only=True):
        return rematerialized(model) if rematerialize else model
    return _read_first(parts, head, rematerialize)


def _read_first(parts: ModelParts, head: keras.Model | None = None, rematerialize: bool = False) -> Callable[..., Any]:
    head = head or _head_of_first_position(parts.model)
    assert head
    below: Any = keras.Model(parts.model.input, parts.encoded[-2])
    if rematerialize:
        below = rematerialized(below)

    def call(inputs: dict[str, Any], training: bool = False) -> Any:
        x = below(inputs, training=training)  # [B, S, H]
        return head(_first_position(parts.blocks[-1], x, inputs["input_mask"], training), training=training)

    return call


def _head_of_first_position(model: keras.Model) -> keras.Model | None:
    """What follows the vector of [CLS]; None where there is no such vector, or an output needs more than it."""
    layers = {layer.name: layer for layer in model.layers}
    if layer_names.FIRST_POSITION not in layers:
        return None
    try:
        return keras.Model(layers[layer_names.FIRST_POSITION].output, model.output)
    except ValueError:
        return None


def _first_position(block: BlockLayers, x: Any, input_mask: Any, training: bool) -> Any:
    """What the block gives for the first position, [B, H]: `encoder_block` with queries of that position."""
    batch, length, width = ops.shape(x)

    def drop(dropout: Any, values: Any, shape: tuple[Any, ...]) -> Any:
        """Dropout with the numbers of the first of the positions on the last axis but one, of all of this shape."""
        if not training or not dropout.drops:
            return values
        return dropout.drop(values, dropout.random_numbers(shape)[..., :1, :])

    of_all = (batch, length, width)
    first = x[:, :1]  # [B, 1, H]
    keys, values = block.attention_key(x), block.attention_value(x)  # [B, T, H]
    probabilities = block.attention_probabilities([block.attention_query(first), keys, input_mask])  # [B, N, 1, T]
    shape = (batch, block.attention_probabilities.num_heads, length, length)
    probabilities = drop(block.attention_probabilities_dropout, probabilities, shape)
    context = block.attention_context([probabilities, values])  # [B, 1, H]
    attended = drop(block.attention_output_dropout, block.attention_output(context), of_all)
    y = block.attention_layer_norm(block.attention_residual([attended, first]))
    hidden = drop(block.output_dropout, block.output(block.intermediate(y)), of_all)
    return block.output_layer_norm(block.output_residual([hidden, y]))[:, 0]
