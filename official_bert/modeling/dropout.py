"""Dropout that keeps no random state: its mask is a function of a seed, which the training step passes in."""

import contextlib
import zlib
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

_BITS = 16  # random bits per element: the keep rate is exact to 2 ** -17, 8e-6

# Odd, so that multiples of them differ modulo 2 ** 32: no two replicas and no two micro-batches share a seed.
_REPLICA_FACTOR, _MICRO_BATCH_FACTOR = 0x3C6EF35F, 0x1B873593

_seeds: list[Any] = []


def step_seed(seed: int, step: Any, replica: Any, micro_batch: Any = 0) -> Any:
    """Returns the seed of one replica's dropout in one step, for `dropout_seed`: int32 [2].

    Args:
        seed: of the run; 31 bits of it count.
        step: the number of steps done, a scalar.
        replica: the replica's number, a scalar.
        micro_batch: the number of the micro-batch within the replica's share of the batch, a scalar.
    """
    of_replica, of_micro_batch = ops.cast(replica, "int32"), ops.cast(micro_batch, "int32")
    spread = ops.bitwise_xor(of_replica * _REPLICA_FACTOR, of_micro_batch * _MICRO_BATCH_FACTOR)
    return ops.stack([ops.bitwise_xor(spread, seed & 0x7FFFFFFF), ops.cast(step, "int32")])


@contextlib.contextmanager
def dropout_seed(seed: Any) -> Iterator[None]:
    """Within this context every Dropout layer draws its mask from its own name and `seed` alone, int32 [2]."""
    _seeds.append(seed)
    try:
        yield
    finally:
        _seeds.pop()


def current_seed() -> Any:
    """Returns the seed of the enclosing `dropout_seed`, or None outside of one."""
    return _seeds[-1] if _seeds else None


class _TensorSeed(keras.random.SeedGenerator):
    """Hands a seed tensor to keras.random, which takes no tensors but asks a SeedGenerator for its next one."""

    def __init__(self, seed: Any) -> None:
        self._seed = seed  # and no variable: the base class would make one

    def next(self, ordered: bool = True) -> Any:
        return self._seed


def _seed_of_replica() -> Any:
    """A new seed where a tf.distribute strategy runs this: there Keras' global generator cannot make its variable."""
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    if not tf.distribute.has_strategy():
        return None
    return _TensorSeed(tf.random.uniform([2], -(2**31), 2**31 - 1, dtype=tf.int32))


@keras.saving.register_keras_serializable(package="official_bert")
class Dropout(keras.layers.Layer):
    """Sets a share of the elements to zero while training and scales the others up, so that the mean stays.

    The mask comes from the seed of the enclosing `dropout_seed` and the layer's name: the same seed gives the same
    mask. Without such a context (in Keras' own fit) seeds come from Keras' global generator, which
    keras.utils.set_random_seed sets; under a tf.distribute strategy from TensorFlow's, which XLA seeds as it likes.

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
        if not training or not self.drops:
            return inputs
        return self.drop(inputs, self.random_numbers(ops.shape(inputs)))

    @property
    def drops(self) -> bool:
        """Whether the rate is more than zero when rounded to the steps that 16 bits allow."""
        return self.rate >= 2.0 ** -(_BITS + 1)

    def random_numbers(self, shape: Any) -> Any:
        """Returns the random numbers that decide which elements of this shape are kept, uint16."""
        *outer, last = shape
        # Each 32-bit number decides two neighbours.
        pairs = (last + 1) // 2
        bits = keras.random.randint((*outer, pairs), -(2**31), 2**31 - 1, dtype="int32", seed=self._seed())
        if isinstance(last, int):
            halves = ops.view(bits, "uint16")
        else:  # a graph that does not know the length: Keras' view wants to know the last axis
            halves = ops.reshape(ops.view(ops.reshape(bits, (-1, 1)), "uint16"), (*outer, 2 * pairs))
        return halves[..., :last]

    def drop(self, inputs: Any, random_numbers: Any) -> Any:
        """Returns the inputs without the elements that their numbers drop, of `random_numbers`."""
        if not self.drops:
            return inputs
        return ops.where(random_numbers < self._kept, inputs * (2**_BITS / self._kept), 0)

    def _seed(self) -> Any:
        seed = current_seed()
        if seed is None:
            return _seed_of_replica()
        # Names are unique within a model; 31 bits keep the number within int32.
        of_layer = zlib.crc32(self.name.encode()) & 0x7FFFFFFF
        seed = ops.convert_to_tensor(seed, dtype="int32")
        return _TensorSeed(ops.bitwise_xor(seed, ops.convert_to_tensor([of_layer, 0], dtype="int32")))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rate": self.rate}

    def compute_output_spec(self, inputs: Any, training: bool = False) -> Any:
        return keras.KerasTensor(inputs.shape, dtype=inputs.dtype)
