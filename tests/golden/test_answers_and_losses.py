"""Training gives the stored losses and answers, with `fit`, with the model's export, and with the command."""

import pathlib

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
