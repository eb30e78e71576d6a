"""What all layers share: initial weights, the epsilon of layer normalization, and activation functions."""

import zlib
from collections.abc import Callable
from typing import Any

import keras

from official_bert.modeling.config import BertConfig


def seeded_normal(stddev: float, seed: int | None, name: str) -> keras.initializers.Initializer:
    """Returns an initializer that draws from a normal distribution, truncated at two standard deviations.

    Args:
        stddev: Standard deviation.
        seed: Seed of the model. None draws a random seed.
        name: Name of the layer. The initial weights depend on the seed and on this name, not on the other layers.
    """
    mixed = None if seed is None else zlib.crc32(f"{seed}/{name}".encode())
    return keras.initializers.TruncatedNormal(stddev=stddev, seed=mixed)


def dense(units: int, name: str, config: BertConfig, seed: int | None, dtype: Any, activation: Any = None) -> Any:
    """Creates a dense layer with BERT's initializer, and biases that start at zero.

    Args:
        units: Size of the output.
        name: Name of the layer.
        config: Sizes of the model.
        seed: Seed of the model. None draws a random seed.
        dtype: Keras dtype policy of the layer.
        activation: Activation function. If None, the layer is linear.
    """
    kernel = seeded_normal(config.initializer_range, seed, name)
    return keras.layers.Dense(units, activation, kernel_initializer=kernel, name=name, dtype=dtype)


def layer_norm(name: str, config: BertConfig, dtype: Any) -> keras.Layer:
    """Creates a layer normalization over the last axis. It computes in float32 under any dtype policy."""
    return keras.layers.LayerNormalization(epsilon=config.layer_norm_eps, name=name, dtype=dtype)


@keras.saving.register_keras_serializable(package="official_bert")
def gelu_tanh(x: Any) -> Any:
    """The tanh approximation of the Gaussian error linear unit, as in the original."""
    return keras.activations.gelu(x, approximate=True)


@keras.saving.register_keras_serializable(package="official_bert")
def gelu_exact(x: Any) -> Any:
    """The Gaussian error linear unit, computed exactly with the error function."""
    return keras.activations.gelu(x, approximate=False)


def activation(config: BertConfig) -> Callable[[Any], Any]:
    """Returns the activation function that `config.hidden_act` names."""
    return {
        "gelu": gelu_tanh,
        "gelu_exact": gelu_exact,
        "relu": keras.activations.relu,
        "tanh": keras.activations.tanh,
        "linear": keras.activations.linear,
    }[config.hidden_act]
