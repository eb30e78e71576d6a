"""Dynamic masking: masks unmasked records while training, differently in each epoch.

tests/data_gen/rules/test_masking_parity.py shows that the distribution equals the one of masked records (paper, section
3.1, task 1). Random numbers are a hash of seed, epoch, record and position. They depend neither on the order in which
records are read nor on the number of devices.

B batch, S sequence, P predictions
"""

import dataclasses

import tensorflow as tf

from official_bert.data.masking_rates import BERT_RATES, MaskingRates
from official_bert.tokenization import exact

# Constants of SplitMix64's finalizer (Steele, Lea and Flood, 2014), in 64-bit arithmetic that wraps around.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64

_ORDER, _KIND, _WORD = range(3)  # Purposes of a position's random numbers.


@dataclasses.dataclass(frozen=True)
class DynamicMasking:
    """Masks tokens of batches of unmasked records.

    Attributes:
        vocab: Token to id.
        max_predictions_per_seq: Maximum number of tokens to predict per record, P.
        masked_lm_prob: Share of the tokens to predict.
        do_whole_word_mask: Whether to mask all pieces of a word together.
        rates: How often a token to predict is replaced by [MASK], replaced by a random token, or kept.
    """

    vocab: dict[str, int]
    max_predictions_per_seq: int
    masked_lm_prob: float
    do_whole_word_mask: bool
    rates: MaskingRates = BERT_RATES

    def mask(self, features: dict[str, tf.Tensor], keys: tf.Tensor) -> dict[str, tf.Tensor]:
        """Masks a batch. Returns the features of masked records (see record_schema.pretraining_schema).

        Args:
            features: Features of unmasked records (see record_schema.unmasked_schema).
            keys: Seed of each record's random numbers [B] int64 (see `make_record_keys`).
        """
        ids = features["input_ids"]  # [B, S]
        width, limit = ids.shape[1], self.max_predictions_per_seq
        length = tf.reduce_sum(features["input_mask"], axis=1)  # [B]
        wanted = tf.cast(tf.round(tf.cast(length, tf.float64) * self.masked_lm_prob), tf.int32)  # Rounds half to even.
        budget = tf.minimum(limit, tf.maximum(1, wanted))  # [B]
        special = (ids == self.vocab[exact.CLS]) | (ids == self.vocab[exact.SEP])
        candidate = (features["input_mask"] > 0) & ~special  # [B, S]
        order = tf.where(candidate, _draw_bits(keys, width, _ORDER), tf.int64.max)
        if self.do_whole_word_mask:
            chosen = self._choose_words(ids, candidate, order, budget)
        else:
            chosen = candidate & (tf.argsort(tf.argsort(order, axis=1, stable=True), axis=1) < budget[:, None])

        position = tf.range(width)[None, :]
        ascending = tf.sort(tf.where(chosen, position, width), axis=1)[:, :limit]  # [B, up to P]
        ascending = tf.pad(ascending, [[0, 0], [0, limit - ascending.shape[1]]], constant_values=width)  # [B, P]
        present = ascending < width
        positions = tf.where(present, ascending, 0)
        labels = tf.where(present, tf.gather(ids, positions, batch_dims=1), 0)

        kind = _draw_uniform(keys, width, _KIND)
        words = tf.constant(list(self.vocab.values()), tf.int32)
        random_ids = tf.gather(words, tf.cast(_draw_uniform(keys, width, _WORD) * len(self.vocab), tf.int32))
        same_or_random = tf.where(kind < self.rates.mask_or_same_probability, ids, random_ids)
        new = tf.where(kind < self.rates.mask_probability, self.vocab[exact.MASK], same_or_random)
        return {
            **features,
            "input_ids": tf.where(chosen, new, ids),
            "masked_lm_positions": positions,
            "masked_lm_ids": labels,
            "masked_lm_weights": tf.cast(present, tf.float32),
        }

    def _choose_words(self, ids: tf.Tensor, candidate: tf.Tensor, order: tf.Tensor, budget: tf.Tensor) -> tf.Tensor:
        """Chooses words in random order, skipping words that exceed the remaining budget.

        Args:
            ids: Token ids [B, S].
            candidate: Which positions may be chosen [B, S] bool.
            order: Random numbers [B, S]. Words are ordered by the number of their first token.
            budget: Maximum number of tokens to choose [B].

        Returns:
            Which positions are chosen [B, S] bool.
        """
        continues = tf.constant(
            sorted(i for token, i in self.vocab.items() if token.startswith(exact.CONTINUATION)), tf.int32
        )
        number = tf.cumsum(tf.cast(candidate, tf.int32), axis=1)
        # The first candidate always starts a word.
        begins = candidate & (~_is_in(ids, continues) | (number == 1))
        word = tf.cumsum(tf.cast(begins, tf.int32), axis=1) - 1  # [B, S]; -1 before the first word.
        width = ids.shape[1]
        pieces = tf.one_hot(tf.where(candidate, word, -1), width, dtype=tf.int32)  # [B, S, words]
        sizes = tf.reduce_sum(pieces, axis=1)  # [B, words]
        # Words are ordered by the random numbers of their first pieces.
        first_pieces = tf.argsort(tf.where(begins, order, tf.int64.max), axis=1)  # [B, S]
        in_order = tf.gather(word, first_pieces, batch_dims=1)
        count = tf.reduce_sum(tf.cast(begins, tf.int32), axis=1)  # [B]

        def take_word(rank: tf.Tensor, taken: tf.Tensor, remaining: tf.Tensor) -> tuple[tf.Tensor, ...]:
            now = tf.maximum(in_order[:, rank], 0)
            size = tf.gather(sizes, now, batch_dims=1)
            fits = (rank < count) & (size <= remaining)
            taken += tf.one_hot(tf.where(fits, now, -1), width, dtype=tf.int32)
            return rank + 1, taken, remaining - tf.where(fits, size, 0)

        longest = tf.reduce_max(count)
        _, taken, _ = tf.while_loop(lambda rank, *_: rank < longest, take_word, (0, tf.zeros_like(sizes), budget))
        return candidate & (tf.gather(taken, tf.maximum(word, 0), batch_dims=1) > 0)


