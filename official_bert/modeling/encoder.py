"""The BERT encoder as a functional keras.Model.

B batch, S sequence, H hidden size
"""

from typing import Any

import keras

from official_bert.modeling import layer_names
from official_bert.modeling.config import BertConfig
from official_bert.modeling.embeddings import embed
from official_bert.modeling.encoder_block import encoder_block
from official_bert.modeling.heads import pool


def sequence_inputs() -> dict[str, Any]:
    """Returns the encoder's inputs by name, each [B, S] int32; B and S are free."""
    return {
        name: keras.Input(shape=(None,), dtype="int32", name=name)
        for name in ("input_ids", "input_mask", "segment_ids")
    }


def build_encoder(
    config: BertConfig,
    return_all_layers: bool = False,
    seed: int | None = None,
    dtype: Any = "float32",
    name: str = "encoder",
) -> keras.Model:
    """Builds the encoder of the paper, section 3.

    The model takes a dict of [B, S] int32 tensors, S up to `config.max_position_embeddings`:

    - input_ids: word pieces, from 0 up to `config.vocab_size`.
    - input_mask: 1 for tokens, 0 for padding.
    - segment_ids: 0 or 1, the segment that a token belongs to.

    It returns a dict:

    - sequence_output: [B, S, H], the last block's output.
    - pooled_output: [B, H], a dense layer with tanh on the first position, or the last token's with causal attention.
    - encoder_outputs: every block's output in order, each [B, S, H]; only with `return_all_layers`.

    Args:
        config: sizes and rates.
        return_all_layers: whether to return every block's output too.
        seed: of the initial weights; None for any. A seed gives each layer the same weights wherever it is built.
        dtype: a Keras dtype policy, such as "float32" or "mixed_bfloat16"; outputs have its compute dtype.
        name: the model's name.

    Raises:
        ValueError: when called with more positions than the configuration has.
    """
    inputs = sequence_inputs()
    x = embed(inputs["input_ids"], inputs["segment_ids"], config, seed, dtype)
    layers = []
    for index in range(config.num_hidden_layers):
        x = encoder_block(x, inputs["input_mask"], config, layer_names.block(index), seed, dtype)
        layers.append(x)
    outputs = {"sequence_output": x, "pooled_output": pool(x, inputs["input_mask"], config, seed, dtype)}
    if return_all_layers:
        outputs["encoder_outputs"] = layers
    return keras.Model(inputs, outputs, name=name)
