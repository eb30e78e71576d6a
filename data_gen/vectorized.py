"""Instances of many documents at once: the laws of instances.py and masking.py on arrays.

The distributions are the same, the random numbers are not: they come from a counter-based generator that is keyed by
seed, pass and block of documents. So a block's instances do not depend on what else is made, when, or by whom.

N instances, L sequence length, P predictions
"""

import dataclasses
import hashlib
from bisect import bisect_left

import numpy as np

from data_gen.instances import Law
from data_gen.token_store import TokenStore


class Random:
    """Random numbers from the raw output of Philox, which is the same in every release of NumPy.

    Args:
        key: whatever tells this stream from others.
    """

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

    def heads(self, tosses: np.ndarray) -> np.ndarray:
        """How many of so many tosses of a coin are heads."""
        heads = np.zeros_like(tosses)
        rest = tosses.copy()
        while rest.any():
            now = np.minimum(rest, 64)
            # Of 64 random bits the upper ones are shifted out, so that `now` are left; a shift by 64 is not defined.
            kept = np.where(now > 0, self.raw(len(rest)) >> np.clip(64 - now, 0, 63).astype(np.uint64), np.uint64(0))
            heads += np.bitwise_count(kept)
            rest -= now
        return heads


@dataclasses.dataclass
class Pairs:
    """Pairs of segments as ranges of the corpus' tokens, [N] each."""

    a_start: np.ndarray
    a_length: np.ndarray
    b_start: np.ndarray
    b_length: np.ndarray
    is_random_next: np.ndarray


@dataclasses.dataclass
class Instances:
    """Masked instances.

    Attributes:
        ids: [N, L] after masking, padded with 0.
        length: [N] tokens that are not padding.
        first_length: [N] tokens of the first segment, with [CLS] and [SEP].
        positions: [N, P] to predict, ascending, padded with 0.
        labels: [N, P] the ids that stood there, padded with 0.
        predictions: [N] how many there are.
        is_random_next: [N].
    """

    ids: np.ndarray
    length: np.ndarray
    first_length: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    predictions: np.ndarray
    is_random_next: np.ndarray


def make_instances(store: TokenStore, first: int, last: int, law: Law, random: Random) -> Instances:
    """Returns the instances of the documents from `first` up to, not including, `last`."""
    documents = store.documents(first, last - first + 1)
    sentences = store.sentences(int(documents[0]), int(documents[-1] - documents[0]) + 1)
    pairs = _truncated(_pairs(store, documents, sentences, first, law, random), law.max_seq_length - 3, random)
    start = int(sentences[0])
    own = store.ids(start, int(sentences[-1]) - start)
    ids, length = _joined(store, own, start, pairs, law)
    if not law.max_predictions_per_seq:
        nothing = np.zeros((len(ids), 0), ids.dtype)
        return Instances(
            ids, length, pairs.a_length + 2, nothing, nothing, np.zeros(len(ids), np.int64), pairs.is_random_next
        )
    return _masked(ids, length, pairs, law, random)


def _pairs(
    store: TokenStore, documents: np.ndarray, sentences: np.ndarray, first: int, law: Law, random: Random
) -> Pairs:
    """Cuts documents into chunks and chunks into pairs: see instances.instances_of_document for the law."""
    max_tokens = law.max_seq_length - 3
    count = len(documents) - 1
    shortened = random.uniform(count) < law.short_seq_prob
    targets = np.where(shortened, 2 + random.below(np.full(count, max_tokens - 1)), max_tokens).tolist()
    # A chunk takes at least one sentence off its document, so that there are no more chunks than sentences.
    draws = iter(random.uniform(2 * len(sentences)).tolist())
    offsets = sentences.tolist()
    bounds = (documents - documents[0]).tolist()
    rows: list[tuple[int, int, int, int, int]] = []
    for number in range(count):
        target = targets[number]
        position, end_of_document = bounds[number], bounds[number + 1]
        while position < end_of_document:
            # As many sentences as fill the target, or all that are left.
            full = bisect_left(offsets, offsets[position] + target, position + 1, end_of_document)
            end = min(full, end_of_document)
            cut = position + 1
            if end - position >= 2:
                cut += int(next(draws) * (end - position - 1))
            is_random = end - position == 1 or next(draws) < 0.5
            rows.append((offsets[position], offsets[cut], offsets[end], target if is_random else 0, first + number))
            position = cut if is_random else end
    a_start, cuts, ends, target_of, owner = np.array(rows, np.int64).reshape(-1, 5).T
    is_random_next = target_of > 0
    pairs = Pairs(a_start, cuts - a_start, cuts.copy(), ends - cuts, is_random_next)
    which = np.flatnonzero(is_random_next)
    _draw_random_segments(store, pairs, which, owner[which], target_of[which], random)
    return pairs