def make_record_keys(seed: int, epoch: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """Returns an int64 seed for the random numbers of each record, [B].

    Args:
        seed: Random seed of the run.
        epoch: Epoch in which each record is read [B] int64.
        number: Id of each record [B] int64.
    """
    key = _mix_bits(tf.bitwise.bitwise_xor(_mix_bits(tf.constant(seed, tf.int64)), epoch))
    return _mix_bits(tf.bitwise.bitwise_xor(key, number))


def _draw_bits(keys: tf.Tensor, width: int, purpose: int) -> tf.Tensor:
    """Draws 63 random bits for each position of each record, int64 [B, width].

    Args:
        keys: Seed of each record [B] int64.
        width: Number of positions.
        purpose: A number from 0 to 3. Different purposes get independent random numbers.
    """
    counters = tf.range(width, dtype=tf.int64) * 4 + purpose
    return _shift_right(_mix_bits(keys[:, None] + counters * _GOLDEN), 1)


def _draw_uniform(keys: tf.Tensor, width: int, purpose: int) -> tf.Tensor:
    """Draws numbers from 0 (inclusive) to 1 (exclusive), in steps of 2 ** -53 [B, width] float64. See `_draw_bits`."""
    return tf.cast(_shift_right(_draw_bits(keys, width, purpose), 10), tf.float64) * 2.0**-53


def _mix_bits(value: tf.Tensor) -> tf.Tensor:
    for bits, factor in ((30, _MIX_1), (27, _MIX_2), (31, 1)):
        value = tf.bitwise.bitwise_xor(value, _shift_right(value, bits)) * factor
    return value


def _shift_right(value: tf.Tensor, bits: int) -> tf.Tensor:
    """Shifts bits to the right and fills with zeros. TensorFlow's shift of signed numbers fills with the sign."""
    shifted = tf.bitwise.right_shift(value, tf.constant(bits, tf.int64))
    return tf.bitwise.bitwise_and(shifted, 2 ** (64 - bits) - 1)


def _is_in(ids: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    """Returns which ids are contained in `wanted`, a sorted vector [...] bool."""
    if not wanted.shape[0]:
        return tf.zeros_like(ids, tf.bool)
    flat = tf.reshape(ids, [-1])
    nearest = tf.minimum(tf.searchsorted(wanted, flat), wanted.shape[0] - 1)
    return tf.reshape(tf.gather(wanted, nearest) == flat, tf.shape(ids))
