"""The three masking implementations (reference, fast, dynamic) have the same distribution."""

import functools
import random

import numpy as np
import pytest
import tensorflow as tf

from data_gen.rules import masking, vectorized_masking
from data_gen.rules.random_numbers import Random
from official_bert.data.dynamic_masking import DynamicMasking, make_record_keys
from official_bert.data.masking_rates import BERT_RATES, MaskingRates
from official_bert.tokenization.exact import SPECIAL_TOKENS
from tests.data_gen.samples import assert_alike, histogram, make_instance_config

WORDS, CONTINUATIONS = 700, 300
TOKENS = [*SPECIAL_TOKENS, *(f"w{n}" for n in range(WORDS)), *(f"##{n}" for n in range(CONTINUATIONS))]
VOCAB = {token: number for number, token in enumerate(TOKENS)}
UNK, CLS, SEP, MASK = (VOCAB[token] for token in ("[UNK]", "[CLS]", "[SEP]", "[MASK]"))
ROWS, LENGTH, LIMIT, PROBABILITY = 6000, 64, 24, 0.3

Masked = tuple[np.ndarray, np.ndarray]  # the masked ids, [N, L], and the chosen positions, [N, L] bool


@functools.cache
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Returns unmasked instances, [N, L], and their lengths, [N]. A segment separator [SEP] is in the middle."""
    rng = np.random.default_rng(0)
    length = rng.integers(LENGTH // 2, LENGTH + 1, ROWS)
    ids = rng.integers(len(SPECIAL_TOKENS), len(VOCAB), (ROWS, LENGTH))
    ids[rng.random(ids.shape) < 0.05] = UNK  # may be predicted too
    ids *= np.arange(LENGTH) < length[:, None]
    ids[:, 0] = CLS
    ids[np.arange(ROWS), length // 2] = ids[np.arange(ROWS), length - 1] = SEP
    return ids, length


def mask_by_reference(ids: np.ndarray, length: np.ndarray, whole_words: bool, rates: MaskingRates) -> Masked:
    rng = random.Random(1)
    vocabulary = masking.MaskingVocabulary.from_vocab(VOCAB)
    masked, chosen = ids.copy(), np.zeros(ids.shape, bool)
    for row, count in enumerate(length.tolist()):
        budget = masking.number_to_predict(count, PROBABILITY, LIMIT)
        new, positions, _ = masking.mask(ids[row, :count].tolist(), budget, vocabulary, whole_words, rng, rates)
        masked[row, :count] = new
        chosen[row, positions] = True
    return masked, chosen


def fast(ids: np.ndarray, length: np.ndarray, whole_words: bool, rates: MaskingRates) -> Masked:
    sizes = {"max_seq_length": LENGTH, "max_predictions_per_seq": LIMIT, "masked_lm_prob": PROBABILITY}
    settings = {"do_whole_word_mask": whole_words, "masking_rates": rates, "cls": CLS, "sep": SEP}
    vocabulary = masking.MaskingVocabulary.from_vocab(VOCAB)
    config = make_instance_config(**sizes, **settings, vocabulary=vocabulary)
    masked, positions, _, predictions = vectorized_masking.mask(ids, length, config, Random("parity"))
    return masked, spread(positions, np.arange(LIMIT)[None, :] < predictions[:, None])


def spread(positions: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Returns which positions of each row [N, L] are among its used predictions [N, P]."""
    row, slot = np.nonzero(used)
    chosen = np.zeros((len(positions), LENGTH), bool)
    chosen[row, positions[row, slot]] = True
    return chosen


def while_training(ids: np.ndarray, length: np.ndarray, whole_words: bool, rates: MaskingRates) -> Masked:
    keys = make_record_keys(3, tf.zeros(len(ids), tf.int64), tf.range(len(ids), dtype=tf.int64))
    features = {"input_ids": tf.constant(ids, tf.int32), "input_mask": tf.sequence_mask(length, LENGTH, tf.int32)}
    batch = DynamicMasking(VOCAB, LIMIT, PROBABILITY, whole_words, rates).mask(features, keys)
    return batch["input_ids"].numpy(), spread(batch["masked_lm_positions"].numpy(), batch["masked_lm_weights"].numpy())


IMPLEMENTATIONS = [mask_by_reference, fast, while_training]


