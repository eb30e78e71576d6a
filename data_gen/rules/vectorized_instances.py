"""Makes the instances of many documents at once: the algorithm of instances.py on arrays.

The distributions are the same, but the random numbers come from a counter-based generator whose key consists of the
seed, the pass and the block of documents. So the instances of a block do not depend on other blocks or on the process.
tests/data_gen/pipelines/test_fast.py compares the distributions with the reference's.

N instances, L sequence length, P predictions
"""

import dataclasses
from bisect import bisect_left, bisect_right

import numpy as np

from data_gen.rules.instances import InstanceConfig
from data_gen.rules.random_numbers import Random
from data_gen.rules.vectorized_masking import mask
from data_gen.text.token_store import TokenStore
from official_bert.data.sentence_objectives import NONE


@dataclasses.dataclass
class Pairs:
    """Pairs of segments a and b. Each segment is a range of tokens of the corpus: start and length [N]."""

    a_start: np.ndarray
    a_length: np.ndarray
    b_start: np.ndarray
    b_length: np.ndarray
    is_random_next: np.ndarray


@dataclasses.dataclass
class Instances:
    """Instances after masking, as arrays that are padded with 0.

    Attributes:
        ids: Token ids after masking [N, L].
        positions: Predicted positions, ascending [N, P].
        labels: Original ids at these positions [N, P].
        predictions: Number of predictions [N].
        length: Number of tokens without padding [N].
        first_length: Number of tokens of the first segment, including [CLS] and [SEP] [N].
        special: Number of [CLS] and [SEP] tokens [N].
        is_random_next: Whether the second segment comes from a random document [N].
    """

    ids: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    predictions: np.ndarray
    length: np.ndarray
    first_length: np.ndarray
    special: np.ndarray
    is_random_next: np.ndarray


def make_instances(store: TokenStore, first: int, last: int, config: InstanceConfig, random: Random) -> Instances:
    """Makes the instances of a range of documents.

    Args:
        store: The corpus.
        first: Index of the first document.
        last: Index after the last document.
        config: The settings.
        random: The random generator.
    """
    if config.sentence_objective == NONE:
        ids, length, special = _make_full_sentences(store, first, last, config, random)
        first_length, label = length, np.zeros(len(length), bool)
    else:
        pairs = _truncate_pairs(_make_pairs(store, first, last, config, random), config.max_seq_length - 3, random)
        ids, length = _join_pairs(store, pairs, config)
        first_length, label, special = pairs.a_length + 2, pairs.is_random_next, np.full(len(length), 3)
    none = np.zeros((len(ids), 0), ids.dtype)
    masked = ids, none, none, np.zeros(len(ids), np.int64)
    if config.max_predictions_per_seq:
        masked = mask(ids, length, config, random)
    return Instances(*masked, length, first_length, special, label)


def _make_pairs(store: TokenStore, first: int, last: int, config: InstanceConfig, random: Random) -> Pairs:
    """Splits a range of documents into chunks and each chunk into a pair, like instances.make_document_instances.

    The arguments are the same as for `make_instances`.
    """
    documents = store.documents[first : last + 1]
    sentences = store.sentences[documents[0] : documents[-1] + 1]
    targets = _draw_targets(len(documents) - 1, config.max_seq_length - 3, config, random)
    # Each chunk consumes at least one sentence, so the number of chunks is at most the number of sentences.
    draws = iter(random.uniform(2 * len(sentences)).tolist())
    offsets = sentences.tolist()
    bounds = (documents - documents[0]).tolist()
    rows: list[tuple[int, int, int, int, int]] = []
    for number, target in enumerate(targets):
        position, end_of_document = bounds[number], bounds[number + 1]
        while position < end_of_document:
            # Enough sentences to reach the target, or all remaining ones.
            end = bisect_left(offsets, offsets[position] + target, position + 1, end_of_document)
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


def _draw_targets(count: int, max_tokens: int, config: InstanceConfig, random: Random) -> list[int]:
    """Draws the numbers of tokens to aim for, `count` in total, like instances._draw_target."""
    shortened = random.uniform(count) < config.short_seq_prob
    return list(np.where(shortened, 2 + random.below(np.full(count, max_tokens - 1)), max_tokens).tolist())


