"""Masking for masked-LM predictions (paper, section 3.1, task 1).

vectorized_masking.py and official_bert/data/dynamic_masking.py do the same with other random numbers.
tests/data_gen/rules/test_masking_parity.py compares them.
"""

import dataclasses
import functools
import random

import numpy as np

from official_bert.data.masking_rates import BERT_RATES, MaskingRates
from official_bert.tokenization import exact


@dataclasses.dataclass(frozen=True)
class MaskingVocabulary:
    """The ids of a vocabulary that masking needs.

    Attributes:
        words: The candidates for random replacements: all ids, including special tokens, in vocabulary order.
        continuations: The pieces that start with "##".
        unmaskable: The ids of [CLS] and [SEP], which are never masked.
        mask: The id of [MASK].
    """

    words: list[int]
    continuations: frozenset[int]
    unmaskable: frozenset[int]
    mask: int

    @functools.cached_property
    def words_array(self) -> np.ndarray:
        """`words` as an array."""
        return np.array(self.words)

    @functools.cached_property
    def mark(self) -> int:
        """The offset added to the ids of tokens that continue a word (see word_boundaries.get_continuation_mark)."""
        return max(self.words) + 1

    @classmethod
    def of(cls, vocab: dict[str, int]) -> "MaskingVocabulary":
        """Creates it from the ids by token."""
        return cls(
            words=list(vocab.values()),
            continuations=frozenset(i for token, i in vocab.items() if token.startswith(exact.CONTINUATION)),
            unmaskable=frozenset((vocab[exact.CLS], vocab[exact.SEP])),
            mask=vocab[exact.MASK],
        )


def number_to_predict(tokens: int, masked_lm_prob: float, max_predictions_per_seq: int) -> int:
    """Returns the number of predictions for an instance with this many tokens, including [CLS] and [SEP].

    The product is rounded half to even.
    """
    return min(max_predictions_per_seq, max(1, round(tokens * masked_lm_prob)))


def mask(
    ids: list[int],
    budget: int,
    vocabulary: MaskingVocabulary,
    whole_words: bool,
    rng: random.Random,
    rates: MaskingRates = BERT_RATES,
) -> tuple[list[int], list[int], list[int]]:
    """Masks tokens of an instance.

    By default, 80 % of the chosen tokens are replaced by [MASK], 10 % are kept and 10 % are replaced by a random token.
    This is decided for each token, even within a word. With `whole_words`, the pieces of a word are chosen together,
    and a word that would exceed the budget is skipped.

    As in the original, a piece that starts with "##", or is marked as the continuation of a word, belongs to the
    previous word even across [SEP]. This happens if truncation has split a word at the start of the second segment.

    The instance has [CLS] and [SEP], no padding; marks of ids are taken off; the budget is the most tokens to choose;
    the order of the random draws is the original's.

    Returns:
        The ids after masking, the chosen positions in ascending order, and their original ids.
    """
    candidates: list[list[int]] = []
    for position, token in enumerate(ids):
        if token in vocabulary.unmaskable:
            continue
        if whole_words and candidates and (token >= vocabulary.mark or token in vocabulary.continuations):
            candidates[-1].append(position)
        else:
            candidates.append([position])
    rng.shuffle(candidates)

    ids = [token % vocabulary.mark for token in ids]
    masked = list(ids)
    chosen: list[int] = []
    for word in candidates:
        if len(chosen) >= budget:
            break
        if len(chosen) + len(word) > budget:
            continue
        for position in word:
            if rng.random() < rates.mask_probability:
                masked[position] = vocabulary.mask
            elif rng.random() >= rates.same_probability_of_rest:
                masked[position] = vocabulary.words[rng.randint(0, len(vocabulary.words) - 1)]
            chosen.append(position)
    chosen.sort()
    return masked, chosen, [ids[position] for position in chosen]
