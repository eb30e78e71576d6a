"""The warning about a run whose loss stays at the level of unigram guessing."""

import math
import pathlib
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from official_bert.pretraining import monitor, unigram_level
from official_bert.pretraining.run import pretrain
from official_bert.runs.training_log import NOTICES, TRAIN, format_line, read_log
from tests.pretraining.pretraining_runs import OptionsMaker

ENTROPY = 7.0
STALLED = {500: 7.3, 1000: 6.95, 1500: 6.9}


def run_monitor(
    folder: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    losses: dict[int, float],
    first_step: int = 0,
    init_checkpoint: str | None = None,
    phase_number: int = 1,
) -> list[tuple[int, str]]:
    """Writes log lines with these losses and returns the warnings."""
    folder.mkdir()
    lines = [format_line({"step": step, "masked_lm_loss": loss}) for step, loss in losses.items()]
    (folder / f"{TRAIN}.jsonl").write_text("".join(lines))
    monkeypatch.setattr(unigram_level, "compute_unigram_entropy", lambda records: ENTROPY)
    monkeypatch.setattr(monitor.Monitor, "_measurements", lambda watched, step, phase: {"masked_lm_loss": losses[step]})
    monkeypatch.setattr(monitor, "format_progress", lambda *_: "")
    options: Any = SimpleNamespace(
        output_dir=str(folder), dtype="float32", total_steps=4000, init_checkpoint=init_checkpoint
    )
    pretrainer: Any = SimpleNamespace(step=first_step, strategy=None)
    records: Any = SimpleNamespace(training=lambda phase: None)
    config: Any = SimpleNamespace(token_objective="masked LM")
    phase: Any = SimpleNamespace(number=phase_number, learning_rate=2e-3, num_warmup_steps=100)
    notes: list[tuple[int, str]] = []
    log: Any = SimpleNamespace(note=lambda *note: notes.append(note), write=lambda *_: None)
    watched = monitor.Monitor(options, config, pretrainer, records, log, is_chief=True)
    for step in losses:
        watched.add({"nonfinite_steps": 0.0}, seconds=1.0, processor_seconds=1.0)
        watched.write(step, phase)
    return notes


def test_a_loss_that_stays_at_the_unigram_level_is_a_warning_once(tmp_path: pathlib.Path, monkeypatch, capsys):
    ((step, warning),) = run_monitor(tmp_path / "run", monkeypatch, STALLED)
    assert step == 1000
    assert "after 1,000 steps the lowest masked LM loss is 6.950, no better than guessing" in warning
    assert "lower --learning_rate (0.002), increase --num_warmup_steps (100)" in warning
    assert f"warning: {warning}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("losses", "changes"),
    [
        ({500: 7.0, 1000: 6.0}, {}),  # already learned
        ({500: 6.0, 1000: 7.0}, {}),  # had learned earlier
        ({500: 7.3}, {}),  # too short
        (STALLED, {"init_checkpoint": "model"}),
        (STALLED, {"first_step": 1200}),  # checked before the run was interrupted
        (STALLED, {"phase_number": 2}),  # longer records, after a first phase
    ],
)
def test_other_runs_get_no_warning(losses: dict[int, float], changes: dict[str, Any], tmp_path, monkeypatch):
    assert not run_monitor(tmp_path / "run", monkeypatch, losses, **changes)


def test_unigram_figures_count_the_tokens_to_predict():
    rng = random.Random(0)
    shares = {1: 0.5, 2: 0.25, 3: 0.25}
    ids = np.array(rng.choices(list(shares), list(shares.values()), k=64 * 200)).reshape(200, 64, 1)
    batches = [
        {"masked_lm_ids": np.pad(each, ((0, 0), (0, 1))), "masked_lm_weights": [[1.0, 0.0]] * 64} for each in ids
    ]
    records: Any = SimpleNamespace(
        evaluation=lambda size: tf.data.Dataset.from_generator(
            lambda: iter(batches),
            output_signature={
                "masked_lm_ids": tf.TensorSpec((64, 2), tf.int32), "masked_lm_weights": tf.TensorSpec((64, 2)),
            },
        )
    )  # fmt: skip
    assert unigram_level.compute_unigram_entropy(records) == pytest.approx(1.5 * math.log(2), abs=0.01)
    assert unigram_level.compute_unigram_accuracy(records, 64, 200) == pytest.approx(0.5, abs=0.01)


def test_a_run_that_learns_nothing_warns(make_options: OptionsMaker, tmp_path: pathlib.Path, monkeypatch):
    monkeypatch.setattr(monitor, "CHECKED_STEP", 10)
    pretrain(make_options(tmp_path / "run", learning_rate=1e-9))
    (notice,) = read_log(str(tmp_path / "run"), NOTICES)
    assert notice["step"] == 10
    assert "no better than guessing tokens by frequency" in notice["notice"]
