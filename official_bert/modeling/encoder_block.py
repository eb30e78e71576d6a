"""One Transformer block, with layer normalization after each sub-layer (paper, section 3; arXiv:1706.03762).

B batch size, S query positions, T key positions (equal to S except in fast/last_block.py), N heads, D head size, H = N
* D hidden size
"""

import math
from typing import Any

import keras
from keras import ops

from official_bert.modeling.config import BertConfig
from official_bert.modeling.dropout import Dropout
from official_bert.modeling.initialization import activation, dense, layer_norm

# Added to the scores of padding positions, so that their probabilities are zero in float32.
MASKED_SCORE = -10000.0


@keras.saving.register_keras_serializable(package="official_bert")
class AttentionProbabilities(keras.layers.Layer):
    """Computes attention probabilities, softmax(q k / sqrt(D) + mask), in float32.

    Takes [query, key, attention_ids]: [B, S, H], [B, T, H] and int32 [B, T]. Returns [B, N, S, T]. attention_ids is the
    input_mask (1 for tokens, 0 for padding). No position attends to padding. With `packed`, attention_ids is the
    record_ids, and a token attends only to tokens of its own record.

    Args:
        num_heads: Number of attention heads, N.
        causal: Whether a position attends only to itself and to earlier positions. S must then be equal to T.
        packed: Whether rows contain several records (see `build_encoder`).
        kwargs: Arguments of keras.layers.Layer.
    """

    def __init__(self, num_heads: int, causal: bool = False, packed: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_heads, self.causal, self.packed = num_heads, causal, packed

    def call(self, inputs: Any) -> Any:
        query, key, attention_ids = inputs
        query, key = split_heads(query, self.num_heads), split_heads(key, self.num_heads)  # [B, N, S, D]
        products = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))  # [B, N, S, T]
        return self.compute_from_products(products, attention_ids, query.shape[-1])

    def compute_from_products(self, products: Any, attention_ids: Any, head_size: int) -> Any:
        """Computes the attention probabilities from the products of queries and keys.

        Args:
            products: [B, N, S, T].
            attention_ids: int32 [B, T].
            head_size: D.
        """
        scores = ops.cast(products, "float32") * (1.0 / math.sqrt(head_size))
        if self.packed:
            of_queries, of_keys = ops.expand_dims(attention_ids, (1, 3)), ops.expand_dims(attention_ids, (1, 2))
            seen = ops.equal(of_queries, of_keys)  # [B, 1, S, T]
        else:
            seen = ops.expand_dims(attention_ids, (1, 2))  # [B, 1, 1, T]; LiteRT does not support new axes in slices
        masked = (1.0 - ops.cast(seen, "float32")) * MASKED_SCORE
        if self.causal:
            position = ops.arange(ops.shape(scores)[-1], dtype="int32")
            masked = masked + ops.cast(position[None, :] > position[:, None], "float32") * MASKED_SCORE  # [B, 1, S, T]
        return ops.cast(ops.softmax(scores + masked, axis=-1), self.compute_dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        # Without this method Keras traces `call` to learn the shape: a third of the time to build a model.
        (batch, queries, _), (_, keys, _), _ = input_shape
        return batch, self.num_heads, queries, keys

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_heads": self.num_heads, "causal": self.causal, "packed": self.packed}


@keras.saving.register_keras_serializable(package="official_bert")
class AttentionContext(keras.layers.Layer):
    """Averages the values with the attention probabilities: [B, N, S, T] and [B, T, H] to [B, S, H]."""

    def call(self, inputs: Any) -> Any:
        probabilities, value = inputs
        context = ops.matmul(probabilities, split_heads(value, probabilities.shape[1]))  # [B, N, S, D]
        context = ops.transpose(context, (0, 2, 1, 3))  # [B, S, N, D]
        return ops.reshape(context, (-1, ops.shape(context)[1], value.shape[-1]))  # [B, S, H]

    def compute_output_shape(self, input_shape: Any) -> Any:
        (batch, _, queries, _), (_, _, width) = input_shape
        return batch, queries, width


def split_heads(x: Any, num_heads: int) -> Any:
    """Splits the last axis into attention heads: [B, S, H] to [B, N, S, D]."""
    x = ops.reshape(x, (-1, ops.shape(x)[1], num_heads, x.shape[-1] // num_heads))
    return ops.transpose(x, (0, 2, 1, 3))


def encoder_block(
    x: Any, attention_ids: Any, config: BertConfig, name: str, seed: int | None, dtype: Any, packed: bool = False
) -> Any:
    """Applies an encoder block: self-attention and a feed-forward network, each followed by residual and normalization.

    Args:
        x: The block's input, [B, S, H].
        attention_ids: The input_mask, or with `packed` the record_ids, int32 [B, S].
        config: Sizes of the model.
        name: Prefix of the names of the block's layers.
        seed: Seed of the initial weights. None draws a random seed.
        dtype: Keras dtype policy of the layers.
        packed: Whether rows contain several records (see `build_encoder`).

    Returns:
        The block's output, [B, S, H].
    """

    def projection(units: int, part: str, activation: Any = None) -> keras.Layer:
        return dense(units, f"{name}_{part}", config, seed, dtype, activation)

    def dropout(rate: float, part: str) -> keras.Layer:
        return Dropout(rate, name=f"{name}_{part}", dtype=dtype)

    def add_and_norm(x: Any, residual: Any, part: str) -> Any:
        total = keras.layers.Add(name=f"{name}_{part}_residual", dtype=dtype)([x, residual])
        return layer_norm(f"{name}_{part}_layer_norm", config, dtype)(total)

    width = config.hidden_size
    query = projection(width, "attention_query")(x)
    key = projection(width, "attention_key")(x)
    value = projection(width, "attention_value")(x)
    probabilities = AttentionProbabilities(
        config.num_attention_heads, config.causal_attention, packed, name=f"{name}_attention_probabilities", dtype=dtype
    )([query, key, attention_ids])
    probabilities = dropout(config.attention_probs_dropout_prob, "attention_probabilities_dropout")(probabilities)
    context = AttentionContext(name=f"{name}_attention_context", dtype=dtype)([probabilities, value])
    attended = projection(width, "attention_output")(context)
    attended = dropout(config.hidden_dropout_prob, "attention_output_dropout")(attended)
    x = add_and_norm(attended, x, "attention")

    hidden = projection(config.intermediate_size, "intermediate", activation(config))(x)
    hidden = projection(width, "output")(hidden)
    hidden = dropout(config.hidden_dropout_prob, "output_dropout")(hidden)
    return add_and_norm(hidden, x, "output")
