"""Compares losses and answers with the stored ones, up to what rounding changes from processor to processor.

Everything that is not a fraction must be equal: labels, answers, positions, order, counts. Fractions may differ by
TOLERANCE times the largest magnitude of their group, which consists of the values that have the same key.

Why 1e-3: training amplifies rounding. Without oneDNN, and with XLA limited to SSE4.2, the values of finetune.json
change by up to 2e-5 of their scale, which leaves a factor of 50 for other processors. Small changes of the arithmetic
exceed the tolerance in at least one of the runs: a learning rate that is 0.2 % higher (5e-2), an Adam epsilon of 1e-7
instead of 1e-6 (9e-3), a weight decay of 0.011 instead of 0.01 (1.3e-3), a dropout rate of 0.101 instead of 0.1 (0.8).
A LayerNorm epsilon of 1e-6 instead of 1e-12 does not (6e-5); the comparison with the original's outputs notices that.
"""

import collections
import json
from typing import Any

from tests.golden.make_answers_and_losses import FOLDER

TOLERANCE = 1e-3


def golden(file: str) -> Any:
    """Returns the content of a stored file."""
    return json.loads((FOLDER / file).read_text(encoding="utf-8"))


def assert_alike(actual: Any, expected: Any) -> None:
    """Asserts that two JSON values are equal up to the rounding of fractions."""
    actual_rest, expected_rest = [], []
    actual_groups, expected_groups = collections.defaultdict(list), collections.defaultdict(list)
    for value, rest, groups in ((actual, actual_rest, actual_groups), (expected, expected_rest, expected_groups)):
        for path, key, leaf in _leaves(value):
            rest.append((path, None if isinstance(leaf, float) else leaf))
            if isinstance(leaf, float):
                groups[key].append((path, leaf))
    assert actual_rest == expected_rest
    for key, values in expected_groups.items():
        allowed = TOLERANCE * max(abs(value) for _, value in values)
        for (path, value), (_, other) in zip(values, actual_groups[key], strict=True):
            assert abs(value - other) <= allowed, f"{path} is {other}; expected {value} +- {allowed:.2g}"


def _leaves(value: Any, path: str = "", key: str = "") -> Any:
    """Yields the path of each value that is neither a list nor an object, the last key in the path, and the value."""
    if isinstance(value, dict | list):
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(each, f"{path}/{name}", key if isinstance(value, list) else name)
        if not value:
            yield path, key, "empty"
    else:
        yield path, key, value
