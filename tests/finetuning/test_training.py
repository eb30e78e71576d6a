"""The fine-tuning loop: when it logs, what it logs, and when it stops."""

import types

import pytest

from official_bert.finetuning import training
from official_bert.finetuning.training import _Run
from official_bert.runs.training_log import EVAL, TrainingLog


@pytest.mark.parametrize(("scores", "patience", "has_stopped"), [
    ([], 1, False), ([0.5], 1, False), ([0.6, 0.5], 1, True), ([0.6, 0.5, 0.5], 2, True), ([0.6, 0.5, 0.7], 2, False),
    ([0.5, 0.6, 0.6], 1, True),  # an equal score is not an improvement
    ([0.5, 0.6, 0.6], 2, False), ([0.9, *[0.1] * 9], 0, False),
])  # fmt: skip
def test_early_stopping_counts_evaluations_since_the_best_score(scores, patience, has_stopped):
    assert training.has_stopped_improving(scores, patience) == has_stopped


@pytest.mark.parametrize(("log_steps", "eval_steps", "num_steps", "expected"), [
    (4, 6, 12, [4, 8, 12]), (None, 6, 12, [*range(1, 13)]),
    (None, 10, 80, [4, 7, 10, 14, 17, 20]),  # three lines in ten steps, the last one at the evaluation
    (None, 120, 10_000, [40, 80, 120]),
])  # fmt: skip
def test_log_lines_are_evenly_spaced_between_evaluations(log_steps, eval_steps, num_steps, expected):
    steps = range(1, max(expected) + 1)
    assert [step for step in steps if training._is_logged(step, log_steps, eval_steps, num_steps)] == expected


def test_the_scores_of_a_resumed_run_are_higher_if_they_are_better(tmp_path):
    for step, error in ((1, 0.7), (2, 0.5)):
        TrainingLog(str(tmp_path), step).write(EVAL, step, {"dev/mean_absolute_error": error})
    run = _Run.__new__(_Run)
    run._options, run._trainer = types.SimpleNamespace(output_dir=str(tmp_path)), types.SimpleNamespace(eval_steps=1)
    run._step, run._sign, run._deciding_score = 2, -1.0, "dev/mean_absolute_error"
    assert run._read_scores() == [-0.7, -0.5]
