"""Layer names that other modules look layers up by, and the blocks of a model.

A variable's path is its layer's name and its own, and checkpoints store variables by path (checkpoints.checkpoint.PARTS
lists them all): renaming a layer makes older checkpoints unreadable.
"""

import re
from typing import Any

WORD_EMBEDDINGS = "word_embeddings"
TOKEN_TYPE_EMBEDDINGS = "token_type_embeddings"
POSITION_EMBEDDINGS = "position_embeddings"
EMBEDDINGS_LAYER_NORM = "embeddings_layer_norm"
EMBEDDINGS_DROPOUT = "embeddings_dropout"  # its output is the first block's input
FIRST_POSITION = "first_position"  # its input is the last block's output
LAST_TOKEN = "last_token"  # in its place with causal attention; its inputs are that output and the input_mask
POOLER = "pooler"
NEXT_SENTENCE = "next_sentence"

EMBEDDINGS = frozenset({WORD_EMBEDDINGS, TOKEN_TYPE_EMBEDDINGS, POSITION_EMBEDDINGS, EMBEDDINGS_LAYER_NORM})


def block(index: int) -> str:
    """Returns the beginning of the names of a block's layers, from block 0."""
    return f"layer_{index}"


def block_outputs(model: Any) -> dict[str, Any]:
    """Returns the symbolic output of each block of a Keras model, [B, S, H], by `block` and in the blocks' order.

    It is empty for a model without blocks of its own: where they are within another model, as for multiple choice.
    """
    layers = {layer.name: layer for layer in model.layers}
    outputs: dict[str, Any] = {}
    while (last := f"{block(len(outputs))}_output_layer_norm") in layers:
        outputs[block(len(outputs))] = layers[last].output
    return outputs


def block_of(name: str) -> int | None:
    """Returns the number of the block that a layer belongs to; None for layers outside of the blocks."""
    match = re.match(r"layer_(\d+)_", name)
    return int(match[1]) if match else None
