"""Random numbers of the fast algorithm, from a counter-based generator: the same in every process, at any time."""

import hashlib

import numpy as np


class Random:
    """The stream of numbers of a key, from the raw output of Philox, which is the same in every release of NumPy."""

    def __init__(self, *key: object) -> None:
        digest = hashlib.sha256(repr(key).encode()).digest()
        self._bits = np.random.Philox(key=np.frombuffer(digest[:16], "<u8"))

    def raw(self, *shape: int) -> np.ndarray:
        """64 random bits each."""
        return np.asarray(self._bits.random_raw(int(np.prod(shape))), np.uint64).reshape(shape)

    def uniform(self, *shape: int) -> np.ndarray:
        """From 0 up to, not including, 1, in steps of 2 ** -53."""
        return (self.raw(*shape) >> np.uint64(11)) * 2.0**-53

    def keys(self, rows: int, columns: int) -> np.ndarray:
        """Numbers to sort each row by, no two of a row alike: 32 random bits, then the column.

        Equal numbers would be put in an order that depends on the processor.
        """
        count = rows * columns
        bits = self.raw(-(-count // 2)).view(np.uint32)[:count].reshape(rows, columns)
        return bits.astype(np.int64) << 16 | np.arange(columns)

    def below(self, limits: np.ndarray) -> np.ndarray:
        """A whole number from 0 up to, not including, each limit."""
        return (self.uniform(*limits.shape) * limits).astype(np.int64)

    def fair_binomial(self, trials: np.ndarray) -> np.ndarray:
        """Numbers of successes in so many trials each, with probability 1/2: a binomial distribution."""
        successes = np.zeros_like(trials)
        remaining = trials.copy()
        while remaining.any():
            now = np.minimum(remaining, 64)
            # A right shift keeps `now` of 64 random bits. A shift by 64 is undefined, so 0 trials are a separate case.
            bits = self.raw(len(remaining)) >> np.clip(64 - now, 0, 63).astype(np.uint64)
            successes += np.bitwise_count(np.where(now > 0, bits, np.uint64(0)))
            remaining -= now
        return successes
