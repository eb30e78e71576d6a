"""Folders of runs of earlier code: their models answer as they did, what was stopped goes on, losses are the same."""

import json
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest

from official_bert.checkpoints import finetuned
from tests.golden import make_older_models
from tests.golden.comparison import assert_alike, unpacked, words_of
from tests.golden.make_older_models import RUNS, STOPPED, STOPPED_AT

# What the fast tests learn anew; the slow ones learn all.
LEARNING = ("classification", "squad_v2")
ANSWERS = ("predictions", "nbest_predictions", "null_odds")


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with the earlier runs and their data."""
    folder = tmp_path_factory.mktemp("older")
    make_older_models.write_files(folder)
    unpacked("runs.tar.xz", folder / "runs")
    return folder


def answers_in(folder: pathlib.Path) -> dict[str, Any]:
    """The scores and predictions of a run, by the file's name."""
    results = json.loads((folder / "results.json").read_text())
    for part in results.values():
        if isinstance(part, dict):
            part.pop("labels", None)  # the figures of each label, which earlier code did not write
    answers = {"results.json": results}
    for path in folder.iterdir():
        if any(name in path.name for name in ANSWERS):
            text = path.read_text()
            answers[path.name] = json.loads(text) if path.suffix == ".json" else words_of(text)
    return dict(sorted(answers.items()))


def log_of(folder: pathlib.Path, kind: str) -> list[dict[str, Any]]:
    """The lines without their checksums, and without rates and times, which earlier code did not write."""
    lines = [json.loads(line) for line in (folder / f"{kind}.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "crc32" and "second" not in name} for line in lines]


@pytest.mark.parametrize("name", RUNS)
def test_a_model_of_earlier_code_scores_and_predicts_as_it_did(
    name: str, older: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(older)
    before = answers_in(older / "runs" / name)
    assert len(before) > 2
    shutil.copytree(older / "runs" / name, tmp_path / "run")
    for file in before:
        (tmp_path / "run" / file).unlink()
    make_older_models.run(name, str(tmp_path / "run"), train=False)
    assert_alike(answers_in(tmp_path / "run"), before)


@pytest.mark.parametrize(
    "name", [name if name in LEARNING else pytest.param(name, marks=pytest.mark.slow) for name in RUNS]
)
def test_the_command_learns_by_the_same_losses(
    name: str, older: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(older)
    make_older_models.run(name, str(tmp_path / "run"), train=True)
    for kind in ("train", "eval"):
        assert_alike(log_of(tmp_path / "run", kind), log_of(older / "runs" / name, kind))


def test_a_run_that_earlier_code_left_half_way_is_finished(
    older: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(older)
    whole, stopped = older / "runs" / STOPPED, older / "runs" / "stopped"
    make_older_models.run(STOPPED, "runs/stopped", train=True)
    assert f"resuming at step {STOPPED_AT}" in capsys.readouterr().out
    for kind in ("train", "eval"):
        assert_alike(log_of(stopped, kind), log_of(whole, kind))
    assert_alike(answers_in(stopped), answers_in(whole))
    weights = [finetuned.load(str(folder)).model.get_weights() for folder in (whole, stopped)]
    for expected, found in zip(*weights, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
