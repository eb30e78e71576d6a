"""Masks many instances at once: the algorithm of masking.py on arrays.

tests/data_gen/rules/test_masking_parity.py compares the two.

N instances, L sequence length, P predictions
"""

import numpy as np

from data_gen.rules.instances import InstanceConfig
from data_gen.rules.random_numbers import Random

Masked = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # ids, positions, labels and predictions of Instances.


def mask(ids: np.ndarray, length: np.ndarray, config: InstanceConfig, random: Random) -> Masked:
    """Chooses tokens to predict in many instances, and masks them, like masking.mask.

    Args:
        ids: Token ids, padded with 0 [N, L]. They may contain the marks of word_boundaries.py, which are removed.
        length: Number of tokens of each instance [N].
        config: The settings.
        random: The random generator.

    Returns:
        Ids after masking [N, L], predicted positions [N, P], original ids at these positions [N, P], and numbers of
        predictions [N].
    """
    count, width = ids.shape
    limit = config.max_predictions_per_seq
    budget = np.minimum(limit, np.maximum(1, np.rint(length * config.masked_lm_prob).astype(np.int64)))
    position = np.arange(width)[None, :]
    candidate = (position > 0) & (position < length[:, None] - 1) & (ids != config.sep)
    keys = random.keys(count, width)
    if config.do_whole_word_mask:
        row, column = np.nonzero(_choose_whole_words(ids, candidate, budget, keys, config))
        marked = ids >= config.vocabulary.continuation_offset
        if marked.any():
            ids = ids.copy()
            ids[marked] -= config.vocabulary.continuation_offset
    else:
        keys[~candidate] = np.iinfo(np.int64).max
        # The positions with the `budget` smallest keys of a row are chosen. A partition finds the `limit` smallest
        # keys, and only these are sorted.
        most = min(limit, width)
        smallest = np.argpartition(keys, most - 1, axis=1)[:, :most]
        order = np.argsort(np.take_along_axis(keys, smallest, axis=1), axis=1)
        smallest = np.take_along_axis(smallest, order, axis=1)
        within = (np.arange(most)[None, :] < budget[:, None]) & np.take_along_axis(candidate, smallest, axis=1)
        columns = np.sort(np.where(within, smallest, width).astype(np.int32), axis=1)
        is_chosen = columns < width
        row, column = np.nonzero(is_chosen)[0], columns[is_chosen].astype(np.int64)

    # The chosen positions by instance, ascending.
    predictions = np.bincount(row, minlength=count)
    slot = np.arange(len(row)) - np.repeat(np.cumsum(predictions) - predictions, predictions)
    positions = np.zeros((count, limit), np.int64)
    labels = np.zeros((count, limit), ids.dtype)
    positions[row, slot] = column
    labels[row, slot] = ids[row, column]
    kind = random.uniform(len(row))
    words, rates = np.array(config.vocabulary.words), config.masking_rates
    random_ids = words[random.below(np.full(len(row), len(words)))]
    same_or_random = np.where(kind < rates.mask_or_same_probability, ids[row, column], random_ids)
    new = np.where(kind < rates.mask_probability, config.vocabulary.mask, same_or_random)
    masked_ids = ids.copy()
    masked_ids[row, column] = new
    return masked_ids, positions, labels, predictions


def _choose_whole_words(
    ids: np.ndarray, candidate: np.ndarray, budget: np.ndarray, keys: np.ndarray, config: InstanceConfig
) -> np.ndarray:
    """Chooses words in random order, skipping words that exceed the remaining budget.

    Args:
        ids: Token ids [N, L].
        candidate: Which positions may be chosen [N, L].
        budget: Maximum number of tokens to choose in each instance [N].
        keys: Random sort keys [N, L]. A word has the key of its first token.
        config: The settings.

    Returns:
        Which positions are chosen, [N, L] bool.
    """
    continues = np.arange(2 * config.vocabulary.continuation_offset) >= config.vocabulary.continuation_offset
    continues[list(config.vocabulary.continuations)] = True
    begins = candidate & ~continues[ids]
    # The first candidate always starts a word.
    begins[np.arange(len(ids)), 1] = True
    word = np.where(candidate, np.cumsum(begins, axis=1) - 1, -1)  # [N, L]; -1 outside of words.
    count, width = ids.shape
    flat = (np.arange(count)[:, None] * width + word)[candidate]
    sizes = np.bincount(flat, minlength=count * width).reshape(count, width)
    # A word has the key of its first piece. Columns without a word are sorted to the end.
    word_keys = np.full((count, width), np.iinfo(np.int64).max, np.int64)
    rows, columns = np.nonzero(begins)
    word_keys[rows, word[rows, columns]] = keys[rows, columns]
    order = np.argsort(word_keys, axis=1, kind="stable")
    remaining = budget.copy()
    taken = np.zeros((count, width), bool)
    rows = np.arange(count)
    for rank in range(int(begins.sum(axis=1).max(initial=0))):
        number = order[:, rank]
        size = sizes[rows, number]
        fits = (size > 0) & (size <= remaining)
        taken[rows, number] = fits
        remaining -= np.where(fits, size, 0)
    return candidate & np.take_along_axis(taken, np.maximum(word, 0), axis=1)
