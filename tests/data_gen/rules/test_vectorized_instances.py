"""Making and masking many instances in one vectorized call, with random numbers that are the same on every machine."""

import dataclasses
import math
import random

import numpy as np
import pytest

from data_gen.rules import vectorized_instances
from data_gen.rules.masking import MaskingVocabulary, number_to_predict
from data_gen.rules.random_numbers import Random
from official_bert.tokenization import truncation
from tests.data_gen.samples import assert_alike, make_instance_config, make_store


def test_vectorized_truncation_equals_truncation_by_single_tokens():
    rng = random.Random(0)
    a, b = np.array([(rng.randint(1, 40), rng.randint(1, 40)) for _ in range(500)]).T
    zeros = np.zeros(len(a), np.int64)
    pairs = vectorized_instances._truncate_pairs(
        vectorized_instances.Pairs(zeros, a, zeros, b, zeros > 0), 29, Random(1)
    )
    for row, (long, short) in enumerate(zip(a, b, strict=True)):
        first, second = list(range(long)), list(range(short))
        truncation.truncate_pair_at_random_ends(first, second, 29, rng)
        assert (pairs.a_length[row], pairs.b_length[row]) == (len(first), len(second))
        assert 0 <= pairs.a_start[row] <= long - len(first)
        assert 0 <= pairs.b_start[row] <= short - len(second)
    for start, removed in ((pairs.a_start, a - pairs.a_length), (pairs.b_start, b - pairs.b_length)):
        assert 0.45 < start.sum() / removed.sum() < 0.55  # from either end


def test_chunks_are_split_and_paired_like_the_reference(tmp_path):
    # Each sentence is one token that identifies document and sentence. Chunks have up to four of them.
    documents, sentences = 6000, 8
    words = [[[10 + sentences * number + each] for each in range(sentences)] for number in range(documents)]
    vocabulary = MaskingVocabulary([], frozenset(), frozenset(), 4)
    config = make_instance_config(max_seq_length=7, max_predictions_per_seq=0, vocabulary=vocabulary)
    store = make_store(words, tmp_path)
    instances = vectorized_instances.make_instances(store, 0, documents, config, Random("chunks"))
    used, decisions, cuts, begins_of_random = [], [], [], []
    columns = instances.ids.tolist(), instances.length, instances.first_length, instances.is_random_next
    for ids, length, first, is_random in zip(*columns, strict=True):
        a, b = ids[1 : first - 1], ids[first : length - 1]
        (document, begin), (other, begin_of_b) = divmod(a[0] - 10, sentences), divmod(b[0] - 10, sentences)
        assert is_random == (document != other)
        assert {(token - 10) // sentences for token in b} == {other}
        if begin < sentences - 1:
            decisions.append(is_random)
        if begin <= sentences - 4:
            cuts.append(len(a))
        if is_random:
            begins_of_random.append(begin_of_b)
        used += a + ([] if is_random else b)
    # Each sentence is used once, in order: if b is random, the text after a is used again.
    assert used == list(range(10, 10 + documents * sentences))
    assert abs(np.mean(decisions) - 0.5) < 5 * 0.5 / math.sqrt(len(decisions)) < 0.021
    assert_alike(np.bincount(cuts, minlength=4)[1:], np.full(3, 100_000), "cuts")
    assert_alike(np.bincount(begins_of_random, minlength=sentences), np.full(sentences, 100_000), "random sentences")
    # The target of a short document ranges from two tokens to the full length. It is the length of its first chunk if b
    # is the rest. With short_seq_prob=0.9, a third of the short documents still have the full length.
    lengths = []
    for short_seq_prob in (1.0, 0.9):
        config = dataclasses.replace(config, short_seq_prob=short_seq_prob)
        instances = vectorized_instances.make_instances(store, 0, documents, config, Random("targets", short_seq_prob))
        whole = (instances.ids[:, 1] % sentences == 10 % sentences) & ~instances.is_random_next
        lengths.append(instances.length[whole])
    assert_alike(np.bincount(lengths[0] - 3, minlength=5)[2:], np.full(3, 100_000), "targets")
    assert abs(np.mean(lengths[1] < 7) - 0.6) < 5 * 0.49 / math.sqrt(len(lengths[1])) < 0.05


# Of records of 16 positions.
@pytest.mark.parametrize(("limit", "probability"), [(1, 0.5), (30, 0.01), (30, 0.5), (30, 0.99)])
def test_the_number_of_predictions_respects_the_limit_and_the_text(limit, probability, tmp_path):
    vocabulary = MaskingVocabulary(list(range(100)), frozenset(), frozenset((2, 3)), 4)
    config = make_instance_config(max_predictions_per_seq=limit, masked_lm_prob=probability, vocabulary=vocabulary)
    store = make_store([[[10, 11, 12, 15], [13, 14, 16]]] * 3, tmp_path)
    instances = vectorized_instances.make_instances(store, 0, 3, config, Random("limit"))
    expected = [min(length - 3, number_to_predict(length, probability, limit)) for length in instances.length.tolist()]
    assert instances.predictions.tolist() == expected
    assert instances.labels.shape == (len(expected), limit)
    assert not {config.cls, config.sep} & set(instances.labels.ravel().tolist())


@pytest.mark.parametrize("trials", [0, 1, 63, 64, 65, 1000])
def test_fair_binomial_numbers_have_the_mean_and_variance_of_a_fair_coin(trials):
    successes = Random("coin", trials).fair_binomial(np.full(20_000, trials))
    assert 0 <= successes.min() <= successes.max() <= trials
    assert successes.mean() == pytest.approx(trials / 2, abs=4 * math.sqrt(trials / 4 / 20_000))
    assert successes.var() == pytest.approx(trials / 4, rel=0.05)


def test_random_numbers_are_the_same_in_every_release():
    random_numbers = Random(12345, 0, 1)
    assert list(map(hex, random_numbers.raw(2).tolist())) == ["0x9d8357d88b653557", "0x934968f139a90ee"]
    assert 0 <= random_numbers.uniform(1000).min() <= random_numbers.uniform(1000).max() < 1
    random_numbers.raw = lambda *shape: np.full(shape, 2**64 - 1, np.uint64)
    assert random_numbers.uniform(1) < 1
    assert set(Random("die").below(np.full(1000, 6)).tolist()) == set(range(6))
    keys = Random("keys").keys(3, 1000)
    np.testing.assert_array_equal(keys & 0xFFFF, np.tile(np.arange(1000), (3, 1)), "equal bits are sorted by column")
