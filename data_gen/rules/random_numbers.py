"""The random numbers of the fast algorithm, from a counter-based generator: the same in every process."""

import hashlib

import numpy as np


class Random:
    """A stream of random numbers for a key: the raw output of Philox, which is the same in every NumPy release."""

    def __init__(self, *key: object) -> None:
        digest = hashlib.sha256(repr(key).encode()).digest()
        self._bits = np.random.Philox(key=np.frombuffer(digest[:16], "<u8"))

    def raw(self, *shape: int) -> np.ndarray:
        """Returns integers of 64 random bits."""
        return np.asarray(self._bits.random_raw(int(np.prod(shape))), np.uint64).reshape(shape)

    def uniform(self, *shape: int) -> np.ndarray:
        """Returns numbers from 0 (inclusive) to 1 (exclusive), in steps of 2 ** -53."""
        return (self.raw(*shape) >> np.uint64(11)) * 2.0**-53

    def keys(self, rows: int, columns: int) -> np.ndarray:
        """Returns sort keys that are unique within a row: 32 random bits, then the column.

        The order of equal keys would depend on the processor.
        """
        count = rows * columns
        bits = self.raw(-(-count // 2)).view(np.uint32)[:count].reshape(rows, columns)
        return bits.astype(np.int64) << 16 | np.arange(columns)

    def below(self, limits: np.ndarray) -> np.ndarray:
        """Returns integers from 0 (inclusive) to each limit (exclusive)."""
        return (self.uniform(*limits.shape) * limits).astype(np.int64)

    def fair_binomial(self, trials: np.ndarray) -> np.ndarray:
        """Draws from binomial distributions with these numbers of trials and probability 1/2."""
        successes = np.zeros_like(trials)
        remaining = trials.copy()
        while remaining.any():
            now = np.minimum(remaining, 64)
            # A right shift keeps `now` of 64 random bits. A shift by 64 is undefined, so 0 trials are special.
            bits = self.raw(len(remaining)) >> np.clip(64 - now, 0, 63).astype(np.uint64)
            successes += np.bitwise_count(np.where(now > 0, bits, np.uint64(0)))
            remaining -= now
        return successes
