"""Pools the vectors of a text's tokens into one vector, as a functional keras.Model that extends an encoder.

B batch size, S sequence length, H hidden size, L selected blocks
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from official_bert.errors import UserError
from official_bert.modeling.choices import CLS_POOLING, MAX, MEAN, POOLED
from official_bert.modeling.fast.model_parts import find_blocks

# Used for padding rows, which have no tokens, so that their vectors are finite and have no gradient.
_NO_TOKEN, _LEAST_SQUARE = -1e9, 1e-24


def normalized(vectors: Any) -> Any:
    """Scales vectors, [..., H], to length 1. Vectors of length 0 are returned unchanged."""
    squares = ops.sum(ops.square(vectors), -1, keepdims=True)
    return vectors / ops.sqrt(ops.maximum(squares, _LEAST_SQUARE))


def build_vector_model(
    encoder: keras.Model, pooling: str, layers: Sequence[int] = (-1,), normalize: bool = False
) -> keras.Model:
    """Returns a model from the encoder's inputs to one vector per text, float32 [B, L * H], or [B, H] for "pooled".

    Args:
        encoder: An encoder from `build_encoder`, or a functional model that extends its graph.
        pooling: "mean" or "max" over all tokens including [CLS] and [SEP], "cls" for the vector of [CLS], or "pooled"
            for the output of the pooler.
        layers: The blocks whose vectors are concatenated. 1 is the first block, -1 the last. Ignored for "pooled".
        normalize: Whether to scale vectors to length 1, so that dot products are cosines.

    Raises:
        UserError: If the pooling or a block does not exist.
    """
    vectors = _pool(encoder, pooling, layers)
    return keras.Model(encoder.input, normalized(vectors) if normalize else vectors)


def _pool(encoder: keras.Model, pooling: str, layers: Sequence[int]) -> Any:
    if pooling == POOLED:
        return ops.cast(encoder.output["pooled_output"], "float32")
    if pooling not in (MEAN, MAX, CLS_POOLING):
        raise UserError(f"pooling is {pooling!r}; expected mean, max, cls or pooled")
    blocks = find_blocks(encoder)
    count = len(blocks)
    if not layers or any(layer == 0 or not -count <= layer <= count for layer in layers):
        raise UserError(
            f"layers is {list(layers)}; expected numbers from 1 to {count}, or from -1 (the last layer) to -{count}"
        )
    chosen = [blocks[layer - 1 if layer > 0 else layer].encoded for layer in layers]
    values = ops.cast(ops.concatenate(chosen, -1) if len(chosen) > 1 else chosen[0], "float32")  # [B, S, L * H]
    if pooling == CLS_POOLING:
        return values[:, 0]
    mask = ops.expand_dims(encoder.input["input_mask"], -1)  # [B, S, 1]
    if pooling == MAX:
        return ops.max(ops.where(mask > 0, values, _NO_TOKEN), 1)
    mask = ops.cast(mask, "float32")
    return ops.sum(values * mask, 1) / ops.maximum(ops.sum(mask, 1), 1.0)
