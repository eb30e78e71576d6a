"""Making the instances of many documents in one vectorized call."""

import dataclasses
import math
import pathlib
import random

import numpy as np

from data_gen.rules import vectorized_instances
from data_gen.rules.masking import MaskingVocabulary
from data_gen.rules.random_numbers import Random
from official_bert.tokenization import truncation
from tests.data_gen.distributions import assert_alike
from tests.data_gen.samples import make_instance_config, make_store


def test_vectorized_truncation_equals_truncation_by_single_tokens():
    rng = random.Random(0)
    sizes = [(rng.randint(1, 40), rng.randint(1, 40)) for _ in range(500)]
    a, b = (np.array(column) for column in zip(*sizes, strict=True))
    zeros = np.zeros(len(a), np.int64)
    vectorized_pairs = vectorized_instances.Pairs(zeros, a, zeros, b, zeros > 0)
    cut = vectorized_instances._truncate_pairs(vectorized_pairs, 29, Random(1))
    for row, (long, short) in enumerate(sizes):
        first, second = list(range(long)), list(range(short))
        truncation.truncate_pair_at_random_ends(first, second, 29, rng)
        assert (cut.a_length[row], cut.b_length[row]) == (len(first), len(second))
        assert 0 <= cut.a_start[row] <= long - len(first)
        assert 0 <= cut.b_start[row] <= short - len(second)


def test_actual_next_segments_follow_and_random_ones_come_from_other_documents(tmp_path: pathlib.Path):
    # The tokens of each document count up from a number of its own, so that a token identifies its position.
    rng = random.Random(3)
    documents = []
    for number in range(30):
        start = 10 + 100 * number
        tokens = list(range(start, start + rng.randint(1, 90)))
        cuts = sorted(rng.sample(range(1, len(tokens)), min(len(tokens) - 1, rng.randint(0, 8))))
        bounds = zip([0, *cuts], [*cuts, len(tokens)], strict=True)
        documents.append([tokens[first:last] for first, last in bounds])
    store = make_store(documents, tmp_path, "<u2")
    vocabulary = MaskingVocabulary(list(range(5000)), frozenset(), frozenset((2, 3)), 4)
    settings = {"max_predictions_per_seq": 1, "masked_lm_prob": 0.01, "short_seq_prob": 0.1}
    config = make_instance_config(max_seq_length=24, vocabulary=vocabulary, **settings)
    kinds = set()
    for block in store.blocks(200):
        made = vectorized_instances.make_instances(store, *block, config, Random(block))
        for row, length in enumerate(made.length):
            ids = made.ids[row].astype(int)
            ids[made.positions[row, 0]] = made.labels[row, 0]
            a = ids[1 : made.first_length[row] - 1]
            b = ids[made.first_length[row] : length - 1]
            assert (np.diff(a) == 1).all()
            assert (np.diff(b) == 1).all()
            same = (a[0] - 10) // 100 == (b[0] - 10) // 100
            assert same != made.is_random_next[row]
            if same:
                assert b[0] > a[-1]
            kinds.add(bool(same))
    assert kinds == {True, False}


def test_chunks_are_split_and_paired_like_the_reference(tmp_path: pathlib.Path):
    # Each sentence is one token that identifies document and sentence. Chunks have up to four of them.
    documents, sentences = 6000, 8
    words = [[[10 + sentences * number + each] for each in range(sentences)] for number in range(documents)]
    vocabulary = MaskingVocabulary([], frozenset(), frozenset(), 4)
    config = make_instance_config(max_seq_length=7, max_predictions_per_seq=0, vocabulary=vocabulary)
    store = make_store(words, tmp_path)
    instances = vectorized_instances.make_instances(store, 0, documents, config, Random("chunks"))
    used: list[int] = []
    decisions: list[bool] = []
    cuts: list[int] = []
    begins_of_random: list[int] = []
    for ids, length, first, is_random in zip(
        instances.ids.tolist(), instances.length, instances.first_length, instances.is_random_next, strict=True
    ):
        a, b = ids[1 : first - 1], ids[first : length - 1]
        left = sentences - (a[0] - 10) % sentences
        if left > 1:
            decisions.append(bool(is_random))
        if left >= 4:
            cuts.append(len(a))
        if is_random:
            begins_of_random.append((b[0] - 10) % sentences)
        used += a + ([] if is_random else b)
    # Each sentence is used once, in order: if b is random, the text after a is used again.
    assert used == list(range(10, 10 + documents * sentences))
    assert len(decisions) > 15_000
    assert abs(np.mean(decisions) - 0.5) < 5 * 0.5 / math.sqrt(len(decisions))
    assert 5 * 0.5 / math.sqrt(len(decisions)) < 0.021
    assert_alike(np.bincount(cuts, minlength=4)[1:], np.full(3, 100_000), "cuts")
    assert_alike(np.bincount(begins_of_random, minlength=sentences), np.full(sentences, 100_000), "random sentences")
    # The target of a short document ranges from two tokens to the full length. It is the length of its first chunk if b
    # is the rest.
    config = dataclasses.replace(config, short_seq_prob=1.0)
    instances = vectorized_instances.make_instances(store, 0, documents, config, Random("targets"))
    whole = (instances.ids[:, 1] % sentences == 10 % sentences) & ~instances.is_random_next
    assert_alike(np.bincount(instances.length[whole] - 3, minlength=5)[2:], np.full(3, 100_000), "targets")
    # With short_seq_prob=0.9, a third of the short documents still have the full length.
    config = dataclasses.replace(config, short_seq_prob=0.9)
    instances = vectorized_instances.make_instances(store, 0, documents, config, Random("short"))
    whole = (instances.ids[:, 1] % sentences == 10 % sentences) & ~instances.is_random_next
    short = instances.length[whole] < 7
    assert abs(np.mean(short) - 0.6) < 5 * 0.49 / math.sqrt(len(short)) < 0.05
