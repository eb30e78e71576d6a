"""The BERT encoder as a functional keras.Model.

B batch, S sequence, H hidden size, R records of a row
"""

from typing import Any

import keras

from official_bert.modeling import layer_names
from official_bert.modeling.config import BertConfig
from official_bert.modeling.embeddings import embed
from official_bert.modeling.encoder_block import encoder_block
from official_bert.modeling.heads import pool


def sequence_inputs(packed: bool = False) -> dict[str, Any]:
    """Returns the encoder's symbolic inputs by name, [B, S] int32, and record_starts [B, R]. B, S and R may vary."""
    names = ("record_ids", "position_ids", "record_starts") if packed else ("input_mask",)
    return {name: keras.Input(shape=(None,), dtype="int32", name=name) for name in ("input_ids", *names, "segment_ids")}


def build_encoder(
    config: BertConfig,
    return_all_layers: bool = False,
    seed: int | None = None,
    dtype: Any = "float32",
    name: str = "encoder",
    packed: bool = False,
) -> keras.Model:
    """Builds the encoder (paper, section 3).

    The model takes a dict of int32 tensors, [B, S]. S is at most `config.max_position_embeddings`:

    - input_ids: Ids of word pieces, from 0 to `config.vocab_size` - 1.
    - input_mask: 1 for tokens, 0 for padding.
    - segment_ids: 0 or 1, the segment of a token.

    It returns a dict:

    - sequence_output: [B, S, H], the output of the last block.
    - pooled_output: [B, H], a dense layer with tanh on the first position (in causal models on the last token).
    - encoder_outputs: The outputs of all blocks in order, each [B, S, H]. Only with `return_all_layers`.

    With `packed`, several records share a row (see data.packing). No record attends to another. The layers, their names
    and weights are the same. Instead of input_mask the model takes

    - record_ids: [B, S] int32, the number of a token's record in its row, from 1. 0 for padding.
    - position_ids: [B, S] int32, the position of a token in its record.
    - record_starts: [B, R] int32, the positions of the records' [CLS], padded with 0.

    and pooled_output is [B, R, H].

    Args:
        config: Sizes and rates.
        return_all_layers: Whether to also return the outputs of all blocks.
        seed: Seed of the initial weights. None draws a random seed. With a seed, a layer has the same initial weights
            in every model.
        dtype: Keras dtype policy, such as "float32" or "mixed_bfloat16". Outputs have its compute dtype.
        name: Name of the model.
        packed: Whether several records share a row.

    Raises:
        ValueError: If the model is called with more positions than the configuration has.
    """
    inputs = sequence_inputs(packed)
    x = embed(inputs["input_ids"], inputs["segment_ids"], config, seed, dtype, inputs.get("position_ids"))
    attention_ids = inputs["record_ids"] if packed else inputs["input_mask"]
    layers = []
    for index in range(config.num_hidden_layers):
        x = encoder_block(x, attention_ids, config, layer_names.block(index), seed, dtype, packed)
        layers.append(x)
    pooled = pool(x, attention_ids, config, seed, dtype, inputs.get("record_starts"))
    outputs = {"sequence_output": x, "pooled_output": pooled}
    if return_all_layers:
        outputs["encoder_outputs"] = layers
    return keras.Model(inputs, outputs, name=name)
