"""The comparison with stored values tolerates rounding and nothing else."""

import copy
from typing import Any

import pytest

from tests.golden.comparison import assert_alike

VALUE: dict[str, Any] = {"loss": [2.0, 0.001], "rows": [{"label": "a", "score": 0.5, "start": 3}], "empty": []}


def changed(change: Any) -> dict[str, Any]:
    value = copy.deepcopy(VALUE)
    change(value)
    return value


def test_fractions_may_differ_by_a_share_of_the_largest_of_their_group():
    assert_alike(changed(lambda value: value["loss"].__setitem__(1, 0.0029)), VALUE)
    with pytest.raises(AssertionError, match=r"/loss/1 is 0.0031; expected 0.001 \+- 0.002"):
        assert_alike(changed(lambda value: value["loss"].__setitem__(1, 0.0031)), VALUE)
    with pytest.raises(AssertionError, match="/rows/0/score is 0.501; expected 0.5 "):
        assert_alike(changed(lambda value: value["rows"][0].update(score=0.501)), VALUE)
    with pytest.raises(AssertionError, match="/loss/0 is nan"):
        assert_alike(changed(lambda value: value["loss"].__setitem__(0, float("nan"))), VALUE)


@pytest.mark.parametrize("change", [
    lambda value: value["rows"][0].update(label="b"),
    lambda value: value["rows"][0].update(start=4),
    lambda value: value["rows"][0].update(score=1),
    lambda value: value["rows"].append({}),
    lambda value: value["loss"].append(0.0),
    lambda value: value["empty"].append(0.0),
    lambda value: value.pop("empty"),
])  # fmt: skip
def test_everything_else_must_be_equal(change: Any):
    with pytest.raises(AssertionError):
        assert_alike(changed(change), VALUE)
