"""Training gives the stored losses and answers, with `fit`, with the model's export, and with the command.

The comparison with stored values tolerates rounding and nothing else.
"""

import copy
import pathlib
from typing import Any

import numpy as np
import pytest

from tests.conftest import slow_after
from tests.golden import make_answers_and_losses
from tests.golden.comparison import assert_alike, golden
from tests.golden.make_answers_and_losses import MODELS, RUNS

# Export outputs that `predict` also returns, by class.
OUTPUTS = {"TextClassifier": "probabilities", "TextRegressor": "value", "MultipleChoice": "probabilities"}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_fit_saving_and_export_have_the_stored_losses_and_answers(name: str, tmp_path: pathlib.Path):
    make_answers_and_losses.write_files(tmp_path)
    found = make_answers_and_losses.fit_and_answer(name, tmp_path)
    assert_alike(found, golden("fit.json")[name])
    output = OUTPUTS.get(MODELS[name].class_name)
    if output and "export" in found:
        np.testing.assert_allclose([answer[output] for answer in found["export"]], found["predict"], rtol=1e-4)


@pytest.mark.parametrize("name", slow_after(1, RUNS))
def test_finetune_has_the_stored_losses_and_answers(name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    make_answers_and_losses.write_files(tmp_path)
    assert_alike(make_answers_and_losses.finetune(name, tmp_path / "run"), golden("finetune.json")[name])


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
