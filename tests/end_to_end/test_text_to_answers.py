"""The commands of the quickstart from text to answers."""

import pathlib
import re
import subprocess

import pytest

from official_bert.runs.training_log import EVAL, read_log
from tests.conftest import ROOT


def test_make_knows_its_targets():
    subprocess.run("make --dry-run quickstart test test-all test-slow lint bench".split(), cwd=ROOT, check=True)


@pytest.mark.slow
def test_quickstart_learns_to_its_end(tmp_path: pathlib.Path):
    command = ["make", "quickstart", f"Q={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model" / "MODEL_CARD.md").exists()
    accuracy, baseline = (float(value) for value in re.findall(r"masked_lm_accuracy = ([\d.]+)", done.stdout))
    assert baseline < 0.08
    assert accuracy > 4.5 * baseline
    # The held-out loss falls from one evaluation to the next, so the last weights are the best.
    evaluations = read_log(str(tmp_path / "model"), EVAL)
    losses = [line["masked_lm_loss"] for line in evaluations]
    assert len(losses) >= 4
    assert losses == sorted(losses, reverse=True)
    assert evaluations[-1]["next_sentence_loss"] < 0.67
    answers = done.stdout.split("the method [MASK] called when the object is deleted .\n")[-1].splitlines()[:5]
    assert "is" in {line.split()[-1] for line in answers}
