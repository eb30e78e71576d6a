"""Masking for masked-LM predictions (paper, section 3.1, task 1).

vectorized_masking.py and official_bert/data/dynamic_masking.py follow the same rule with other random generators.
tests/data_gen/rules/test_masking_parity.py compares them.
"""

import dataclasses
import functools
import random

from official_bert.data.masking_rates import BERT_RATES, MaskingRates
from official_bert.tokenization import exact


@dataclasses.dataclass(frozen=True)
class MaskingVocabulary:
    """The token ids of a vocabulary that masking needs.

    Attributes:
        words: The candidates for random replacements: all ids, including special tokens, in vocabulary order.
        continuations: The ids of tokens that start with "##".
        unmaskable: The ids of [CLS] and [SEP], which are never masked.
        mask: The id of [MASK].
    """

    words: list[int]
    continuations: frozenset[int]
    unmaskable: frozenset[int]
    mask: int

    @functools.cached_property
    def continuation_offset(self) -> int:
        """The offset that is added to the ids of tokens that continue a word (see word_boundaries)."""
        return max(self.words) + 1

    @classmethod
    def from_vocab(cls, vocab: dict[str, int]) -> "MaskingVocabulary":
        """Creates an instance from a vocabulary: the id of each token."""
        return cls(
            words=list(vocab.values()),
            continuations=frozenset(i for token, i in vocab.items() if token.startswith(exact.CONTINUATION)),
            unmaskable=frozenset((vocab[exact.CLS], vocab[exact.SEP])),
            mask=vocab[exact.MASK],
        )


def number_to_predict(tokens: int, masked_lm_prob: float, max_predictions_per_seq: int) -> int:
    """Returns how many tokens of an instance to predict.

    It is at least 1. The product of `tokens` and `masked_lm_prob` is rounded half to even.

    Args:
        tokens: Number of tokens of the instance, including [CLS] and [SEP].
        masked_lm_prob: Share of the tokens to predict.
        max_predictions_per_seq: Maximum number of predictions.
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
    """Chooses tokens of an instance to predict, and masks them.

    By default, 80 % of the chosen tokens are replaced by [MASK], 10 % are kept and 10 % are replaced by a random token.
    This is decided for each token, even within a word. With `whole_words`, the tokens of a word are chosen together,
    and a word that would exceed the budget is skipped.

    As in the original, a token that starts with "##", or is marked as the continuation of a word, belongs to the
    previous word even across [SEP]. This happens if truncation has split a word at the start of the second segment.
    Random numbers are drawn in the original's order.

    Args:
        ids: Token ids of the instance, including [CLS] and [SEP], without padding. They may contain the marks of
            word_boundaries.py, which are removed.
        budget: Maximum number of tokens to choose.
        vocabulary: The ids of special tokens and so on.
        whole_words: Whether the tokens of a word are chosen together.
        rng: The random generator.
        rates: The rates at which chosen tokens are replaced by [MASK], kept, or replaced by a random token.

    Returns:
        The ids after masking, the chosen positions in ascending order, and the original ids at these positions.
    """
    candidates: list[list[int]] = []
    for position, token in enumerate(ids):
        if token in vocabulary.unmaskable:
            continue
        continues_word = token >= vocabulary.continuation_offset or token in vocabulary.continuations
        if whole_words and candidates and continues_word:
            candidates[-1].append(position)
        else:
            candidates.append([position])
    rng.shuffle(candidates)

    ids = [token % vocabulary.continuation_offset for token in ids]
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
