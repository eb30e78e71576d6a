"""Training gives the stored losses and answers, with `fit`, with the model's export, and with the command.

The comparison with stored values tolerates what rounding changes from processor to processor, and nothing else.

Everything that is not a fraction must be equal: labels, answers, positions, order, counts. Fractions may differ by
TOLERANCE times the largest magnitude of their group, which consists of the values that have the same key.

Why 1e-3: training amplifies rounding. Without oneDNN, and with XLA limited to SSE4.2, the values of finetune.json
change by up to 2e-5 of their scale, which leaves a factor of 50 for other processors. Small changes of the arithmetic
exceed the tolerance in at least one of the runs: a learning rate that is 0.2 % higher (5e-2), an Adam epsilon of 1e-7
instead of 1e-6 (9e-3), a weight decay of 0.011 instead of 0.01 (1.3e-3), a dropout rate of 0.101 instead of 0.1 (0.8).
A LayerNorm epsilon of 1e-6 instead of 1e-12 does not (6e-5); the comparison with the original's outputs notices that.
"""

import collections
import copy
import pathlib
from typing import Any

import numpy as np
import pytest

from tests.golden import make_answers_and_losses
from tests.golden.make_answers_and_losses import MODELS, RUNS, read
from tests.make import slow_after

TOLERANCE = 1e-3


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


# Export outputs that `predict` also returns, by class.
OUTPUTS = {"TextClassifier": "probabilities", "TextRegressor": "value", "MultipleChoice": "probabilities"}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_fit_saving_and_export_have_the_stored_losses_and_answers(name: str, tmp_path: pathlib.Path):
    make_answers_and_losses.write_files(tmp_path)
    found = make_answers_and_losses.fit_and_answer(name, tmp_path)
    assert_alike(found, read("fit.json")[name])
    output = OUTPUTS.get(MODELS[name].class_name)
    if output and "export" in found:
        np.testing.assert_allclose([answer[output] for answer in found["export"]], found["predict"], rtol=1e-4)


@pytest.mark.parametrize("name", slow_after(1, RUNS))
def test_finetune_has_the_stored_losses_and_answers(name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    make_answers_and_losses.write_files(tmp_path)
    assert_alike(make_answers_and_losses.finetune(name, tmp_path / "run"), read("finetune.json")[name])


VALUE: dict[str, Any] = {"loss": [2.0, 0.001], "rows": [{"label": "a", "score": 0.5, "start": 3}], "empty": []}


@pytest.mark.parametrize(("change", "pattern"), [
    (lambda value: value["loss"].__setitem__(1, 0.0031), "/loss/1 .*0.0031.* 0.001 .*0.002"),
    (lambda value: value["rows"][0].update(score=0.501), "/rows/0/score .*0.501.* 0.5 "),
    (lambda value: value["loss"].__setitem__(0, float("nan")), "/loss/0 .*nan"),
    (lambda value: value["rows"][0].update(label="b"), None),
    (lambda value: value["rows"][0].update(score=1), None),
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
