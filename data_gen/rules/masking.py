"""Masked-LM predictions: which tokens are masked, and what replaces them (paper, section 3.1, task 1).

vectorized_masking.py and official_bert/data/dynamic_masking.py do the same with random numbers of their own;
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
    """The ids of a vocabulary that masking needs."""

    words: list[int]  # random replacements are drawn from these, in the vocabulary's order: all, the special ones too
    continuations: frozenset[int]  # pieces within a word ("##")
    unmaskable: frozenset[int]  # never masked: [CLS] and [SEP]
    mask: int  # [MASK]

    @functools.cached_property
    def words_array(self) -> np.ndarray:
        """The same ids as `words`."""
        return np.array(self.words)

    @functools.cached_property
    def mark(self) -> int:
        """The offset added to the ids of tokens that continue a word (see word_boundaries.get_continuation_mark)."""
        return max(self.words) + 1

    @classmethod
    def of(cls, vocab: dict[str, int]) -> "MaskingVocabulary":
        """Builds it from token -> id."""
        return cls(
            words=list(vocab.values()),
            continuations=frozenset(i for token, i in vocab.items() if token.startswith(exact.CONTINUATION)),
            unmaskable=frozenset((vocab[exact.CLS], vocab[exact.SEP])),
            mask=vocab[exact.MASK],
        )


def number_to_predict(tokens: int, masked_lm_prob: float, max_predictions_per_seq: int) -> int:
    """Returns how many of an instance's tokens ([CLS] and [SEP] included, padding not) are to be predicted.

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

    Of the chosen tokens 80 % become [MASK], 10 % stay, 10 % become a random token, unless `rates` says otherwise. This
    is decided for each token, also within a whole word. With `whole_words` the pieces of a word are chosen together or
    not at all, and a word that would exceed the budget is skipped.

    A quirk of the original is kept. A piece that begins with "##", or is marked as going on with the word before, joins
    that word, even across [SEP]. That happens where truncation has cut the second segment within a word.

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
