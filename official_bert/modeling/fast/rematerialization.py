"""Rematerialization: the backward pass recomputes each encoder block, instead of keeping its activations in memory.

B batch size, S sequence length, H hidden size
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from official_bert.modeling.dropout import current_seed, dropout_seed
from official_bert.modeling.fast.model_parts import replace_inner_model, split_model


def rematerialized(model: keras.Model) -> Callable[..., Any]:
    """Returns a function with the arguments, outputs and gradients of a model that needs less memory in training.

    Only the input of each encoder block, [B, S, H], is kept for the backward pass, which computes the block a second
    time with the same dropout masks. A step takes a quarter to a third more computation. The function works in
    tf.function, with and without XLA, and under a distribution strategy. The model, its variables and its saved files
    do not change.

    keras.RematScope cannot be used instead: it keeps the input of each layer, and inside tf.function it does not pass
    on `training`.

    Args:
        model: A model from `build_encoder` or `build_pretraining_model`, or a model that extends their graph. A model
            without blocks is returned unchanged.
    """
    parts = split_model(model)
    if parts is None:
        return replace_inner_model(model, rematerialized)
    embed, blocks, heads = keras.Model(model.input, parts.embedded), parts.block_models(), parts.heads()

    def call(features: dict[str, Any], training: bool = False) -> Any:
        seed = current_seed()
        if seed is None:  # as in Keras' fit: a random seed, the same for both computations of a block
            seed = keras.random.randint((2,), -(2**31), 2**31 - 1, dtype="int32")
        seed = tf.convert_to_tensor(seed, tf.int32)
        features = parts.features(features)
        encoded = [embed(features, training=training)]  # [B, S, H]
        for block in blocks:
            encoded.append(_recomputed(block, features[parts.attention_ids], seed, training)(encoded[-1]))
        return heads(encoded, features, training=training)

    return call


def _recomputed(block: keras.Model, attention_ids: Any, seed: Any, training: bool) -> Callable[[Any], Any]:
    @tf.recompute_grad
    def run(x: Any) -> Any:
        # The second computation must not start before the backward pass. recompute_grad delays x until then, but not
        # the dropout masks, which depend only on the seed: the compiler would compute them once and keep them in
        # memory. Adding 0 (1 only if x is NaN) makes the seed depend on x.
        delayed_seed = seed + tf.cast(tf.math.is_nan(x[0, 0, 0]), tf.int32)
        # The context is entered here because the second computation runs outside of the caller's.
        with dropout_seed(delayed_seed):
            return block([x, attention_ids], training=training)

    return run
