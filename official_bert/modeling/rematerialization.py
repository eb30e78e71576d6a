"""Less memory for more time: the backward pass computes each encoder block again instead of keeping its activations.

B batch, S sequence, H hidden size
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from official_bert.modeling import layer_names
from official_bert.modeling.dropout import current_seed, dropout_seed


def rematerialized(model: keras.Model) -> Callable[..., dict[str, Any]]:
    """Returns a function that is called as the model is and gives the same, outputs and gradients, in less memory.

    The model itself, its layers, their names, its variables and how it is saved do not change. Only the input of each
    encoder block, [B, S, H], is kept for the backward pass, which computes the block a second time, with the same
    dropout masks. A step takes a quarter to a third more computation. The function works within tf.function, with XLA
    or without, and under a distribution strategy.

    keras.RematScope does not serve: it works layer by layer, so that every layer's input is kept, and within
    tf.function it cannot pass `training` on.

    Args:
        model: of `build_encoder` or `build_pretraining_model`, or anything that goes on from their last block alone.
    """
    inputs = model.input
    attended = "record_ids" if "record_ids" in inputs else "input_mask"
    embed_names = [name for name in inputs if name in ("input_ids", "position_ids", "segment_ids")]
    head_names = [name for name in inputs if name not in (*embed_names, attended)]
    if any(layer.name == layer_names.LAST_TOKEN for layer in model.layers):
        head_names.append("input_mask")  # which says where the last token is
    x = model.get_layer(layer_names.EMBEDDINGS_DROPOUT).output
    embed = keras.Model([inputs[name] for name in embed_names], x)
    blocks: list[keras.Model] = []
    for output in layer_names.block_outputs(model).values():
        blocks.append(keras.Model([x, inputs[attended]], output))
        x = output
    # sequence_output is the last block's output itself: the heads' model cannot return it, since Keras builds no model
    # whose output is its input. `call` puts it among the outputs.
    predicted = {name: tensor for name, tensor in model.output.items() if tensor is not x}
    heads = keras.Model([x, *(inputs[name] for name in head_names)], predicted)

    def call(features: dict[str, Any], training: bool = False) -> dict[str, Any]:
        seed = current_seed()
        if seed is None:  # as in Keras' fit: any seed, but the same one for both computations of a block
            seed = keras.random.randint((2,), -(2**31), 2**31 - 1, dtype="int32")
        seed = tf.convert_to_tensor(seed, tf.int32)
        features = {name: tf.convert_to_tensor(features[name], tf.int32) for name in inputs}
        x = embed([features[name] for name in embed_names], training=training)  # [B, S, H]
        for block in blocks:
            x = _recomputed(block, features[attended], seed, training)(x)  # [B, S, H]
        outputs = heads([x, *(features[name] for name in head_names)], training=training)
        return {name: outputs.get(name, x) for name in model.output}

    return call


def _recomputed(block: keras.Model, input_mask: Any, seed: Any, training: bool) -> Callable[[Any], Any]:
    @tf.recompute_grad
    def run(x: Any) -> Any:
        # The second computation must not start before the backward pass. recompute_grad delays x until then, but not
        # the dropout masks: computed from the seed alone, they are the same expression twice, so the compiler computes
        # them once and keeps them in memory. So the seed is made to depend on x, by adding 0 (1 only if x is NaN).
        delayed_seed = seed + tf.cast(tf.math.is_nan(x[0, 0, 0]), tf.int32)
        # The context is entered here because the second computation runs outside of the caller's.
        with dropout_seed(delayed_seed):
            return block([x, input_mask], training=training)

    return run
