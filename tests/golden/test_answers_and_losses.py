"""Training gives the stored losses and answers: `fit` and the export of its model, and the command."""

import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from tests.golden import make_answers_and_losses
from tests.golden.comparison import assert_alike, golden
from tests.golden.make_answers_and_losses import MODELS, RUNS

# What the fast tests train; the slow ones train all.
FAST = ("classifier", "answerer", "encoder", "classification", "squad_v2")
# Outputs of exports that are what `predict` returns, by class.
OUTPUTS = {"TextClassifier": "probabilities", "TextRegressor": "value", "MultipleChoice": "probabilities"}


def marked(names: Iterable[str]) -> list[Any]:
    return [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", marked(MODELS))
def test_fit_loses_and_answers_as_stored(name: str, tmp_path: pathlib.Path):
    make_answers_and_losses.write_files(tmp_path)
    found = make_answers_and_losses.fit_and_answer(name, tmp_path)
    assert_alike(found, golden("fit.json")[name])
    output = OUTPUTS.get(MODELS[name].class_name)
    if output and "export" in found:
        np.testing.assert_allclose([answer[output] for answer in found["export"]], found["predict"], rtol=1e-4)


@pytest.mark.parametrize("name", marked(RUNS))
def test_the_command_loses_and_answers_as_stored(name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    make_answers_and_losses.write_files(tmp_path)
    assert_alike(make_answers_and_losses.finetune(name, tmp_path / "run"), golden("finetune.json")[name])
