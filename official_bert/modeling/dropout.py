"""Dropout without stored random state: the mask is a function of a seed that the training step passes in."""

import contextlib
import zlib
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

_BITS = 16  # random bits per element: the keep rate is exact to 2 ** -17, 8e-6

# Odd numbers, whose multiples differ modulo 2 ** 32, so that replicas and micro-batches have different seeds.
_REPLICA_FACTOR, _MICRO_BATCH_FACTOR = 0x3C6EF35F, 0x1B873593

_seeds: list[Any] = []


def step_seed(seed: int, step: Any, replica: Any, micro_batch: Any = 0) -> Any:
    """Returns the seed for the dropout of one step, replica and micro-batch, int32 [2]. Pass it to `dropout_seed`.

    Args:
        seed: Seed of the run. Only 31 bits are used.
        step: Number of completed steps, a scalar.
        replica: Index of the replica, a scalar.
        micro_batch: Index of the micro-batch within the replica, a scalar.
    """
    of_replica, of_micro_batch = ops.cast(replica, "int32"), ops.cast(micro_batch, "int32")
    spread = ops.bitwise_xor(of_replica * _REPLICA_FACTOR, of_micro_batch * _MICRO_BATCH_FACTOR)
    return ops.stack([ops.bitwise_xor(spread, seed & 0x7FFFFFFF), ops.cast(step, "int32")])


@contextlib.contextmanager
def dropout_seed(seed: Any) -> Iterator[None]:
    """In this context, the mask of each Dropout layer is a function of the layer's name and of `seed`, int32 [2]."""
    _seeds.append(seed)
    try:
        yield
    finally:
        _seeds.pop()


def current_seed() -> Any:
    """Returns the seed of the innermost enclosing `dropout_seed` context, or None outside of one."""
    return _seeds[-1] if _seeds else None


class _TensorSeed(keras.random.SeedGenerator):
    """Passes a seed tensor to keras.random, which accepts a SeedGenerator but no tensors."""

    def __init__(self, seed: Any) -> None:
        self._seed = seed  # without the base class, which would create a variable

    def next(self, ordered: bool = True) -> Any:
        return self._seed


def _get_replica_seed() -> Any:
    """Returns a random seed if a tf.distribute strategy is active, else None.

    Under a strategy, Keras' global seed generator cannot create its variable.
    """
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    if not tf.distribute.has_strategy():
        return None
    return _TensorSeed(tf.random.uniform([2], -(2**31), 2**31 - 1, dtype=tf.int32))


@keras.saving.register_keras_serializable(package="official_bert")
class Dropout(keras.layers.Layer):
    """Sets a fraction of the elements to zero during training and scales up the others, so that the mean is unchanged.

    In a `dropout_seed` context, the mask is a function of the seed and of the layer's name. Outside of one (in Keras'
    own fit), seeds come from Keras' global generator, which keras.utils.set_random_seed seeds. Under a tf.distribute
    strategy they come from TensorFlow's generator, which XLA seeds in its own way.

    The layer draws half the random bits of keras.layers.Dropout: 16 bits per element.

    Args:
        rate: Fraction of the elements to drop, in [0, 1).
        kwargs: Arguments of keras.layers.Layer.
    """

    def __init__(self, rate: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = rate
        self.supports_masking = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training or not self.drops:
            return inputs
        return self.drop(inputs, self.random_numbers(ops.shape(inputs)))

    @property
    def drops(self) -> bool:
        """Whether the layer drops anything: whether the rate, rounded to multiples of 2 ** -16, is above zero."""
        return self.rate >= 2.0 ** -(_BITS + 1)

    def random_numbers(self, shape: Any) -> Any:
        """Returns uint16 random numbers of the given shape.

        Pass them to `drop`, which keeps the elements with small numbers.
        """
        *outer, last = shape
        # Each 32-bit number is used for two neighbours.
        pairs = (last + 1) // 2
        bits = keras.random.randint((*outer, pairs), -(2**31), 2**31 - 1, dtype="int32", seed=self._seed())
        if isinstance(last, int):
            halves = ops.view(bits, "uint16")
        else:  # a graph of unknown length: Keras' view needs the last axis
            halves = ops.reshape(ops.view(ops.reshape(bits, (-1, 1)), "uint16"), (*outer, 2 * pairs))
        return halves[..., :last]

    def drop(self, inputs: Any, random_numbers: Any) -> Any:
        """Drops elements of a tensor, and scales up the others.

        Args:
            inputs: The tensor.
            random_numbers: The result of `random_numbers` for its shape.
        """
        if not self.drops:
            return inputs
        # Number of kept values among 2 ** 16 equally likely ones. At least one is kept and one is dropped.
        kept = min(max(round((1.0 - self.rate) * 2**_BITS), 1), 2**_BITS - 1)
        return ops.where(random_numbers < kept, inputs * (2**_BITS / kept), 0)

    def _seed(self) -> Any:
        seed = current_seed()
        if seed is None:
            return _get_replica_seed()
        # Names are unique within a model. 31 bits fit into int32.
        of_layer = zlib.crc32(self.name.encode()) & 0x7FFFFFFF
        seed = ops.convert_to_tensor(seed, dtype="int32")
        return _TensorSeed(ops.bitwise_xor(seed, ops.convert_to_tensor([of_layer, 0], dtype="int32")))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rate": self.rate}

    def compute_output_spec(self, inputs: Any, training: bool = False) -> Any:
        return keras.KerasTensor(inputs.shape, dtype=inputs.dtype)
