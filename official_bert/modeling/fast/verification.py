"""Checks that the faster forms of the encoder block compute the same as the block's own layers.

The modules in this package repeat parts of `modeling.encoder_block`. After an edit of the block, such a form would
train or export the old block. Each form is therefore compared with the layers, once per process and configuration, on
a small model with random weights: outputs, and gradients of all weights. A form that differs is not used.

B batch size, S sequence length
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_bert.modeling import layer_names
from official_bert.modeling.config import BertConfig
from official_bert.modeling.dropout import dropout_seed
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.fast.model_parts import ModelParts, split_model
from official_bert.modeling.heads import FirstPosition
from official_bert.modeling.pretraining_model import build_pretraining_model

Form = Callable[[ModelParts], Callable[..., Any]]  # from a model's parts to a function that computes its outputs

# Errors of Keras and TensorFlow if layers do not fit each other.
_MISFITS = (TypeError, ValueError, AttributeError, tf.errors.OpError)
_TOLERANCE = 1e-3  # of the largest output, or the largest gradient of a variable; rounding is below 1e-4
_LENGTH = 512  # S: attention windows and relative positions act on long sequences only
# Replace values of the model's configuration: sizes, rates of dropout, and the initializer_range, which is not used.
_SIZES: dict[str, Any] = {
    "vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12,
    "max_position_embeddings": _LENGTH, "type_vocab_size": 2, "initializer_range": 0.02, "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.2,
}  # fmt: skip


def is_faithful(form: Form, parts: ModelParts, *, first_position_only: bool = False, training: bool = True) -> bool:
    """Returns whether a faster form of the encoder block computes the same as its layers. Prints a note if it does not.

    Args:
        form: The function to check.
        parts: The model that the form is for. The form is checked on a small model of the same configuration. Without
            one, as in a model that Keras loaded, the result is False.
        first_position_only: Whether the form is for models that read only the first position. Such a form is compared
            on the outputs of a dense layer, others on the outputs of a pre-training model.
        training: Whether the form is for training, with dropout.
    """
    config: Any = getattr(parts.model.get_layer(layer_names.WORD_EMBEDDINGS), "bert_config", None)
    packed = parts.blocks[0].attention_probabilities.packed
    return bool(config) and _verify(form, dataclasses.replace(config, **_SIZES), packed, first_position_only, training)


@functools.cache
def _verify(form: Form, *settings: Any) -> bool:
    # Another thread is outside of the tf.function that is being traced, and of the strategy's scope.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        is_same = thread.submit(_compare, form, *settings).result()
    if not is_same:
        name = form.__module__.rpartition(".")[2]
        print(
            f"note: modeling/fast/{name}.py is not used, because it differs from the edited encoder block, or cannot "
            "be compared with it",
            flush=True,
        )
    return is_same


def _compare(form: Form, config: BertConfig, packed: bool, first_position_only: bool, training: bool) -> bool:
    with tf.device("CPU"):
        try:
            model = _build_model(config, packed, first_position_only)
        except _MISFITS:
            return False  # An edit whose settings do not fit the sizes of the small model cannot be checked.
        parts = split_model(model)
        assert parts
        features = {name: tf.constant(values) for name, values in _make_features(packed).items() if name in model.input}
        expected = _outputs_and_gradients(model, model, features, training)
        try:
            with run_functions_eagerly():  # XLA would take seconds to compile them
                found = _outputs_and_gradients(model, form(parts), features, training)
        except _MISFITS:
            found = [None] * len(expected)
        return all(map(_is_close, found, expected))


@contextlib.contextmanager
def run_functions_eagerly() -> Iterator[None]:
    """Runs every tf.function without tracing it."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def _build_model(config: BertConfig, packed: bool, first_position_only: bool) -> keras.Model:
    if first_position_only:
        encoder = build_encoder(config, seed=0)
        first = FirstPosition(name=layer_names.FIRST_POSITION)(encoder.output["sequence_output"])
        model = keras.Model(encoder.input, keras.layers.Dense(3)(first))
    else:
        model = build_pretraining_model(config, seed=0, packed=packed)
    rng = np.random.default_rng(0)
    for variable in model.variables:
        variable.assign(rng.normal(1.0 if variable.name == "gamma" else 0.0, 0.3, variable.shape))
    return model


def _make_features(packed: bool) -> dict[str, Any]:
    """Returns the inputs of two rows, one of them with padding: int32 [2, S], or [2, number of positions]."""
    rng = np.random.default_rng(1)
    positions, half, quarter = np.arange(_LENGTH), _LENGTH // 2, _LENGTH // 4
    mask = positions < np.array([[_LENGTH], [half + quarter]])
    features = {
        "input_ids": rng.integers(0, 16, (2, _LENGTH)) * mask,
        "input_mask": mask,
        "segment_ids": (positions >= quarter) * mask,
        "record_ids": (1 + (positions >= half)) * mask,
        "position_ids": positions % half * mask,
        "record_starts": np.array([[0, half]] * 2),
        "masked_lm_positions": rng.integers(1, half, (2, 5)),
    }
    return {name: np.asarray(values, np.int32) for name, values in features.items()}


def _outputs_and_gradients(
    model: keras.Model, call: Callable[..., Any], features: dict[str, Any], training: bool
) -> list[Any]:
    """Returns the outputs of a model, and the gradients of a random combination of the outputs for all weights.

    Args:
        model: The model, which owns the weights.
        call: Function that computes the outputs: the model itself, or a faster form.
        features: The model's inputs.
        training: Whether to apply dropout.
    """
    rng = np.random.default_rng(2)
    with dropout_seed(tf.constant([3, 4])), tf.GradientTape() as tape:
        outputs = _flatten(call(features, training=training))
        loss = tf.add_n([tf.reduce_sum(each * rng.normal(size=each.shape).astype("float32")) for each in outputs])
    gradients = tape.gradient(loss, model.trainable_variables)
    return [*outputs, *(each if each is None else tf.convert_to_tensor(each) for each in gradients)]


def _flatten(outputs: Any) -> list[Any]:
    """Returns outputs as a list of tensors. FactoredLogits are multiplied out."""
    factored = outputs.get("masked_lm_logits") if isinstance(outputs, dict) else None
    if isinstance(factored, tuple):
        vectors, table, bias = factored
        outputs = {**outputs, "masked_lm_logits": tf.matmul(vectors, table, transpose_b=True) + bias}
    return list(keras.tree.flatten(outputs))


def _is_close(actual: Any, expected: Any) -> bool:
    if actual is None or expected is None:
        return actual is expected
    if actual.shape != expected.shape:
        return False
    # The gradient of some biases is zero but for rounding.
    return bool(np.max(np.abs(actual - expected)) <= _TOLERANCE * max(np.max(np.abs(expected)), 1e-2))
