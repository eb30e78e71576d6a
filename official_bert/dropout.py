"""Dropout that keeps no random state: its mask is a function of a seed, which the training step passes in."""

import contextlib
import zlib
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

_BITS = 16  # random bits per element: the keep rate is exact to 2 ** -17, 8e-6

_seeds: list[Any] = []


@contextlib.contextmanager
def dropout_seed(seed: Any) -> Iterator[None]:
    """Within this context every Dropout layer draws its mask from `seed` and its own name alone.

    Args:
        seed: int32 [2], a tensor or array: different for each step and replica.
    """
    _seeds.append(seed)
    try:
        yield
    finally:
        _seeds.pop()


def current_seed() -> Any:
    """Returns the seed of the enclosing `dropout_seed`, or None outside of one."""
    return _seeds[-1] if _seeds else None


class _GivenSeed(keras.random.SeedGenerator):
    """Hands a seed tensor to keras.random, which takes no tensors but asks a SeedGenerator for its next one."""

    def __init__(self, seed: Any) -> None:
        self._seed = seed  # and no variable: the base class would make one

    def next(self, ordered: bool = True) -> Any:
        return self._seed


@keras.saving.register_keras_serializable(package="official_bert")
class Dropout(keras.layers.Layer):
    """Sets a share of the elements to zero while training and scales the others up, so that the mean stays.

    The mask comes from the seed of the enclosing `dropout_seed` and the layer's name: the same seed gives the same
    mask. Without such a context (in Keras' own fit) seeds come from Keras' global generator, which
    keras.utils.set_random_seed sets.

    Half the random numbers of keras.layers.Dropout are drawn, 16 bits an element.

    Args:
        rate: share of the elements to drop, in [0, 1).
    """

    def __init__(self, rate: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = rate
        self.supports_masking = True
        # Of 2 ** 16 equally likely numbers; at least one is kept and one dropped.
        self._kept = min(max(round((1.0 - rate) * 2**_BITS), 1), 2**_BITS - 1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training or self.rate < 2.0 ** -(_BITS + 1):  # below half a step it rounds to none
            return inputs
        *outer, last = ops.shape(inputs)
        # Each 32-bit number decides two neighbours.
        bits = keras.random.randint((*outer, (last + 1) // 2), -(2**31), 2**31 - 1, dtype="int32", seed=self._seed())
        if isinstance(last, int):
            halves = ops.view(bits, "uint16")
        else:  # a graph that does not know the length: Keras' view wants to know the last axis
            halves = ops.reshape(ops.view(ops.reshape(bits, (-1, 1)), "uint16"), (*outer, -1))
        keep = halves[..., :last] < self._kept
        return ops.where(keep, inputs * (2**_BITS / self._kept), 0)

    def _seed(self) -> Any:
        given = current_seed()
        if given is None:
            return None
        # Names are unique within a model; 31 bits keep the number within int32.
        place = zlib.crc32(self.name.encode()) & 0x7FFFFFFF
        seed = ops.convert_to_tensor(given, dtype="int32")
        return _GivenSeed(ops.bitwise_xor(seed, ops.convert_to_tensor([place, 0], dtype="int32")))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rate": self.rate}

    def compute_output_spec(self, inputs: Any, training: bool = False) -> Any:
        return keras.KerasTensor(inputs.shape, dtype=inputs.dtype)
