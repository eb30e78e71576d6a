"""Masking while training: records that were written without masks are masked here, differently in each epoch.

The distribution is that of masked records (paper, section 3.1, task 1), with which
tests/data_gen/rules/test_masking_parity.py compares it. Random numbers are a hash of seed, epoch, record and position,
so they do not depend on the order in which records are read, nor on the number of devices.

B batch, S sequence, P predictions
"""

import dataclasses

import tensorflow as tf

from official_bert.data.masking_rates import BERT_RATES, MaskingRates
from official_bert.tokenization import exact

# The finalizer of SplitMix64 (Steele, Lea and Flood, 2014) in 64-bit arithmetic that wraps around.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64

_ORDER, _KIND, _WORD = range(3)  # the purposes of a position's random numbers


@dataclasses.dataclass(frozen=True)
class DynamicMasking:
    """Masks tokens of batches."""

    vocab: dict[str, int]  # token to id
    max_predictions_per_seq: int  # P
    masked_lm_prob: float  # the share of tokens to predict
    do_whole_word_mask: bool  # whether all pieces of a word are masked together
    rates: MaskingRates = BERT_RATES  # what replaces them

    def mask(self, features: dict[str, tf.Tensor], keys: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the features of masked records (see record_schema.pretraining_schema).

        Args:
            features: of unmasked records (see record_schema.unmasked_schema).
            keys: [B] int64, the source of each record's random numbers (see `make_record_keys`).
        """
        ids = features["input_ids"]  # [B, S]
        width, limit = ids.shape[1], self.max_predictions_per_seq
        length = tf.reduce_sum(features["input_mask"], axis=1)  # [B]
        wanted = tf.cast(tf.round(tf.cast(length, tf.float64) * self.masked_lm_prob), tf.int32)  # half to even
        budget = tf.minimum(limit, tf.maximum(1, wanted))  # [B]
        special = (ids == self.vocab[exact.CLS]) | (ids == self.vocab[exact.SEP])
        candidate = (features["input_mask"] > 0) & ~special  # [B, S]
        order = tf.where(candidate, _random(keys, width, _ORDER), tf.int64.max)
        if self.do_whole_word_mask:
            chosen = self._words(ids, candidate, order, budget)
        else:
            chosen = candidate & (tf.argsort(tf.argsort(order, axis=1, stable=True), axis=1) < budget[:, None])

        position = tf.range(width)[None, :]
        ascending = tf.sort(tf.where(chosen, position, width), axis=1)[:, :limit]  # [B, up to P]
        ascending = tf.pad(ascending, [[0, 0], [0, limit - ascending.shape[1]]], constant_values=width)  # [B, P]
        present = ascending < width
        positions = tf.where(present, ascending, 0)
        labels = tf.where(present, tf.gather(ids, positions, batch_dims=1), 0)

        kind = _uniform(keys, width, _KIND)
        words = tf.constant(list(self.vocab.values()), tf.int32)
        random_ids = tf.gather(words, tf.cast(_uniform(keys, width, _WORD) * len(self.vocab), tf.int32))
        same_or_random = tf.where(kind < self.rates.mask_or_same_probability, ids, random_ids)
        new = tf.where(kind < self.rates.mask_probability, self.vocab[exact.MASK], same_or_random)
        return {
            **features,
            "input_ids": tf.where(chosen, new, ids),
            "masked_lm_positions": positions,
            "masked_lm_ids": labels,
            "masked_lm_weights": tf.cast(present, tf.float32),
        }

    def _words(self, ids: tf.Tensor, candidate: tf.Tensor, order: tf.Tensor, budget: tf.Tensor) -> tf.Tensor:
        """Returns the chosen positions, [B, S] bool: whole words in random order, without those beyond the budget."""
        continues = tf.constant(
            sorted(i for token, i in self.vocab.items() if token.startswith(exact.CONTINUATION)), tf.int32
        )
        number = tf.cumsum(tf.cast(candidate, tf.int32), axis=1)
        # The first candidate begins a word whatever it is.
        begins = candidate & (~_is_in(ids, continues) | (number == 1))
        word = tf.cumsum(tf.cast(begins, tf.int32), axis=1) - 1  # [B, S]; -1 before the first
        width = ids.shape[1]
        pieces = tf.one_hot(tf.where(candidate, word, -1), width, dtype=tf.int32)  # [B, S, words]
        sizes = tf.reduce_sum(pieces, axis=1)  # [B, words]
        # Words come in the order of the random numbers of their first pieces.
        first_pieces = tf.argsort(tf.where(begins, order, tf.int64.max), axis=1)  # [B, S]
        in_order = tf.gather(word, first_pieces, batch_dims=1)
        count = tf.reduce_sum(tf.cast(begins, tf.int32), axis=1)  # [B]
        taken = tf.zeros_like(sizes)
        remaining = budget
        for rank in tf.range(tf.reduce_max(count)):
            now = tf.maximum(in_order[:, rank], 0)
            size = tf.gather(sizes, now, batch_dims=1)
            fits = (rank < count) & (size <= remaining)
            remaining -= tf.where(fits, size, 0)
            taken += tf.one_hot(tf.where(fits, now, -1), width, dtype=tf.int32)
        return candidate & (tf.gather(taken, tf.maximum(word, 0), batch_dims=1) > 0)


def make_record_keys(seed: int, epoch: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """Returns a key for each record: [B] int64, from a seed, the epoch [B] int64 and the record's id [B] int64."""
    key = _mixed(tf.bitwise.bitwise_xor(_mixed(tf.constant(seed, tf.int64)), epoch))
    return _mixed(tf.bitwise.bitwise_xor(key, number))


def _random(keys: tf.Tensor, width: int, purpose: int) -> tf.Tensor:
    """63 random bits for each position of each record, [B, width]."""
    counters = tf.range(width, dtype=tf.int64) * 4 + purpose
    return _shifted(_mixed(keys[:, None] + counters * _GOLDEN), 1)


def _uniform(keys: tf.Tensor, width: int, purpose: int) -> tf.Tensor:
    """From 0 up to, not including, 1, in steps of 2 ** -53: [B, width] float64."""
    return tf.cast(_shifted(_random(keys, width, purpose), 10), tf.float64) * 2.0**-53


def _mixed(value: tf.Tensor) -> tf.Tensor:
    for bits, factor in ((30, _MIX_1), (27, _MIX_2), (31, 1)):
        value = tf.bitwise.bitwise_xor(value, _shifted(value, bits)) * factor
    return value


def _shifted(value: tf.Tensor, bits: int) -> tf.Tensor:
    """Shifts to the right and fills with zeros; TensorFlow's shift of signed numbers would copy the sign."""
    shifted = tf.bitwise.right_shift(value, tf.constant(bits, tf.int64))
    return tf.bitwise.bitwise_and(shifted, 2 ** (64 - bits) - 1)


def _is_in(ids: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    """Whether each id is among the wanted ones, which are in ascending order."""
    if not wanted.shape[0]:
        return tf.zeros_like(ids, tf.bool)
    flat = tf.reshape(ids, [-1])
    nearest = tf.minimum(tf.searchsorted(wanted, flat), wanted.shape[0] - 1)
    return tf.reshape(tf.gather(wanted, nearest) == flat, tf.shape(ids))
