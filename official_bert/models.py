"""Encoder and heads put together.

B batch, S sequence, P predictions, V vocabulary
"""

from typing import Any

import keras

from official_bert.config import BertConfig
from official_bert.encoder import build_encoder
from official_bert.heads import masked_lm_logits, next_sentence_logits


def build_pretraining_model(config: BertConfig, seed: int | None = None, dtype: Any = "float32") -> keras.Model:
    """Builds the encoder with both pre-training heads (paper, section 3.1).

    The model takes the encoder's inputs and masked_lm_positions, [B, P] int32. It returns masked_lm_logits, [B, P, V],
    and next_sentence_logits, [B, 2], both float32. `encoder_of` returns the encoder within.

    Args:
        config: sizes and rates.
        seed: of the initial weights; None for any.
        dtype: a Keras dtype policy for all layers.
    """
    encoder = build_encoder(config, seed=seed, dtype=dtype)
    positions = keras.Input(shape=(None,), dtype="int32", name="masked_lm_positions")
    encoded = encoder.output
    words = encoder.get_layer("word_embeddings")
    outputs = {
        "masked_lm_logits": masked_lm_logits(encoded["sequence_output"], positions, words, config, seed, dtype),
        "next_sentence_logits": next_sentence_logits(encoded["pooled_output"], config, seed, dtype),
    }
    # The heads continue the encoder's own graph: a nested model that shares its table with a layer outside does not
    # survive Keras' saving.
    return keras.Model({**encoder.input, "masked_lm_positions": positions}, outputs, name="pretraining_model")


def encoder_of(model: keras.Model) -> keras.Model:
    """Returns the encoder within a pre-training model, as `build_encoder` would build it, sharing its weights."""
    inputs = {name: tensor for name, tensor in model.input.items() if name != "masked_lm_positions"}
    outputs = {
        "sequence_output": model.get_layer("first_position").input,
        "pooled_output": model.get_layer("pooler").output,
    }
    return keras.Model(inputs, outputs, name="encoder")
