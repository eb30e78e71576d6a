"""The last block where a head reads [CLS] alone: only that position's output is computed.

Keys and values are those of all positions, as before; queries, what follows the attention, and the feed-forward layer,
most of a block's products, are of one position instead of S.

B batch, S sequence (T the attended one), N heads, H hidden size
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from official_bert.modeling import layer_names


def without_unread_positions(model: keras.Model) -> Callable[..., Any]:
    """Returns a function that is called as the model is and gives the same outputs and gradients, in less time.

    Dropout has the same masks. The model itself, its layers, its variables and how it is saved do not change; where its
    head reads other positions than the first, or it is no encoder with a head, the function is the model.

    Args:
        model: of one of the functions of `task_models`.
    """
    layers = {layer.name: layer for layer in model.layers}
    if layer_names.FIRST_POSITION not in layers:
        return model
    try:
        head = keras.Model(layers[layer_names.FIRST_POSITION].output, model.output)
    except ValueError:  # an output needs more than [CLS]
        return model
    block_outputs = layer_names.block_outputs(model)
    *_, block_input, _ = (layers[layer_names.EMBEDDINGS_DROPOUT].output, *block_outputs.values())
    below = keras.Model(model.input, block_input)
    *_, block = block_outputs

    def call(inputs: dict[str, Any], training: bool = False) -> Any:
        x = below(inputs, training=training)  # [B, S, H]
        return head(_first_position(layers, block, x, inputs["input_mask"], training), training=training)

    return call


def _first_position(layers: dict[str, Any], block: str, x: Any, input_mask: Any, training: bool) -> Any:
    """What the block gives for the first position, [B, H]: `encoder_block` with queries of that position."""
    batch, length, width = ops.shape(x)

    def layer(part: str) -> Any:
        return layers[f"{block}_{part}"]

    def drop(part: str, values: Any, shape: tuple[Any, ...]) -> Any:
        """Dropout with the numbers of the first of the positions on the last axis but one, of all of this shape."""
        dropout = layer(part)
        if not training or not dropout.drops:
            return values
        return dropout.drop(values, dropout.random_numbers(shape)[..., :1, :])

    def add_and_norm(values: Any, residual: Any, part: str) -> Any:
        return layer(f"{part}_layer_norm")(layer(f"{part}_residual")([values, residual]))

    of_all = (batch, length, width)
    first = x[:, :1]  # [B, 1, H]
    attention = layer("attention_probabilities")
    keys, values = layer("attention_key")(x), layer("attention_value")(x)  # [B, T, H]
    probabilities = attention([layer("attention_query")(first), keys, input_mask])  # [B, N, 1, T]
    shape = (batch, attention.num_heads, length, length)
    probabilities = drop("attention_probabilities_dropout", probabilities, shape)
    context = layer("attention_context")([probabilities, values])  # [B, 1, H]
    attended = drop("attention_output_dropout", layer("attention_output")(context), of_all)
    y = add_and_norm(attended, first, "attention")
    hidden = layer("output")(layer("intermediate")(y))
    return add_and_norm(drop("output_dropout", hidden, of_all), y, "output")[:, 0]