def _draw_random_segments(
    store: TokenStore, pairs: Pairs, which: np.ndarray, owner: np.ndarray, target: np.ndarray, random: Random
) -> None:
    """Fills in b for the instances `which`: from a random sentence of another document, to the target or its end."""
    total = store.num_documents
    others = random.below(np.full(len(which), max(total - 1, 1)))
    others += (others >= owner) & (total > 1)  # any document but the owner, unless there is but one
    place = random.uniform(len(which)).tolist()
    missing = np.maximum(target - pairs.a_length[which], 1).tolist()
    starts, lengths = [], []
    for other, where, wanted in zip(others.tolist(), place, missing, strict=True):
        begin, end = store.documents(other, 2).tolist()
        sentence = begin + int(where * (end - begin))
        offsets = store.sentences(sentence, min(end - sentence, 32) + 1).tolist()
        while offsets[-1] - offsets[0] < wanted and sentence + len(offsets) - 1 < end:
            offsets = store.sentences(sentence, min(end - sentence, 4 * len(offsets)) + 1).tolist()
        stop = bisect_left(offsets, offsets[0] + wanted)
        starts.append(offsets[0])
        lengths.append(offsets[min(stop, len(offsets) - 1)] - offsets[0])
    pairs.b_start[which] = starts
    pairs.b_length[which] = lengths


def _truncated(pairs: Pairs, max_tokens: int, random: Random) -> Pairs:
    """Shortens pairs as text_pairs.truncate_at_random_ends does, all at once.

    One token at a time from the longer, of equal ones from b, leaves lengths that can be told at once: first the longer
    one shrinks to the other's length, then b and a shrink in turn. Each token goes from the front or the back with
    equal chance, so that the number gone from the front is that of heads.
    """
    a, b = pairs.a_length, pairs.b_length
    excess = np.maximum(a + b - max_tokens, 0)
    levelling = np.minimum(excess, np.abs(a - b))
    rest = excess - levelling
    from_a = np.where(a > b, levelling, 0) + rest // 2
    from_b = np.where(b > a, levelling, 0) + rest - rest // 2
    return Pairs(
        pairs.a_start + random.heads(from_a),
        a - from_a,
        pairs.b_start + random.heads(from_b),
        b - from_b,
        pairs.is_random_next,
    )


def _joined(store: TokenStore, own: np.ndarray, start: int, pairs: Pairs, law: Law) -> tuple[np.ndarray, np.ndarray]:
    """Returns [CLS] a [SEP] b [SEP], padded with 0, [N, L], and the lengths, [N]."""
    count = len(pairs.a_length)
    length = pairs.a_length + pairs.b_length + 3
    # The tokens of random segments are read one by one and stand behind the block's own.
    foreign = np.flatnonzero(pairs.is_random_next)
    sizes = pairs.b_length[foreign]
    pieces = [own]
    pieces += [store.ids(*place) for place in zip(pairs.b_start[foreign].tolist(), sizes.tolist(), strict=True)]
    pieces.append(np.array([0, law.cls, law.sep], own.dtype))
    tokens = np.concatenate(pieces)
    b_start = pairs.b_start - start
    b_start[foreign] = len(own) + np.cumsum(sizes) - sizes
    padding, cls, sep = range(len(tokens) - 3, len(tokens))

    place = np.arange(law.max_seq_length)[None, :]
    a_end = pairs.a_length[:, None] + 1
    index = np.where(
        place < a_end, (pairs.a_start - start - 1)[:, None] + place, (b_start[:, None] - a_end - 1) + place
    )
    rows = np.arange(count)
    index[place >= length[:, None]] = padding
    index[:, 0] = cls
    index[rows, pairs.a_length + 1] = sep
    index[rows, length - 1] = sep
    return tokens[index], length


