from hypothesis import given
from hypothesis import strategies as st

from official_bert.kinds import windows


def test_windows_follow_the_stride_and_end_with_the_text():
    assert windows.starts(10, 6, 2) == [0, 2, 4]
    assert windows.starts(10, 6, 100) == [0, 6]
    assert windows.starts(6, 6, 2) == [0]
    assert windows.starts(0, 6, 2) == [0]


def test_a_token_belongs_to_the_window_that_sees_most_around_it():
    # The paper's repository explains it by windows such as these.
    assert windows.with_most_context([(0, 5), (3, 8), (6, 9)], 9).tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2]


def test_a_longer_window_outweighs_less_context_only_by_a_hundredth_for_each_token():
    # Token 27 has 2 tokens to its right in the first window, of 30 tokens, and 3 to its left in the second, of 10.
    assert windows.with_most_context([(0, 30), (24, 34)], 34)[27] == 1
    # Of equal contexts the longer window's counts: 2 tokens on one side in both.
    assert windows.with_most_context([(0, 30), (25, 35)], 35)[27] == 0


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 12))
def test_every_token_belongs_to_a_window_that_holds_it(count: int, room: int, stride: int):
    spans = [(start, min(start + room, count)) for start in windows.starts(count, room, stride)]
    for token, owner in enumerate(windows.with_most_context(spans, count)):
        start, end = spans[owner]
        assert start <= token < end
        best = max(min(token - s, e - 1 - token) for s, e in spans if s <= token < e)
        assert min(token - start, end - 1 - token) == best


def test_of_equal_contexts_the_longer_window_s_counts():
    # Token 3 has one token to its nearer side in both windows; the second one is longer.
    assert windows.with_most_context([(0, 5), (2, 9)], 9).tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 1]
    # Of equally long ones it is the first: token 4 has two to its nearer side in both.
    assert windows.with_most_context([(0, 7), (2, 9)], 9).tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1]
