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
    """Returns the encoder's inputs by name, each [B, S] int32, record_starts [B, R]; B, S and R are free."""
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
    """Builds the encoder of the paper, section 3.

    The model takes a dict of [B, S] int32 tensors, S up to `config.max_position_embeddings`:

    - input_ids: word pieces, from 0 up to `config.vocab_size`.
    - input_mask: 1 for tokens, 0 for padding.
    - segment_ids: 0 or 1, the segment that a token belongs to.

    It returns a dict:

    - sequence_output: [B, S, H], the last block's output.
    - pooled_output: [B, H], a dense layer with tanh on the first position (on the last token in causal models).
    - encoder_outputs: every block's output in order, each [B, S, H]; only with `return_all_layers`.

    With `packed` several records share a row (see data.packing), none of which sees another. The layers, their names
    and weights are the same. In place of input_mask the model takes

    - record_ids: [B, S] int32, the number of a token's record in its row, from 1; 0 for padding.
    - position_ids: [B, S] int32, a token's position in its record.
    - record_starts: [B, R] int32, the positions of the records' [CLS]; 0 where there are fewer than R.

    and pooled_output is [B, R, H].

    Args:
        config: sizes and rates.
        return_all_layers: whether to return every block's output too.
        seed: of the initial weights; None for any. A seed gives each layer the same weights wherever it is built.
        dtype: a Keras dtype policy, such as "float32" or "mixed_bfloat16"; outputs have its compute dtype.
        name: the model's name.
        packed: whether several records share a row.

    Raises:
        ValueError: when called with more positions than the configuration has.
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
