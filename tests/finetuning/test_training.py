import dataclasses
import pathlib

import pytest

from official_bert.errors import UserError
from official_bert.finetuning import training
from official_bert.finetuning.options import Options
from official_bert.finetuning.training_config import training_config


def test_epochs_and_batches_make_the_number_of_steps():
    options = Options(
        task="sst-2", do_train=True, init="i", output_dir="o", train_batch_size=4, num_train_epochs=2.5, eval_steps=2
    )
    config = training_config(options, rows=9)
    assert (config.steps_per_epoch, config.num_steps, config.eval_steps) == (3, 7, 2)
    assert (config.learning_rate, config.max_seq_length) == (5e-5, 128)  # the task's
    assert training_config(dataclasses.replace(options, eval_steps=None), rows=9).eval_steps == 3


def test_losses_are_logged_in_even_distances_up_to_each_evaluation():
    def steps(epochs: float, **changes: int) -> list[int]:
        options = Options(
            task="sst-2", do_train=True, output_dir="o", train_batch_size=1, num_train_epochs=epochs, **changes
        )
        config = training_config(options, rows=150)
        numbers = range(1, config.num_steps + 1)
        return [step for step in numbers if training._is_logged(step, changes.get("log_steps"), config)]

    assert steps(1)[:3] == [7, 14, 21]
    assert len(steps(1)) == 22
    assert steps(20)[:4] == [50, 100, 150, 200]
    assert steps(20, eval_steps=60)[:4] == [30, 60, 90, 120]
    assert steps(1, log_steps=40, eval_steps=60) == [40, 80, 120]


def test_training_stops_after_so_many_evaluations_that_are_no_better():
    assert not training.no_longer_better([0.1, 0.3], 1)
    assert training.no_longer_better([0.1, 0.3, 0.2], 1)
    assert not training.no_longer_better([0.1, 0.3, 0.2], 2)
    assert training.no_longer_better([0.1, 0.3, 0.2, 0.3], 2)  # as good is no better
    assert not training.no_longer_better([0.5, 0.4, 0.3], 0)
    assert not training.no_longer_better([], 1)


def test_a_run_goes_on_with_the_same_data_alone(tmp_path: pathlib.Path):
    options = Options(task="sst-2", do_train=True, init="i", output_dir=str(tmp_path)).resolved()
    training.check_resume_compatibility(options, "trained on", ["scored on"])
    training.check_resume_compatibility(options, "trained on", ["another"])  # it has trained nothing
    for name in ("task.json", "bert_config.json"):  # it has
        (tmp_path / name).write_text("{}")
    training.check_resume_compatibility(options, "trained on", ["another"])
    with pytest.raises(UserError, match="holds a run with other training data, or another vocabulary; give the same"):
        training.check_resume_compatibility(options, "another", ["another"])
    with pytest.raises(UserError, match="holds a run with other evaluation data, .* scored without --do_train"):
        training.check_resume_compatibility(options, "trained on", ["scored on"])
