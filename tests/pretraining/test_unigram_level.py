"""The warning about a run whose loss stays at the level of unigram guessing."""

import math
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from official_bert.pretraining import monitor, unigram_level
from official_bert.runs.training_log import TRAIN, format_line
from tests.make import write_text

STALLED = {500: 7.3, 1000: 6.95, 1500: 6.9}


def make_records(ids):
    """Returns records with one prediction each, and padding of the predictions."""
    ids = np.stack([ids, np.arange(len(ids))], axis=1)
    batch = {"masked_lm_ids": ids, "masked_lm_weights": [[1.0, 0.0]] * len(ids)}
    return mock.Mock(evaluation_batches=lambda size: tf.data.Dataset.from_tensor_slices(batch).batch(size))


def run_monitor(folder, monkeypatch, losses, first_step=0, init_checkpoint=None, phase_number=1, is_chief=True):
    """Writes log lines with these losses and returns the warnings. Guessing by frequency has a loss of 7.0."""
    lines = [format_line({"step": step, "masked_lm_loss": loss}) for step, loss in losses.items()]
    write_text(folder / f"{TRAIN}.jsonl", "".join(lines))
    monkeypatch.setattr(monitor.Monitor, "_measure", lambda watched, step, phase: {"masked_lm_loss": losses[step]})
    monkeypatch.setattr(monitor, "format_progress", lambda *_: "")
    records, log = mock.Mock(training=lambda phase: make_records(np.arange(1096).repeat(11))), mock.Mock()
    options = mock.Mock(output_dir=str(folder), init_checkpoint=init_checkpoint)
    phase = mock.Mock(number=phase_number, learning_rate=2e-3, num_warmup_steps=100)
    config = mock.Mock(token_objective="masked LM")
    watched = monitor.Monitor(options, config, mock.Mock(step=first_step), records, log, is_chief)
    for step in losses:
        watched.add({"nonfinite_steps": 0.0}, steps=1, seconds=1.0, processor_seconds=1.0)
        watched.write(step, phase)
    return [call.args for call in log.note.call_args_list]


def test_a_loss_at_the_unigram_level_causes_one_warning(tmp_path, monkeypatch, capsys):
    ((step, warning),) = run_monitor(tmp_path, monkeypatch, STALLED)
    assert step == 1000
    assert all(part in warning for part in ("6.950", "7.0", "--learning_rate (0.002)", "--num_warmup_steps (100)"))
    assert f"warning: {warning}" in capsys.readouterr().out


UNSUSPICIOUS = [
    ({500: 7.0, 1000: 6.85}, {}),  # already learned
    ({500: 6.0, 1000: 7.0}, {}),  # had learned earlier
    ({500: 7.3}, {}),  # too short
    (STALLED, {"init_checkpoint": "model"}),
    (STALLED, {"first_step": 1000}),  # checked before the run was interrupted
    (STALLED, {"phase_number": 2}),  # longer records, after a first phase
    (STALLED, {"is_chief": False}),
]


@pytest.mark.parametrize(("losses", "changes"), UNSUSPICIOUS)
def test_other_runs_get_no_warning(losses, changes, tmp_path, monkeypatch):
    assert not run_monitor(tmp_path, monkeypatch, losses, **changes)


def test_unigram_figures_count_the_tokens_to_predict():
    records = make_records([1, 2, 1, 3] * 800)
    assert unigram_level.compute_unigram_entropy(records) == pytest.approx(1.5 * math.log(2), abs=0.01)
    few = unigram_level.compute_unigram_entropy(make_records([1, 2, 1, 3]))
    assert few == pytest.approx(1.5 * math.log(2) + (3 - 1) / (2 * 4))  # corrected for the size of the sample
    assert unigram_level.compute_unigram_accuracy(records, 64, 200) == pytest.approx(0.5)
    assert unigram_level.compute_unigram_accuracy(records, 1, 3) == pytest.approx(2 / 3)
