"""The BERT encoder as a functional keras.Model.

B batch size, S sequence length, H hidden size, R records packed into a row
"""

from typing import Any

import keras

from official_bert.modeling import layer_names
from official_bert.modeling.config import BertConfig
from official_bert.modeling.embeddings import embed
from official_bert.modeling.encoder_block import encoder_block
from official_bert.modeling.heads import pool


def sequence_inputs(packed: bool = False) -> dict[str, Any]:
    """Returns the encoder's symbolic inputs by name, int32 [B, S] with variable B and S.

    Args:
        packed: Whether rows contain several records (see `build_encoder`). record_starts is then int32 [B, R].
    """
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

    With `packed`, a row contains several records (training examples; see data.packing), and no record attends to
    another. The layers, their names and weights are the same. Instead of input_mask the model takes

    - record_ids: int32 [B, S], the number of each token's record in its row, from 1. 0 for padding.
    - position_ids: int32 [B, S], the position of each token in its record.
    - record_starts: int32 [B, R], the position of each record's [CLS], padded with 0.

    and pooled_output is [B, R, H].

    Args:
        config: Sizes and rates.
        return_all_layers: Whether to also return the outputs of all blocks.
        seed: Seed of the initial weights. None draws a random seed. With a seed, a layer has the same initial weights
            in every model.
        dtype: Keras dtype policy, such as "mixed_bfloat16". Outputs have its compute dtype. Defaults to "float32",
            whatever Keras' global policy is.
        name: Name of the model.
        packed: Whether a row contains several records.

    Raises:
        ValueError: If the model is called with more positions than the configuration allows.
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
