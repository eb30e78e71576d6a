import dataclasses

from official_bert.finetuning import training
from official_bert.finetuning.options import Options
from official_bert.finetuning.training_config import training_config


def test_epochs_and_batches_make_the_number_of_steps():
    options = Options(task="sst-2", init="i", output_dir="o", train_batch_size=4, num_train_epochs=2.5, eval_steps=2)
    config = training_config(options, rows=9)
    assert (config.steps_per_epoch, config.num_steps, config.eval_steps) == (3, 7, 2)
    assert (config.learning_rate, config.max_seq_length) == (5e-5, 128)  # the task's
    assert training_config(dataclasses.replace(options, eval_steps=None), rows=9).eval_steps == 3


def test_training_stops_after_so_many_evaluations_that_are_no_better():
    assert not training.no_longer_better([0.1, 0.3], 1)
    assert training.no_longer_better([0.1, 0.3, 0.2], 1)
    assert not training.no_longer_better([0.1, 0.3, 0.2], 2)
    assert training.no_longer_better([0.1, 0.3, 0.2, 0.3], 2)  # as good is no better
    assert not training.no_longer_better([0.5, 0.4, 0.3], 0)
    assert not training.no_longer_better([], 1)
