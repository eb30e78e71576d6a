"""Names of the layers that other modules look up.

The path of a variable consists of its layer's name and its own name. Checkpoints store variables by path (see
checkpoints.run_checkpoints), so they become unreadable if you rename a layer.
"""

import re

WORD_EMBEDDINGS = "word_embeddings"
TOKEN_TYPE_EMBEDDINGS = "token_type_embeddings"
POSITION_EMBEDDINGS = "position_embeddings"
EMBEDDINGS_LAYER_NORM = "embeddings_layer_norm"
EMBEDDINGS_DROPOUT = "embeddings_dropout"  # its output is the first block's input
FIRST_POSITION = "first_position"  # its input is the last block's output
LAST_TOKEN = "last_token"  # in causal models, replaces FIRST_POSITION; its inputs are the last block's output and mask
POOLER = "pooler"
NEXT_SENTENCE = "next_sentence"
CHOICE_ENCODER = "choice_encoder"  # the inner model of a multiple-choice model
MULTIPLE_CHOICE = "multiple_choice"  # its input is the inner model's output

EMBEDDINGS = frozenset({WORD_EMBEDDINGS, TOKEN_TYPE_EMBEDDINGS, POSITION_EMBEDDINGS, EMBEDDINGS_LAYER_NORM})


def block(index: int) -> str:
    """Returns the prefix of the names of all layers in an encoder block. The first block has index 0."""
    return f"layer_{index}"


def find_block_index(name: str) -> int | None:
    """Returns the index of the encoder block that a layer belongs to, or None if it belongs to no block."""
    match = re.match(r"layer_(\d+)_", name)
    return int(match[1]) if match else None


def is_in_encoder(name: str) -> bool:
    """Returns whether a layer with weights belongs to the encoder, rather than to a head."""
    return name in EMBEDDINGS or name in (POOLER, CHOICE_ENCODER) or find_block_index(name) is not None
