"""The comparison with stored values tolerates rounding and nothing else."""

import copy
from typing import Any

import pytest

from tests.golden.comparison import assert_alike

VALUE: dict[str, Any] = {"loss": [2.0, 0.001], "rows": [{"label": "a", "score": 0.5, "start": 3}], "empty": []}


@pytest.mark.parametrize(("change", "pattern"), [
    (lambda value: value["loss"].__setitem__(1, 0.0031), "/loss/1 .*0.0031.* 0.001 .*0.002"),
    (lambda value: value["rows"][0].update(score=0.501), "/rows/0/score .*0.501.* 0.5 "),
    (lambda value: value["loss"].__setitem__(0, float("nan")), "/loss/0 .*nan"),
    (lambda value: value["rows"][0].update(label="b"), None),
    (lambda value: value["rows"][0].update(start=4), None),
    (lambda value: value["rows"][0].update(score=1), None),
    (lambda value: value["rows"].append({}), None),
    (lambda value: value["loss"].append(0.0), None),
    (lambda value: value["empty"].append(0.0), None),
    (lambda value: value.pop("empty"), None),
])  # fmt: skip
def test_only_small_differences_of_floats_are_accepted(change: Any, pattern: str | None):
    value = copy.deepcopy(VALUE)
    change(value)
    with pytest.raises(AssertionError, match=pattern):
        assert_alike(value, VALUE)


def test_floats_may_differ_relative_to_the_largest_of_their_group():
    assert_alike({**VALUE, "loss": [2.0, 0.0029]}, VALUE)