def _masked(ids: np.ndarray, length: np.ndarray, pairs: Pairs, law: Law, random: Random) -> Instances:
    """Hides tokens: see masking.mask for the law."""
    count, width = ids.shape
    limit = law.max_predictions_per_seq
    budget = np.minimum(limit, np.maximum(1, np.rint(length * law.masked_lm_prob).astype(np.int64)))
    place = np.arange(width)[None, :]
    candidate = (place > 0) & (place < length[:, None] - 1) & (place != (pairs.a_length + 1)[:, None])
    keys = random.keys(count, width)
    if law.do_whole_word_mask:
        chosen = _whole_words(ids, candidate, budget, keys, law)
    else:
        keys[~candidate] = np.iinfo(np.int64).max
        # The budget's worth of smallest keys: of the limit's worth, which partition finds, those of low rank.
        some = min(limit, width)
        smallest = np.argpartition(keys, some - 1, axis=1)[:, :some]
        order = np.argsort(np.take_along_axis(keys, smallest, axis=1), axis=1)
        smallest = np.take_along_axis(smallest, order, axis=1)
        within = (np.arange(some)[None, :] < budget[:, None]) & np.take_along_axis(candidate, smallest, axis=1)
        chosen = np.zeros((count, width), bool)
        np.put_along_axis(chosen, smallest, within, axis=1)

    row, column = np.nonzero(chosen)  # by instance, ascending positions
    predictions = np.bincount(row, minlength=count)
    slot = np.arange(len(row)) - np.repeat(np.cumsum(predictions) - predictions, predictions)
    positions = np.zeros((count, limit), np.int64)
    labels = np.zeros((count, limit), ids.dtype)
    positions[row, slot] = column
    labels[row, slot] = ids[row, column]
    kind = random.uniform(len(row))
    words = np.array(law.vocabulary.words)
    anything = words[random.below(np.full(len(row), len(words)))]
    new = np.where(kind < 0.8, law.vocabulary.mask, np.where(kind < 0.9, ids[row, column], anything))
    masked = ids.copy()
    masked[row, column] = new
    return Instances(masked, length, pairs.a_length + 2, positions, labels, predictions, pairs.is_random_next)


def _whole_words(ids: np.ndarray, candidate: np.ndarray, budget: np.ndarray, keys: np.ndarray, law: Law) -> np.ndarray:
    """Returns which positions are chosen, [N, L], word by word in random order, passing over words that do not fit."""
    continues = np.zeros(int(max(law.vocabulary.words)) + 1, bool)
    continues[list(law.vocabulary.continuations)] = True
    begins = candidate & ~continues[ids]
    # The first candidate begins a word whatever it is.
    begins[np.arange(len(ids)), 1] = True
    word = np.where(candidate, np.cumsum(begins, axis=1) - 1, -1)  # [N, L], -1 where no word is
    count, width = ids.shape
    flat = (np.arange(count)[:, None] * width + word)[candidate]
    sizes = np.bincount(flat, minlength=count * width).reshape(count, width)
    # A word's key is that of its first piece; positions without a word come last.
    word_keys = np.full((count, width), np.iinfo(np.int64).max, np.int64)
    rows, columns = np.nonzero(begins)
    word_keys[rows, word[rows, columns]] = keys[rows, columns]
    order = np.argsort(word_keys, axis=1, kind="stable")
    left = budget.copy()
    taken = np.zeros((count, width), bool)
    everyone = np.arange(count)
    for rank in range(int(begins.sum(axis=1).max(initial=0))):
        number = order[:, rank]
        size = sizes[everyone, number]
        fits = (size > 0) & (size <= left)
        taken[everyone, number] = fits
        left -= np.where(fits, size, 0)
    return candidate & np.take_along_axis(taken, np.maximum(word, 0), axis=1)
