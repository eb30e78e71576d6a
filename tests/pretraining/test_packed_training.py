"""Training on packed records takes the same steps as training on unpacked ones."""

import random

import numpy as np
import pytest

from official_bert.data import record_schema
from official_bert.data.packing import Packing
from official_bert.optimization.distribution import get_strategy
from official_bert.pretraining.run import pretrain
from official_bert.runs.training_log import read_log
from tests.make import WORDS, tiny_config
from tests.pretraining import pretraining_runs as runs
from tests.processes import run_marked_tests

LENGTH, PREDICTIONS, BATCH = 32, 8, 16
SCHEMA = record_schema.pretraining_schema(LENGTH, PREDICTIONS, len(WORDS), 2)
WITHOUT_DROPOUT = runs.disable_dropout(tiny_config(num_hidden_layers=1))


@pytest.fixture
def record_files(tmp_path):
    """Short records. Three or four of them fit into a row."""
    rng = random.Random(0)
    records = [runs.random_record(rng, LENGTH, PREDICTIONS) for _ in range(60)]
    return [runs.write_records(tmp_path / "short.tfrecord", records, SCHEMA)]


def pack(rows, replicas=1):
    """Returns a packing into parts of `rows` rows."""
    parts = -(-BATCH // (replicas * rows))
    return Packing(batch_size=BATCH, replicas=replicas, micro_batches=parts, typical_micro_batches=1, rows=rows)


def after_ten_steps(config, record_files, packing=None, device="one_device", **settings):
    """Returns the sums of each step and the final weights."""
    pretrainer = runs.make_pretrainer(config, get_strategy(device), packed=packing is not None, **settings)
    return runs.steps_and_weights(pretrainer, record_files, BATCH, schema=SCHEMA, packing=packing)


def test_packed_rows_have_the_losses_and_gradients_of_their_records(tmp_path):
    unpacked, packed = (runs.make_pretrainer(WITHOUT_DROPOUT, packed=flag) for flag in (False, True))
    for variable in (*unpacked.model.variables, *packed.model.variables):
        variable.assign(5.0 * variable)  # so that the losses depend on the attention
    records = [runs.random_record(random.Random(seed), LENGTH, PREDICTIONS) for seed in range(BATCH)]
    record_files = [runs.write_records(tmp_path / "batch.tfrecord", records, SCHEMA)]
    batch = runs.read_batch(record_files, BATCH, SCHEMA)
    expected, evaluated = (each._compute_sums(batch, training=False) for each in (unpacked, packed))
    for name, value in expected.items():
        np.testing.assert_allclose(evaluated[name], value, rtol=1e-5, err_msg=name)
    parts = next(runs.make_batches(packed, record_files, BATCH, SCHEMA, packing=pack(3)))
    num_used = int(parts["input_mask"].numpy().any(axis=(1, 2)).sum())
    assert 1 < num_used < len(parts["input_mask"])  # the last parts are empty
    runs.assert_same_first_step((packed, parts), (unpacked, batch))


@pytest.mark.slow
def test_ten_packed_steps_give_the_same_weights_as_unpacked_steps(record_files):
    config = runs.disable_dropout(tiny_config())
    expected = after_ten_steps(config, record_files)
    # Three parts, sometimes up to six, or one part.
    for rows, settings in ((3, {}), (BATCH, {}), (3, {"rematerialize": True}), (3, {"jit_compile": True})):
        runs.assert_same_steps(after_ten_steps(config, record_files, pack(rows), **settings), expected)


@pytest.mark.slow
@pytest.mark.core
def test_two_devices_equal_one():
    """Runs the test marked two_devices in a separate process whose CPU is split into two devices."""
    assert "1 passed" in run_marked_tests(2, __file__)


@pytest.mark.two_devices
def test_a_packed_batch_is_split_between_two_devices(record_files):
    expected = after_ten_steps(WITHOUT_DROPOUT, record_files)
    # Parts of two rows on each of two devices. Sometimes the last part of a batch has records for one device only.
    runs.assert_same_steps(after_ten_steps(WITHOUT_DROPOUT, record_files, pack(2, replicas=2), "mirrored"), expected)


OPTIONS = {"max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS, "train_batch_size": BATCH}
OPTIONS |= {"num_train_steps": 6, "save_checkpoints_steps": 3}


@pytest.mark.slow
def test_a_packed_run_logs_and_evaluates_as_an_unpacked_one(make_options, tmp_path, capsys):
    logs = {}
    for packed in (False, True):
        folder = str(tmp_path / str(packed))
        changes = {"config": WITHOUT_DROPOUT, "pack_sequences": packed, "do_eval": True}
        assert pretrain(make_options(folder, **OPTIONS, **changes)) == 0
        logs[packed] = [*read_log(folder, "train"), *read_log(folder, "eval")]
    assert len(logs[True]) == 7
    for found, expected in zip(logs[True], logs[False], strict=True):
        for name, value in expected.items():
            if "second" not in name and name != "input_wait_share":
                assert found[name] == pytest.approx(value, rel=1e-4, abs=1e-4), name
    assert "phase 1: 16 records are packed into " in capsys.readouterr().out


@pytest.mark.slow
def test_a_stopped_packed_run_resumes_exactly(make_options, tmp_path):
    straight, halved = tmp_path / "straight", tmp_path / "halved"
    for folder in (straight, halved, halved):
        runs.remove_checkpoints(halved, after=3)
        pretrain(make_options(folder, **OPTIONS, pack_sequences=True, gradient_accumulation_steps=2))
    runs.assert_same_checkpoint(straight, halved, 6, least=50)
