"""The pre-training model: the encoder with the masked-LM and next-sentence heads.

B batch size, S sequence length, P masked positions, V vocabulary size
"""

from typing import Any

import keras

from official_bert.modeling import layer_names
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.heads import masked_lm_logits, next_sentence_logits


def build_pretraining_model(
    config: BertConfig, seed: int | None = None, dtype: Any = "float32", packed: bool = False
) -> keras.Model:
    """Builds the encoder with both pre-training heads (paper, section 3.1).

    The model takes the encoder's inputs and masked_lm_positions, int32 [B, P]. It returns masked_lm_logits,
    float32 [B, P, V], and next_sentence_logits, float32 [B, 2]. With `packed`, next_sentence_logits is [B, R, 2] for R
    records per row. `get_encoder` returns the model's encoder.

    Args:
        config: Sizes and rates.
        seed: Seed of the initial weights. None draws a random seed.
        dtype: Keras dtype policy, such as "mixed_bfloat16". Defaults to "float32", whatever Keras' global policy is.
        packed: Whether rows contain several records (see `build_encoder`).
    """
    encoder = build_encoder(config, seed=seed, dtype=dtype, packed=packed)
    positions = keras.Input(shape=(None,), dtype="int32", name="masked_lm_positions")
    encoded = encoder.output
    words = encoder.get_layer(layer_names.WORD_EMBEDDINGS)
    outputs = {
        "masked_lm_logits": masked_lm_logits(encoded["sequence_output"], positions, words, config, seed, dtype),
        "next_sentence_logits": next_sentence_logits(encoded["pooled_output"], config, seed, dtype),
    }
    # The heads extend the encoder's graph, because Keras cannot save a nested model that shares its table with a layer
    # outside.
    return keras.Model({**encoder.input, "masked_lm_positions": positions}, outputs, name="pretraining_model")


def get_encoder(model: keras.Model) -> keras.Model:
    """Returns the encoder of a pre-training model, with the same weights and the inputs and outputs of `build_encoder`.

    Models of packed rows are not supported.
    """
    inputs = {name: tensor for name, tensor in model.input.items() if name != "masked_lm_positions"}
    pooled = next(each for each in model.layers if each.name in (layer_names.FIRST_POSITION, layer_names.LAST_TOKEN))
    outputs = {
        "sequence_output": keras.tree.flatten(pooled.input)[0],
        "pooled_output": model.get_layer(layer_names.POOLER).output,
    }
    return keras.Model(inputs, outputs, name="encoder")
