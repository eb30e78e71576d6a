"""The numeric details that all layers share: initial weights, the normalization's epsilon, the activations."""

import zlib
from collections.abc import Callable
from typing import Any

import keras

from official_bert.modeling.config import BertConfig


def initializer(config: BertConfig, seed: int | None, name: str) -> keras.initializers.Initializer:
    """Returns what every matrix starts from; arguments as of `seeded_normal`."""
    return seeded_normal(config.initializer_range, seed, name)


def seeded_normal(stddev: float, seed: int | None, name: str) -> keras.initializers.Initializer:
    """Returns the normal distribution cut at two standard deviations that every matrix starts from.

    Args:
        stddev: the standard deviation.
        seed: the model's seed; None for any.
        name: the layer's name, which the seed is mixed with, so that every layer starts differently and the same
            layer equally, whatever else the model holds.
    """
    mixed = None if seed is None else zlib.crc32(f"{seed}/{name}".encode())
    return keras.initializers.TruncatedNormal(stddev=stddev, seed=mixed)


def dense(units: int, name: str, config: BertConfig, seed: int | None, dtype: Any, activation: Any = None) -> Any:
    """Returns a dense layer, initialized as BERT's are; biases start at zero."""
    kernel = initializer(config, seed, name)
    return keras.layers.Dense(units, activation, kernel_initializer=kernel, name=name, dtype=dtype)


def layer_norm(name: str, config: BertConfig, dtype: Any) -> keras.Layer:
    """Returns a layer normalization over the last axis; it computes in float32 whatever the policy."""
    return keras.layers.LayerNormalization(epsilon=config.layer_norm_eps, name=name, dtype=dtype)


@keras.saving.register_keras_serializable(package="official_bert")
def gelu_tanh(x: Any) -> Any:
    """The Gaussian error linear unit in its tanh approximation, as the original computes it."""
    return keras.activations.gelu(x, approximate=True)


@keras.saving.register_keras_serializable(package="official_bert")
def gelu_exact(x: Any) -> Any:
    """The Gaussian error linear unit with the error function."""
    return keras.activations.gelu(x, approximate=False)


def activation(config: BertConfig) -> Callable[[Any], Any]:
    """Returns the function that `config.hidden_act` names."""
    return {
        "gelu": gelu_tanh,
        "gelu_exact": gelu_exact,
        "relu": keras.activations.relu,
        "tanh": keras.activations.tanh,
        "linear": keras.activations.linear,
    }[config.hidden_act]
