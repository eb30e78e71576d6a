"""Training on packed records takes the same steps as training on unpacked ones."""

import dataclasses
import pathlib
import random

import pytest

from official_bert.data import record_schema
from official_bert.data.input_pipeline import training_batches
from official_bert.data.packing import Packing
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.optimization import distribution
from official_bert.pretraining.run import pretrain
from official_bert.runs.training_log import read_log
from tests.conftest import WORDS
from tests.pretraining.pretraining_runs import (
    assert_same_steps,
    assert_same_to_the_bit,
    checkpoint,
    disable_dropout,
    options_for,
    pretrainer_for,
    random_record,
    steps_and_weights,
    write_records,
)
from tests.processes import run_marked_tests

LENGTH, PREDICTIONS, BATCH = 32, 8, 16
SCHEMA = record_schema.pretraining_schema(LENGTH, PREDICTIONS, len(WORDS), 2)


@pytest.fixture
def record_files(tmp_path: pathlib.Path) -> list[str]:
    """Short records. Three or four of them fit into a row."""
    rng = random.Random(0)

    def pad(record: dict[str, list[float]]) -> dict[str, list[float]]:
        return {
            name: [*values, *[0] * SCHEMA[name].shape[0]][: SCHEMA[name].shape[0]] for name, values in record.items()
        }

    return [write_records(tmp_path / "short.tfrecord", [pad(random_record(rng)) for _ in range(60)], SCHEMA)]


def after_ten_steps(
    config: BertConfig, record_files: list[str], rows: int | None = None, device: str = "one_device", **settings: object
):
    """Returns the sums of each step and the final weights. With `rows`, packs records into parts of `rows` rows."""
    pretrainer = pretrainer_for(config, distribution.get_strategy(device), packed=rows is not None, **settings)
    packing = None
    if rows:
        replicas = pretrainer.strategy.num_replicas_in_sync
        parts = -(-BATCH // (replicas * rows))
        packing = Packing(batch_size=BATCH, replicas=replicas, parts=parts, usual_parts=1, rows=rows)
    data = training_batches(record_files, BATCH, SCHEMA, seed=1, packing=packing)
    batches = iter(pretrainer.strategy.experimental_distribute_dataset(data))
    return steps_and_weights(pretrainer, batches)


@pytest.mark.slow
def test_ten_packed_steps_give_the_weights_of_unpacked_ones(tiny_config: BertConfig, record_files: list[str]):
    config = disable_dropout(dataclasses.replace(tiny_config, num_hidden_layers=1))
    expected = after_ten_steps(config, record_files)
    assert_same_steps(after_ten_steps(config, record_files, rows=BATCH), expected)
    assert_same_steps(after_ten_steps(config, record_files, rows=3), expected)  # three parts, sometimes up to six


@pytest.mark.slow
@pytest.mark.core
def test_two_devices_equal_one():
    """Runs the test marked two_devices in a separate process whose CPU is split into two devices."""
    assert "1 passed" in run_marked_tests(2, __file__)


@pytest.mark.two_devices
def test_two_devices_share_a_packed_batch(tiny_config: BertConfig, record_files: list[str]):
    config = disable_dropout(dataclasses.replace(tiny_config, num_hidden_layers=1))
    expected = after_ten_steps(config, record_files)
    # Parts of two rows on each of two devices. Sometimes the last part of a batch has records for one device only.
    assert_same_steps(after_ten_steps(config, record_files, rows=2, device="mirrored"), expected)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"rematerialize": True}, {"jit_compile": True}], ids=str)
def test_packed_steps_are_the_same_however_they_are_computed(tiny_config, record_files, settings):
    config = disable_dropout(tiny_config)
    expected = after_ten_steps(config, record_files)
    assert_same_steps(after_ten_steps(config, record_files, rows=3, **settings), expected)


def run(record_files: list[str], config: BertConfig, folder: pathlib.Path, **changes: object) -> None:
    folder.mkdir(exist_ok=True)
    (folder.parent / "config.json").write_text(dataclasses.replace(config, num_hidden_layers=1).to_json())
    sizes = {"max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS, "train_batch_size": BATCH}
    steps = {"num_train_steps": 6, "save_checkpoints_steps": 3}
    config_file = str(folder.parent / "config.json")
    assert pretrain(options_for(record_files, config_file, folder, **sizes, **steps, **changes)) == 0


@pytest.mark.slow
def test_a_packed_run_logs_and_evaluates_as_an_unpacked_one(tiny_config, record_files, tmp_path, monkeypatch, capsys):
    logs = {}
    for packed in (False, True):
        folder = tmp_path / str(packed)
        run(record_files, disable_dropout(tiny_config), folder, pack_sequences=packed, do_eval=True)
        logs[packed] = [*read_log(str(folder), "train"), *read_log(str(folder), "eval")]
    assert len(logs[True]) == 7
    for found, expected in zip(logs[True], logs[False], strict=True):
        for name, value in expected.items():
            if "second" not in name and name != "input_wait_share":
                assert found[name] == pytest.approx(value, rel=1e-4, abs=1e-4), name
    assert "phase 1: 16 records are packed into " in capsys.readouterr().out


def test_packing_for_causal_attention_is_refused(tiny_config: BertConfig, record_files, tmp_path):
    with pytest.raises(UserError, match="--pack_sequences supports masked LMs only"):
        run(record_files, tiny_config, tmp_path / "run", pack_sequences=True, left_to_right=True)


@pytest.mark.slow
def test_a_packed_run_that_was_stopped_goes_on_as_if_it_had_not_stopped(
    tiny_config: BertConfig, record_files: list[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    straight, halved = tmp_path / "straight", tmp_path / "halved"
    for folder in (straight, halved):
        run(record_files, tiny_config, folder, pack_sequences=True, gradient_accumulation_steps=2)
    for path in halved.glob("ckpt-6*"):
        path.unlink()
    run(record_files, tiny_config, halved, pack_sequences=True, gradient_accumulation_steps=2)
    assert_same_to_the_bit(checkpoint(straight, 6), checkpoint(halved, 6), least=50)
