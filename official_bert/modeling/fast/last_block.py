"""For models whose head reads only [CLS]: the last block computes only the output at this position.

Keys and values cover all positions. Queries, the attention's output and the feed-forward network, which make up most of
a block's work, cover one position instead of S.

B batch size, S sequence length, T key positions (= S), N heads, H hidden size
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from official_bert.errors import UserError
from official_bert.modeling import layer_names
from official_bert.modeling.fast import verification
from official_bert.modeling.fast.model_parts import BlockLayers, ModelParts, replace_inner_model, split_model
from official_bert.modeling.fast.rematerialization import rematerialized


def skip_unread_positions(model: keras.Model, rematerialize: bool = False) -> Callable[..., Any]:
    """Returns a function that computes the same as a model, but faster if the head reads only the first position.

    It has the arguments, outputs, gradients and dropout masks of the model. The model, its variables and its saved
    files do not change. All positions are computed if the head reads other positions too, if the model has no head, or
    if a layer has an activity regularizer.

    Args:
        model: An encoder, with or without a head.
        rematerialize: Whether the backward pass recomputes encoder blocks to save memory (see `rematerialized`).

    Raises:
        UserError: If `rematerialize` is True, but the class of the model overrides `call`.
    """
    if not type(model).call.__module__.startswith("keras."):
        if rematerialize:
            raise UserError(f"{type(model).__name__} overrides `call`; remove this method, or rematerialize=True")
        return model
    parts = split_model(model)
    if parts is None:
        return replace_inner_model(model, functools.partial(skip_unread_positions, rematerialize=rematerialize))
    # Activity regularizers need the outputs of all positions.
    is_regularized = any(layer.activity_regularizer for layer in model.layers)
    head = None if is_regularized else _build_first_position_head(model)
    if head is None or not verification.is_faithful(_read_first, parts, first_position_only=True):
        return rematerialized(model) if rematerialize else model
    return _read_first(parts, head, rematerialize)


def _read_first(parts: ModelParts, head: keras.Model | None = None, rematerialize: bool = False) -> Callable[..., Any]:
    head = head or _build_first_position_head(parts.model)
    assert head
    below: Any = keras.Model(parts.model.input, parts.encoded[-2])
    if rematerialize:
        below = rematerialized(below)

    def call(inputs: dict[str, Any], training: bool = False) -> Any:
        x = below(inputs, training=training)  # [B, S, H]
        return head(_first_position(parts.blocks[-1], x, inputs["input_mask"], training), training=training)

    return call


def _build_first_position_head(model: keras.Model) -> keras.Model | None:
    """Returns the layers after the vector of [CLS] as a model, or None if an output depends on other positions."""
    layers = {layer.name: layer for layer in model.layers}
    if layer_names.FIRST_POSITION not in layers:
        return None
    try:
        return keras.Model(layers[layer_names.FIRST_POSITION].output, model.output)
    except ValueError:
        return None


def _first_position(block: BlockLayers, x: Any, input_mask: Any, training: bool) -> Any:
    """Computes one encoder block for the first position only: [B, S, H] to [B, H].

    Args:
        block: The layers of the block.
        x: The block's input, [B, S, H].
        input_mask: int32 [B, S].
        training: Whether to apply dropout.
    """
    batch, length, width = ops.shape(x)

    def drop(dropout: Any, values: Any, shape: tuple[Any, ...]) -> Any:
        """Applies dropout to `values`, [..., 1, X], with the random numbers of the first position.

        Args:
            dropout: The dropout layer.
            values: The values at the first position.
            shape: Shape of the values at all positions.
        """
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