def _make_full_sentences(
    store: TokenStore, first: int, last: int, config: InstanceConfig, random: Random
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Splits a range of documents into instances [CLS] text [SEP], like instances.make_full_sentences.

    The arguments are the same as for `make_instances`.

    Returns:
        Token ids padded with 0 [N, L], numbers of tokens [N], and numbers of [CLS] and [SEP] tokens [N].
    """
    documents = store.documents[first : last + 1]
    sentences = store.sentences[documents[0] : documents[-1] + 1]
    max_tokens = config.max_seq_length - 2
    count = len(sentences) - 1
    targets = iter(_draw_targets(count, max_tokens, config, random))
    # Start and end of each sentence, with a [SEP] before each document. The length of a chunk is a difference.
    number_of_document = np.repeat(np.arange(len(documents) - 1), np.diff(documents))
    begins = (sentences[:-1] + number_of_document).tolist()
    ends = (sentences[1:] + number_of_document).tolist()
    chunks: list[tuple[int, int]] = []
    position = 0
    while position < count:
        end = bisect_right(ends, begins[position] + next(targets), position + 1)
        chunks.append((position, end))
        position = end
    bounds = np.array(chunks, np.int64)  # [N, 2], of sentences
    start, tokens = sentences[bounds[:, 0]], np.diff(sentences[bounds], axis=1)[:, 0]
    separators = np.diff(number_of_document[bounds - [0, 1]], axis=1)[:, 0]
    excess = np.maximum(tokens + separators - max_tokens, 0)  # Only a single sentence can exceed the limit.
    start = start + random.fair_binomial(excess)
    length = tokens + separators - excess + 2

    # Separators precede the first sentence of each document, unless it is the first sentence of a chunk.
    position_in_row = np.arange(config.max_seq_length)[None, :]
    is_separator = np.zeros((len(bounds), config.max_seq_length), bool)
    begin_of_document = documents[1:-1] - documents[0]  # Index of the first sentence.
    row = np.searchsorted(bounds[:, 0], begin_of_document, side="right") - 1
    within = begin_of_document > bounds[row, 0]
    begin_of_document, row = begin_of_document[within], row[within]
    before = number_of_document[begin_of_document] - 1 - number_of_document[bounds[row, 0]]
    is_separator[row, 1 + sentences[begin_of_document] - start[row] + before] = True
    index = start[:, None] - 1 + position_in_row - np.cumsum(is_separator, axis=1)
    padding = position_in_row >= length[:, None]
    index[padding] = index[:, 0] = index[np.arange(len(length)), length - 1] = 0
    ids = store.ids[index]
    ids[padding] = 0
    ids[:, 0] = config.cls
    ids[is_separator] = ids[np.arange(len(length)), length - 1] = config.sep
    return ids, length, separators + 2


def _draw_random_segments(
    store: TokenStore, pairs: Pairs, which: np.ndarray, owner: np.ndarray, target: np.ndarray, random: Random
) -> None:
    """Sets segment b of some pairs to text from another document, starting at a random sentence.

    Args:
        store: The corpus.
        pairs: The pairs, which are changed in place.
        which: Indices of the pairs to change.
        owner: Index of the document of each of these pairs.
        target: Number of tokens of a and b to aim for in each of these pairs.
        random: The random generator.
    """
    total = store.num_documents
    others = random.below(np.full(len(which), max(total - 1, 1)))
    others += (others >= owner) & (total > 1)  # Any other document, unless there is only one.
    begin, end = store.documents[others], store.documents[others + 1]
    sentence = begin + (random.uniform(len(which)) * (end - begin)).astype(np.int64)
    start = store.sentences[sentence]
    missing = np.maximum(target - pairs.a_length[which], 1)
    # The first sentence that starts at or after the target, or the end of the document.
    stop = np.minimum(np.searchsorted(store.sentences, start + missing), end)
    pairs.b_start[which] = start
    pairs.b_length[which] = store.sentences[stop] - start


def _truncate_pairs(pairs: Pairs, max_tokens: int, random: Random) -> Pairs:
    """Truncates pairs to `max_tokens` tokens like truncation.truncate_pair_at_random_ends, without a loop over tokens.

    That function removes one token at a time from the longer segment, or from b if both are equally long. So the longer
    segment first shrinks to the length of the shorter one, and then b and a lose tokens in turn. This determines the
    final lengths. Each token is removed from the front or from the back with probability 1/2, so the number of tokens
    removed from the front has a binomial distribution.
    """
    a, b = pairs.a_length, pairs.b_length
    excess = np.maximum(a + b - max_tokens, 0)
    levelling = np.minimum(excess, np.abs(a - b))
    rest = excess - levelling
    from_a = np.where(a > b, levelling, 0) + rest // 2
    from_b = np.where(b > a, levelling, 0) + rest - rest // 2
    a_start = pairs.a_start + random.fair_binomial(from_a)
    return Pairs(a_start, a - from_a, pairs.b_start + random.fair_binomial(from_b), b - from_b, pairs.is_random_next)


def _join_pairs(store: TokenStore, pairs: Pairs, config: InstanceConfig) -> tuple[np.ndarray, np.ndarray]:
    """Returns token ids of [CLS] a [SEP] b [SEP], padded with 0 [N, L], and the numbers of tokens [N]."""
    length = pairs.a_length + pairs.b_length + 3
    width = config.max_seq_length
    position = np.arange(width, dtype=np.int32)[None, :]
    # Ranges of the corpus that contain a and b at their positions in the row. Other positions are replaced afterwards.
    a = _read_ranges(store, pairs.a_start - 1, width)
    b = _read_ranges(store, pairs.b_start - pairs.a_length - 2, width)
    ids = np.where(position <= pairs.a_length.astype(np.int32)[:, None], a, b)
    ids *= position < length.astype(np.int32)[:, None]
    rows = np.arange(len(length))
    ids[:, 0] = config.cls
    ids[rows, pairs.a_length + 1] = ids[rows, length - 1] = config.sep
    return ids, length


def _read_ranges(store: TokenStore, starts: np.ndarray, width: int) -> np.ndarray:
    """Reads ranges of `width` tokens of the corpus [N, width]. Values at positions outside of the corpus are undefined.

    Args:
        store: The corpus.
        starts: Index of the first token of each range, which may be negative [N].
        width: Number of tokens of each range.
    """
    last = len(store.ids) - width
    inside = (starts >= 0) & (starts <= last)
    if inside.all() and len(starts):
        return np.asarray(np.lib.stride_tricks.sliding_window_view(store.ids, width)[starts])
    ranges = np.empty((len(starts), width), store.ids.dtype)
    if inside.any():
        ranges[inside] = np.lib.stride_tricks.sliding_window_view(store.ids, width)[starts[inside]]
    outside = starts[~inside, None] + np.arange(width)
    ranges[~inside] = store.ids.take(outside, mode="clip")
    return ranges
