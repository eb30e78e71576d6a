"""Truncation and windows in Python and in TensorFlow graphs."""

import random

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from official_bert.tokenization import truncation


def find_spans(num_tokens: int, room: int, stride: int) -> list[tuple[int, int]]:
    windows = truncation.build_windows(np.array([num_tokens]), np.array([room]), stride)
    return list(zip(windows.starts.tolist(), (windows.starts + windows.lengths).tolist(), strict=True))


def test_lengths_equal_those_after_removing_single_tokens():
    """The original's `_truncate_seq_pair` removes one token at a time."""
    rng = random.Random(0)
    for _ in range(300):
        num_first, num_second, room = rng.randrange(12), rng.randrange(12), rng.randrange(14)
        first, second = list(range(num_first)), list(range(num_second))
        expected = first[:], second[:]
        while len(expected[0]) + len(expected[1]) > room:
            (expected[0] if len(expected[0]) > len(expected[1]) else expected[1]).pop()
        assert truncation.truncate_pair(first, second, room) == expected
        in_graph = truncation.truncate_lengths(tf.constant([num_first]), tf.constant([num_second]), room, tf)
        assert [int(lengths[0]) for lengths in in_graph] == list(map(len, expected))


def test_random_truncation_takes_the_steps_of_the_original_in_linear_time():
    for seed in range(30):
        rng, sizes = random.Random(seed), random.Random(seed).choices(range(40), k=2)
        (a, b), found = ([list(range(size)) for size in sizes] for _ in range(2))
        while len(a) + len(b) > 20:
            (a if len(a) > len(b) else b).pop(0 if rng.random() < 0.5 else -1)
        truncation.truncate_pair_at_random_ends(found[0], found[1], 20, random.Random(seed))
        assert found == [a, b]
    # With quadratic run time, this list would take an hour.
    long = list(range(3_000_000))
    truncation.truncate_pair_at_random_ends(long, [], 125, random.Random(0))
    assert len(long) == 125


def test_windows_follow_the_stride_and_end_with_the_text():
    found = [find_spans(num_tokens, 6, stride) for num_tokens, stride in ((10, 2), (10, 100), (6, 2), (0, 2))]
    assert found == [[(0, 6), (2, 8), (4, 10)], [(0, 6), (6, 10)], [(0, 6)], [(0, 0)]]


def test_windows_and_the_choice_of_context_are_the_same_in_a_graph():
    rng = np.random.default_rng(0)
    lengths, rooms = rng.integers(0, 30, 50), rng.integers(3, 9, 50)
    # In the last text, the original's numbers of two windows differ only by rounding for token 116.
    for counts, room, stride in ((lengths, rooms, 5), ([30, 17], [8, 8], 3), ([33], [30], 20), ([132], [118], 114)):
        windows = truncation.build_windows(np.array(counts), np.array(room), stride)
        spans = [each for size in zip(counts, room, strict=True) for each in find_spans(*size, stride)]
        assert list(zip(windows.starts, windows.starts + windows.lengths, strict=True)) == spans
        in_graph = truncation.build_windows(tf.constant(counts, tf.int32), tf.constant(room, tf.int32), stride, tf)
        starts, num_tokens = windows.starts + np.cumsum([0, *counts])[windows.texts], int(sum(counts))
        owners = truncation.assign_tokens(starts, windows.lengths, num_tokens)
        owners_in_graph = truncation.assign_tokens(tf.constant(starts, tf.int32), in_graph.lengths, num_tokens, tf)
        for one, other in zip((*windows, owners), (*in_graph, owners_in_graph), strict=True):
            np.testing.assert_array_equal(one, other)
    assert owners[115:118].tolist() == [0, 1, 1]


def test_word_windows_contain_whole_words():
    found = [truncation.build_word_windows([0, 2, 3, 6, 8], 5, stride) for stride in (3, 2, 100)]
    assert found == [[(0, 2), (2, 4)], [(0, 2), (1, 3), (3, 4)], [(0, 2), (2, 4)]]  # words of 2, 1, 3 and 2 tokens
    assert truncation.build_word_windows([0], 5, 3) == [(0, 0)]


@pytest.mark.parametrize(("windows", "owners"), [
    ([(0, 5), (3, 8), (6, 9)], "000011122"),  # the window with the most context
    ([(0, 30), (24, 34)], "0" * 27 + "1" * 7),  # 2 tokens to the right of token 27 in one, 3 to its left in the other
    ([(0, 30), (25, 35)], "0" * 28 + "1" * 7),  # in a tie, the longer window
    ([(0, 5), (2, 9)], "000111111"),
    ([(0, 7), (2, 9)], "000001111"),  # then the earlier one
])  # fmt: skip
def test_tokens_belong_to_the_window_with_the_most_context(windows, owners):
    starts, ends = np.transpose(windows)
    assert "".join(map(str, truncation.assign_tokens(starts, ends - starts, len(owners)))) == owners


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 12))
def test_every_token_belongs_to_a_window_that_contains_it(count, room, stride):
    spans = find_spans(count, room, stride)
    starts, ends = np.transpose(spans)
    for token, window in enumerate(truncation.assign_tokens(starts, ends - starts, count)):
        start, end = spans[window]
        assert start <= token < end
        best = max(min(token - s, e - 1 - token) for s, e in spans if s <= token < e)
        assert min(token - start, end - 1 - token) == best
