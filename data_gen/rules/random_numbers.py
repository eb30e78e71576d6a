"""A counter-based random generator for the fast algorithm. Its numbers are the same in every process."""

import hashlib

import numpy as np


class Random:
    """A stream of random numbers that depends only on the key.

    The numbers come from the raw output of Philox, which is the same in every NumPy release.

    Args:
        *key: Values such as the seed, the pass and the block.
    """

    def __init__(self, *key: object) -> None:
        digest = hashlib.sha256(repr(key).encode()).digest()
        self._bits = np.random.Philox(key=np.frombuffer(digest[:16], "<u8"))

    def raw(self, *shape: int) -> np.ndarray:
        """Returns uint64 numbers of 64 random bits, in an array of this shape."""
        return np.asarray(self._bits.random_raw(int(np.prod(shape))), np.uint64).reshape(shape)

    def uniform(self, *shape: int) -> np.ndarray:
        """Returns floats from 0 (inclusive) to 1 (exclusive), in steps of 2 ** -53, in an array of this shape."""
        return (self.raw(*shape) >> np.uint64(11)) * 2.0**-53

    def keys(self, rows: int, columns: int) -> np.ndarray:
        """Returns random sort keys [rows, columns], int64: 32 random bits followed by the column number.

        The column number makes the keys of a row unique. Otherwise the order of equal keys would depend on the
        processor.
        """
        count = rows * columns
        bits = self.raw(-(-count // 2)).view(np.uint32)[:count].reshape(rows, columns)
        return bits.astype(np.int64) << 16 | np.arange(columns)

    def below(self, limits: np.ndarray) -> np.ndarray:
        """Returns random integers from 0 (inclusive) to `limits` (exclusive), one for each element of this array."""
        return (self.uniform(*limits.shape) * limits).astype(np.int64)

    def fair_binomial(self, trials: np.ndarray) -> np.ndarray:
        """Draws from binomial distributions with probability 1/2, one number for each element of `trials`."""
        successes = np.zeros_like(trials)
        remaining = trials.copy()
        while remaining.any():
            now = np.minimum(remaining, 64)
            # A right shift keeps `now` of 64 random bits. A shift by 64 is undefined, so 0 trials are special.
            bits = self.raw(len(remaining)) >> np.clip(64 - now, 0, 63).astype(np.uint64)
            successes += np.bitwise_count(np.where(now > 0, bits, np.uint64(0)))
            remaining -= now
        return successes
