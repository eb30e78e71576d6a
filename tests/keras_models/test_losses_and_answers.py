"""`fit` learns by the stored losses, and its models give the stored answers through every interface."""

import pathlib
from typing import Any

import pytest

from tests.golden import make_answers_and_losses
from tests.golden.comparison import assert_alike, golden
from tests.golden.make_answers_and_losses import MODELS

# What the fast tests train; the slow ones train all.
FAST = ("classifier", "answerer", "encoder")


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_fit_loses_and_answers_as_stored(name: str, tmp_path: pathlib.Path):
    make_answers_and_losses.write_files(tmp_path)
    found: dict[str, Any] = make_answers_and_losses.fit_and_answer(name, tmp_path)
    assert_alike(found, golden("fit.json")[name])
