"""The command learns by the stored losses, and scores and predicts as stored."""

import pathlib

import pytest

from tests.golden import make_answers_and_losses
from tests.golden.comparison import assert_alike, golden
from tests.golden.make_answers_and_losses import RUNS

# What the fast tests train; the slow ones train all.
FAST = ("classification", "squad_v2")


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in RUNS]
)
def test_the_command_loses_and_answers_as_stored(name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    make_answers_and_losses.write_files(tmp_path)
    assert_alike(make_answers_and_losses.finetune(name, tmp_path / "run"), golden("finetune.json")[name])
