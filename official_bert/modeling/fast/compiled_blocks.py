"""Training on one CPU: TensorFlow multiplies matrices, and XLA compiles everything else in the encoder blocks.

On a CPU, TensorFlow's matrix products are faster than XLA's, but its other operations are slower, because each one
passes over memory, without the instructions of recent processors. All operations between two products, such as bias,
dropout, residual and normalization, are therefore one compiled function. The backward pass computes this function
again, together with its gradient.

B batch size, S query positions, T key positions, N heads, D head size, H = N * D hidden size, P masked positions, V
vocabulary size
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras import ops

from official_bert.modeling import layer_names
from official_bert.modeling.fast import verification
from official_bert.modeling.fast.model_parts import BlockLayers, ModelParts, split_model

_VECTORS = "masked_lm_layer_norm"  # the layer whose output is multiplied by the table of word embeddings


class FactoredLogits(NamedTuple):
    """The factors of the masked-LM logits: logits = vectors @ transpose(table) + bias, [B, P, V].

    With the factors, a loss need not write the gradient of the logits, the largest tensor of a small model, to memory.
    """

    vectors: Any
    table: Any  # [V, H]
    bias: Any  # [V]


def compile_blocks(model: keras.Model) -> Callable[..., dict[str, Any]] | None:
    """Returns a function that computes a pre-training model and its gradients faster than the model does.

    In training, it uses the same dropout masks as the model, and returns masked_lm_logits as FactoredLogits. Outside of
    training it calls the model. The model itself and its saved files do not change.

    Returns None if someone has edited the encoder block, so that this faster form no longer computes the same (see
    `verification`).
    """
    parts = split_model(model)
    assert parts is not None
    return _compile_blocks(parts) if verification.is_faithful(_compile_blocks, parts) else None


def _compile_blocks(parts: ModelParts) -> Callable[..., dict[str, Any]]:
    model = parts.model
    embed = keras.Model(model.input, model.get_layer(layer_names.EMBEDDINGS_LAYER_NORM).input)
    heads = parts.heads({**model.output, "masked_lm_logits": model.get_layer(_VECTORS).output})
    words, masked_lm_output = model.get_layer(layer_names.WORD_EMBEDDINGS), model.get_layer("masked_lm_output")
    compiled = _CompiledFunctions(model, parts.blocks[0])

    def call(features: dict[str, Any], training: bool = False) -> dict[str, Any]:
        if not training:
            return model(features, training=False)
        features = parts.features(features)
        encoded = [compiled.embedded(embed(features, training=True))]  # [B, S, H]
        for block in parts.blocks:
            encoded.append(compiled.block(block, encoded[-1], features[parts.attention_ids]))
        outputs = heads(encoded, features, training=True)
        table, bias = tf.convert_to_tensor(words.embeddings), tf.convert_to_tensor(masked_lm_output.bias)
        return {**outputs, "masked_lm_logits": FactoredLogits(outputs["masked_lm_logits"], table, bias)}

    return call


class _CompiledFunctions:
    """The XLA-compiled functions of a model.

    All blocks share them, because blocks differ only in weights and random numbers. Both are arguments: a weight that a
    function reads from the layers of `block` would be used in all blocks.

    Args:
        model: The pre-training model.
        block: One of its blocks. The settings of its layers are used for all blocks.
    """

    def __init__(self, model: keras.Model, block: BlockLayers) -> None:
        self._embeddings_norm = model.get_layer(layer_names.EMBEDDINGS_LAYER_NORM)
        self._embeddings_dropout = embeddings_dropout = model.get_layer(layer_names.EMBEDDINGS_DROPOUT)
        attention, attention_dropout = block.attention_probabilities, block.attention_probabilities_dropout
        hidden_dropout, epsilon = block.output_dropout, block.output_layer_norm.epsilon
        activation = block.intermediate.activation
        heads, dtype = attention.num_heads, attention.compute_dtype
        head_size = block.attention_query.units // heads

        def normalize(x: Any, gamma: Any, beta: Any) -> Any:
            mean, variance = tf.nn.moments(x, [-1], keepdims=True)
            return (x - mean) * tf.math.rsqrt(variance + epsilon) * gamma + beta

        def embedded(x: Any, gamma: Any, beta: Any, numbers: Any) -> Any:
            x = normalize(tf.cast(x, tf.float32), gamma, beta)
            return tf.cast(embeddings_dropout.drop(x, numbers), dtype)

        def split(x: Any, bias: Any) -> tuple[Any, ...]:
            """Splits query, key and value, [B, S, 3 * H], into heads: three tensors [B, N, S, D]."""
            x = tf.reshape(x + tf.cast(bias, dtype), (-1, x.shape[1], 3, heads, head_size))
            return tuple(tf.unstack(tf.transpose(x, (2, 0, 3, 1, 4))))

        def attend(products: Any, attention_ids: Any, numbers: Any) -> Any:
            """Converts the products of queries and keys, [B, N, S, T], to attention probabilities with dropout."""
            return attention_dropout.drop(attention.compute_from_products(products, attention_ids, head_size), numbers)

        def merge(x: Any) -> Any:
            """Joins the heads: [B, N, S, D] to [B, S, H]."""
            return tf.reshape(tf.transpose(x, (0, 2, 1, 3)), (-1, x.shape[2], heads * head_size))

        def add_and_norm(x: Any, bias: Any, residual: Any, gamma: Any, beta: Any, numbers: Any) -> Any:
            x = hidden_dropout.drop(tf.cast(x, tf.float32) + bias, numbers)
            return tf.cast(normalize(x + tf.cast(residual, tf.float32), gamma, beta), dtype)

        def activate(x: Any, bias: Any) -> Any:
            return tf.cast(activation(tf.cast(x, tf.float32) + bias), dtype)

        self._embedded, self._split, self._attend = _compile(embedded), _compile(split), _compile(attend)
        self._merge, self._add_and_norm, self._activate = _compile(merge), _compile(add_and_norm), _compile(activate)

    def embedded(self, x: Any) -> Any:
        """Applies layer normalization and dropout to the sum of the embeddings, [B, S, H]."""
        numbers = _numbers(self._embeddings_dropout, x)
        return self._embedded(x, *_weights(self._embeddings_norm, "gamma", "beta"), numbers)

    def block(self, block: BlockLayers, x: Any, attention_ids: Any) -> Any:
        """Computes one encoder block: [B, S, H] to [B, S, H].

        Args:
            block: The layers of the block.
            x: The block's input, [B, S, H].
            attention_ids: The input_mask or record_ids, int32 [B, S].
        """

        def add_and_norm(x: Any, bias: Any, residual: Any, dropout: Any, layer_norm: Any) -> Any:
            return self._add_and_norm(x, bias, residual, *_weights(layer_norm, "gamma", "beta"), _numbers(dropout, x))

        projections = map(_weights, (block.attention_query, block.attention_key, block.attention_value))
        kernels, biases = (tf.concat(each, axis=-1) for each in zip(*projections, strict=True))
        query, key, value = self._split(_multiply(x, kernels), biases)  # [B, N, S, D]
        products = tf.matmul(query, key, transpose_b=True)  # [B, N, S, T]
        numbers = _numbers(block.attention_probabilities_dropout, products)
        context = self._merge(tf.matmul(self._attend(products, attention_ids, numbers), value))  # [B, S, H]
        kernel, bias = _weights(block.attention_output)
        attended = _multiply(context, kernel)
        x = add_and_norm(attended, bias, x, block.attention_output_dropout, block.attention_layer_norm)

        kernel, bias = _weights(block.intermediate)
        hidden = self._activate(_multiply(x, kernel), bias)
        kernel, bias = _weights(block.output)
        return add_and_norm(_multiply(hidden, kernel), bias, x, block.output_dropout, block.output_layer_norm)


def _multiply(x: Any, kernel: Any) -> Any:
    """Multiplies [B, S, X] by a matrix [X, Y], as one product of two matrices. Returns [B, S, Y]."""
    length, width = x.shape[1:]
    product = tf.matmul(tf.reshape(x, (-1, width)), tf.cast(kernel, x.dtype))
    return tf.reshape(product, (-1, length, kernel.shape[-1]))


def _weights(layer: Any, *kinds: str) -> list[Any]:
    return [tf.convert_to_tensor(getattr(layer, kind)) for kind in kinds or ("kernel", "bias")]


def _numbers(dropout: Any, x: Any) -> Any:
    """Returns the random numbers that a dropout layer uses to drop elements of `x`. Empty if its rate is 0."""
    return dropout.random_numbers(ops.shape(x)) if dropout.drops else tf.zeros([0], tf.uint16)


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a function of tensors with XLA. Its gradient is compiled too, and computes the function again."""

    def backward(inputs: tuple[tf.Tensor, ...], upstream: tuple[tf.Tensor, ...]) -> Any:
        differentiable = [value for value in inputs if value.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(differentiable)
            outputs = tf.nest.flatten(function(*inputs))
        return tape.gradient(outputs, differentiable, list(upstream))

    forward = tf.function(function, jit_compile=True, autograph=False)
    compiled_backward = tf.function(backward, jit_compile=True, autograph=False)

    @tf.custom_gradient
    def call(*inputs: tf.Tensor) -> Any:
        def gradient(*upstream: tf.Tensor) -> list[Any]:
            gradients = iter(compiled_backward(inputs, upstream))
            return [next(gradients) if value.dtype.is_floating else None for value in inputs]

        return forward(*inputs), gradient

    return call