@pytest.mark.parametrize("whole_words", [False, True])
def test_three_implementations_have_the_same_distribution(whole_words):
    ids, length = rows()
    histograms = []
    for implementation in IMPLEMENTATIONS:
        masked, chosen = implementation(ids, length, whole_words, BERT_RATES)
        is_random = chosen & (masked != ids) & (masked != MASK)
        continues = chosen & (ids >= len(VOCAB) - CONTINUATIONS)
        histograms.append({
            "predictions": histogram(chosen.sum(axis=1), LIMIT),
            "positions": histogram(np.nonzero(chosen)[1], LENGTH),
            "pieces within words": histogram(continues.sum(axis=1), LIMIT),
            "predicted tokens": histogram(ids[chosen], len(VOCAB)),
            "random tokens": histogram(masked[is_random], len(VOCAB)),
        })  # fmt: skip
    for other in histograms[1:]:
        for what, counts in histograms[0].items():
            assert_alike(counts, other[what], what)


def test_a_word_that_continues_after_a_separator_is_masked_as_a_whole():
    """The original skips [SEP] when it looks for the start of a word."""
    ids = np.zeros((100, LENGTH), int)
    ids[:, :7] = [VOCAB[token] for token in "[CLS] w1 [SEP] ##1 w2 w3 [SEP]".split()]
    for implementation in IMPLEMENTATIONS:
        _, chosen = implementation(ids, np.full(len(ids), 7), True, BERT_RATES)
        assert chosen[:, 1].any()
        np.testing.assert_array_equal(chosen[:, 1], chosen[:, 3], implementation.__name__)


# The default and the rates of appendix C.2: [MASK], same, random.
@pytest.mark.parametrize("rates", [str(BERT_RATES), "100/0/0", "80/0/20", "80/20/0", "0/20/80", "0/0/100"])
def test_all_three_implementations_respect_the_masking_rates(rates):
    assert str(BERT_RATES) == "80/10/10"
    wanted = MaskingRates.parse(rates)
    # The default is tested with enough rows to distinguish 80 % from 81 %.
    ids, length = (values[: ROWS if wanted == BERT_RATES else 1500] for values in rows())
    counts = [masking.number_to_predict(each, PROBABILITY, LIMIT) for each in length.tolist()]
    by_chance = wanted.random / len(VOCAB)  # A random replacement is sometimes [MASK] or the original token.
    expected = np.array([wanted.mask + by_chance, wanted.same + by_chance, wanted.random - 2 * by_chance])
    for implementation in IMPLEMENTATIONS:
        masked, chosen = implementation(ids, length, False, wanted)
        np.testing.assert_array_equal(chosen.sum(axis=1), counts)
        np.testing.assert_array_equal(masked[~chosen], ids[~chosen])
        is_mask, is_same = masked[chosen] == MASK, masked[chosen] == ids[chosen]
        became = np.array([is_mask.sum(), is_same.sum(), (~is_mask & ~is_same).sum()])
        assert not became[expected == 0].any()
        assert_alike(became, expected * 10_000, implementation.__name__)
        if wanted.random == 100:
            assert set(masked[chosen].tolist()) == set(VOCAB.values()), "every token is drawn"


@pytest.mark.parametrize("limit", [4, 20])  # below and above the length of the record
@pytest.mark.parametrize("whole_words", [False, True])
def test_the_shortest_record_has_one_prediction_while_training(whole_words, limit):
    ids = tf.constant([[CLS, VOCAB["w1"], SEP, VOCAB["w2"], SEP, 0, 0, 0]])
    features = {"input_ids": ids, "input_mask": tf.cast(ids > 0, tf.int32)}
    keys = make_record_keys(3, tf.zeros([1], tf.int64), tf.zeros([1], tf.int64))
    whole_word_pieces = {token: number for token, number in VOCAB.items() if not token.startswith("##")}
    for vocab in (VOCAB, whole_word_pieces):
        batch = DynamicMasking(vocab, limit, 0.05, whole_words).mask(features, keys)
        assert batch["masked_lm_positions"].shape == (1, limit)
        assert batch["masked_lm_weights"].numpy().tolist() == [[1] + [0] * (limit - 1)]
        assert int(batch["masked_lm_ids"][0, 0]) in (VOCAB["w1"], VOCAB["w2"])
