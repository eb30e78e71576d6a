"""Inference with fewer TensorFlow operations than Keras' layers create.

For one text and a small model, the number of operations determines the time, not the arithmetic. The blocks are
computed on [B * S, H]: TensorFlow's graph optimizer then fuses a matrix product, its bias and its activation into one
operation, and no shapes are computed in between. Heads are split and joined without transposition.

B batch size, S sequence length, N heads, D head size, H = N * D hidden size, T segment types
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from official_bert.modeling import layer_names
from official_bert.modeling.embeddings import PositionEmbedding
from official_bert.modeling.fast import verification
from official_bert.modeling.fast.model_parts import BlockLayers, ModelParts, split_model


def flatten_blocks(model: keras.Model) -> Callable[[dict[str, Any]], Any]:
    """Returns a function that computes a model's outputs for inference with fewer operations.

    Results differ by rounding.

    The function calls the model itself if the blocks are inside another model (as for multiple choice), if the model
    does not compute in float32, or if someone has edited the encoder block (see `verification`).

    Args:
        model: An encoder, with or without a head, whose rows are not packed.
    """
    parts = split_model(model)
    if parts is None or model.get_layer(layer_names.WORD_EMBEDDINGS).dtype_policy.name != "float32":
        return lambda features: model(features, training=False)
    if not verification.is_faithful(_flatten_blocks, parts, training=False):
        return lambda features: model(features, training=False)
    return _flatten_blocks(parts)


def _flatten_blocks(parts: ModelParts) -> Callable[..., Any]:
    heads = parts.heads()

    def call(features: dict[str, Any], training: bool = False) -> Any:
        features = parts.features(features)
        x = _embed(parts.model.get_layer, features["input_ids"], features["segment_ids"])  # [B, S, H]
        shape, width = tf.shape(x), x.shape[-1]
        encoded = [x]
        x = tf.reshape(x, (-1, width))  # [B * S, H]
        for block in parts.blocks:
            x = _compute_block(block, x, shape, features["input_mask"])
            encoded.append(tf.ensure_shape(tf.reshape(x, shape), (None, None, width)))  # [B, S, H]
        return heads(encoded, features)

    return call


def _embed(layers: Callable[[str], Any], input_ids: Any, segment_ids: Any) -> Any:
    """Returns the sum of the word, segment and position embeddings after layer normalization, [B, S, H].

    Args:
        layers: Function from a layer's name to the layer.
        input_ids: int32 [B, S].
        segment_ids: int32 [B, S].
    """
    words, types = layers(layer_names.WORD_EMBEDDINGS), layers(layer_names.TOKEN_TYPE_EMBEDDINGS)
    positions: PositionEmbedding = layers(layer_names.POSITION_EMBEDDINGS)
    x = tf.gather(tf.convert_to_tensor(words.embeddings), input_ids)  # [B, S, H]
    one_hot = tf.one_hot(tf.reshape(segment_ids, [-1]), types.type_vocab_size)  # [B * S, T]
    x = x + tf.reshape(tf.matmul(one_hot, types.embeddings), tf.shape(x))
    return _normalize(positions(x), layers(layer_names.EMBEDDINGS_LAYER_NORM))


def _compute_block(block: BlockLayers, x: Any, shape: Any, input_mask: Any) -> Any:
    """Computes one encoder block: [B * S, H] to [B * S, H].

    Args:
        block: The layers of the block.
        x: The block's input, [B * S, H].
        shape: The tensor (B, S, H).
        input_mask: int32 [B, S].
    """
    attention = block.attention_probabilities
    width, heads = x.shape[-1], attention.num_heads

    def split(projection: Any) -> Any:
        """Applies a projection, and splits the result into heads: [B, N, S, D]."""
        projected = tf.reshape(_apply_dense(x, projection), shape)
        return tf.stack(tf.split(tf.ensure_shape(projected, (None, None, width)), heads, axis=-1), axis=1)

    products = tf.matmul(split(block.attention_query), split(block.attention_key), transpose_b=True)  # [B, N, S, S]
    probabilities = attention.compute_from_products(products, input_mask, width // heads)
    values = tf.unstack(tf.matmul(probabilities, split(block.attention_value)), heads, axis=1)
    context = tf.concat(values, axis=-1)  # [B, S, H]
    attended = _apply_dense(tf.reshape(context, (-1, width)), block.attention_output)
    x = _normalize(attended + x, block.attention_layer_norm)
    return _normalize(_apply_dense(_apply_dense(x, block.intermediate), block.output) + x, block.output_layer_norm)


def _apply_dense(x: Any, dense: Any) -> Any:
    """Applies a dense layer: [B * S, X] to [B * S, Y]."""
    return dense.activation(tf.nn.bias_add(tf.matmul(x, dense.kernel), dense.bias))


def _normalize(x: Any, layer_norm: Any) -> Any:
    mean = tf.reduce_mean(x, -1, keepdims=True)
    centered = x - mean
    variance = tf.reduce_mean(tf.square(centered), -1, keepdims=True)
    return centered * (tf.math.rsqrt(variance + layer_norm.epsilon) * layer_norm.gamma) + layer_norm.beta
