"""Exact numbers that a run depends on. A different constant or an off-by-one error fails these tests."""

import pathlib
import re

import numpy as np
import pytest

from official_bert.data import record_codec, record_reader
from official_bert.errors import UserError
from official_bert.modeling.dropout import step_seed
from official_bert.pretraining.losses import compute_mean_losses
from official_bert.pretraining.record_files import RecordFiles
from official_bert.pretraining.run import pretrain
from tests.pretraining.pretraining_runs import LENGTH, PREDICTIONS, SCHEMA


def test_the_masked_lm_loss_has_the_epsilon_of_the_original():
    sums = {"masked_lm_loss": 3.0, "next_sentence_loss": 5.0}
    masked_lm, next_sentence = compute_mean_losses(sums, 0.0, 0.0)
    assert float(masked_lm) == pytest.approx(3.0 / 1e-5)  # google-research/bert: numerator / (denominator + 1e-5)
    assert float(next_sentence) == 5.0
    masked_lm, next_sentence = compute_mean_losses(sums, 2.0, 10.0)
    assert float(masked_lm) == pytest.approx(3.0 / 2.00001, rel=1e-7)
    assert float(next_sentence) == 0.5


def test_dropout_seeds_are_those_of_the_runs_before():
    # Recorded when seeds began to depend on replicas and micro-batches. A resumed run needs the same masks.
    assert step_seed(12345678, 5, 3, 2).numpy().tolist() == [-2097229707, 5]
    seeds = {
        tuple(step_seed(seed, step, replica, micro_batch).numpy())
        for seed in (0, 1) for step in (0, 1) for replica in (0, 1, 7) for micro_batch in (0, 1, 7)
    }  # fmt: skip
    assert len(seeds) == 2 * 2 * 3 * 3


@pytest.mark.slow
def test_the_records_of_the_step_that_is_not_finite_are_named(make_options, record_files, tiny_config, tmp_path):
    # The first step uses random weights and is finite. At this learning rate it makes the weights useless.
    options = make_options(tmp_path / "run", learning_rate=1e30, num_warmup_steps=0)
    with pytest.raises(UserError, match=r"not finite in step 2: ") as caught:
        pretrain(options)
    named = {
        (pathlib.Path(path).name, int(number))
        for path, numbers in re.findall(r"([\w/.-]+\.tfrecord): ([\d, ]+)", str(caught.value))
        for number in numbers.split(", ")
    }
    # The second batch read by training, located in the files by its content.
    found = RecordFiles.find(
        record_files, "input_file", max_seq_length=LENGTH, max_predictions_per_seq=PREDICTIONS, config=tiny_config,
        vocab_file=None,
    )  # fmt: skip
    batch = list(found.training(8, options.random_seed, 0).take(2))[1]
    stored = {
        record: (pathlib.Path(path).name, number)
        for path in record_files
        for number, record in enumerate(record_reader.read_file(path))
    }
    features = {name: np.asarray(value) for name, value in batch.items()}
    expected = {stored[record] for record in record_codec.encode(features, SCHEMA)}
    assert len(expected) == 8
    assert named == expected
