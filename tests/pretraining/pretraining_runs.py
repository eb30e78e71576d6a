"""Records, options and models of small pre-training runs."""

import dataclasses
import itertools
import pathlib
import random
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from official_bert.data import record_codec, record_reader, record_schema
from official_bert.data.input_pipeline import RecordSource
from official_bert.modeling.config import BertConfig
from official_bert.optimization.distribution import get_strategy
from official_bert.optimization.schedules import WarmupPolynomialDecay
from official_bert.pretraining.options import PretrainingOptions
from official_bert.pretraining.train_step import Pretrainer
from official_bert.runs.training_log import read_log
from tests import make
from tests.make import WORDS, list_weights

LENGTH, PREDICTIONS = 12, 3
PHASE2_SIZES = {"phase2_max_seq_length": LENGTH, "phase2_max_predictions_per_seq": PREDICTIONS}
SCHEMA = record_schema.pretraining_schema(LENGTH, PREDICTIONS, len(WORDS), 2)


def random_record(rng: random.Random, size: int = LENGTH, predictions: int = PREDICTIONS) -> dict[str, list[float]]:
    """Returns a record of up to LENGTH tokens and PREDICTIONS predictions, padded to other sizes."""
    length = rng.randint(6, LENGTH)
    count = rng.randint(1, PREDICTIONS)
    first = rng.randint(2, length - 2)
    # Sentences with a pattern that can be learned: each word is followed by the next one in the list.
    start = rng.randint(5, len(WORDS) - LENGTH - 1)
    ids = [2, *range(start, start + length - 1)]
    positions = sorted(rng.sample(range(1, length), count))
    labels = [ids[position] for position in positions]
    for position in positions:
        ids[position] = 4
    return {
        "input_ids": ids + [0] * (size - length),
        "input_mask": [1] * length + [0] * (size - length),
        "segment_ids": [0] * first + [1] * (length - first) + [0] * (size - length),
        "masked_lm_positions": positions + [0] * (predictions - count),
        "masked_lm_ids": labels + [0] * (predictions - count),
        "masked_lm_weights": [1.0] * count + [0.0] * (predictions - count),
        "next_sentence_labels": [rng.randint(0, 1)],
    }


def write_records(path: pathlib.Path, records: Iterable[dict[str, list[float]]], schema: Any = SCHEMA) -> str:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record_codec.encode({name: np.array([value]) for name, value in record.items()}, schema)[0])
    return str(path)


def feature_specs(batch: int, length: int, predictions: int) -> dict[str, tf.TensorSpec]:
    """Returns the shapes and types of the features of a batch."""
    schema = record_schema.pretraining_schema(length, predictions)
    types = {name: "float32" if "weights" in name else "int32" for name in schema}
    return {name: tf.TensorSpec((batch, *each.shape), types[name]) for name, each in schema.items()}


def make_run_options(
    record_files: list[str], config_file: str, folder: pathlib.Path, **changes: Any
) -> PretrainingOptions:
    paths: dict[str, Any] = {"input_file": record_files, "bert_config_file": config_file, "output_dir": str(folder)}
    sizes = {"max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS}
    batches = {"train_batch_size": 8, "eval_batch_size": 8, "learning_rate": 1e-2, "compile_parts": False}
    steps = {"num_train_steps": 20, "num_warmup_steps": 4, "save_checkpoints_steps": 10, "log_steps": 1}
    return PretrainingOptions(**{"do_train": True, **paths, **sizes, **batches, **steps, **changes})


def pretrain_command(record_files: list[str], config_file: object, folder: pathlib.Path, *flags: str) -> list[str]:
    inputs = [f"--input_file={','.join(record_files)}", f"--bert_config_file={config_file}", f"--output_dir={folder}"]
    sizes = [f"--max_seq_length={LENGTH}", f"--max_predictions_per_seq={PREDICTIONS}", "--train_batch_size=8"]
    return [sys.executable, "-m", "official_bert_cli", "pretrain", "--do_train", *inputs, *sizes, *flags]


def make_pretrainer(config: BertConfig, strategy: Any = None, rate: float = 1e-2, **settings: Any) -> Pretrainer:
    strategy, schedule = strategy or get_strategy("one_device"), WarmupPolynomialDecay(rate, 20, 2)
    return Pretrainer(config=config, strategy=strategy, schedule=schedule, seed=1, **settings)


def make_batches(pretrainer: Pretrainer, record_files: list[str], size: int = 8, schema: Any = SCHEMA, **settings: Any):
    data = RecordSource(record_files, schema).training_batches(size, seed=1, **settings)
    return iter(pretrainer.strategy.experimental_distribute_dataset(data))


def read_batch(record_files: list[str], size: int = 8, schema: Any = SCHEMA) -> dict[str, tf.Tensor]:
    """Returns the first records of a file. It takes less time than an input pipeline."""
    records = itertools.islice(record_reader.read_file(record_files[0]), size)
    return record_codec.parse(tf.constant(list(records)), schema)


def disable_dropout(config: BertConfig, **changes: Any) -> BertConfig:
    return dataclasses.replace(config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **changes)


def log_values(folder: object, name: str = "loss", kind: str = "train") -> list[Any]:
    """Returns a measurement from each line of a run's log."""
    return [line[name] for line in read_log(str(folder), kind)]


def checkpoint(folder: pathlib.Path, step: int) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(folder / f"ckpt-{step}"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def remove_checkpoints(folder: pathlib.Path, after: int) -> None:
    """Removes later checkpoints, as if the run had been killed after this one."""
    for path in folder.glob("ckpt-*.*"):
        if int(path.name.split("-")[1].split(".")[0]) > after:
            path.unlink()


def steps_and_weights(pretrainer: Pretrainer, record_files: list[str], size: int = 8, **settings: Any) -> Any:
    """Takes ten steps and returns the sums of each step and the final weights."""
    batches = make_batches(pretrainer, record_files, size, **settings)
    return [pretrainer.train(batches, 1) for _ in range(10)], list_weights(pretrainer.model)


def assert_same_steps(actual: Any, expected: Any) -> None:
    """Compares two results of `steps_and_weights`."""
    for sums, expected_sums in zip(actual[0], expected[0], strict=True):
        for name in set(expected_sums) - {"input_wait"}:  # including the gradient norm before clipping
            assert sums[name] == pytest.approx(expected_sums[name], rel=1e-4, abs=1e-4), name
    for path, value in expected[1].items():
        np.testing.assert_allclose(actual[1][path], value, atol=2e-5, err_msg=path)


def assert_same_first_step(actual: tuple[Pretrainer, Any], expected: tuple[Pretrainer, Any]) -> None:
    """Takes a step of two new models without a graph. Compares its sums, and its gradients by the moments."""
    sums, expected_sums = (each.strategy.run(each.replica_step, args=(batch,)) for each, batch in (actual, expected))
    for name, value in expected_sums.items():
        np.testing.assert_allclose(sums[name], value, rtol=1e-5, err_msg=name)
    moments, expected_moments = (each.optimizer.variables[2:] for each, _ in (actual, expected))
    for variable, value in zip(moments, expected_moments, strict=True):
        np.testing.assert_allclose(variable, value, rtol=1e-4, atol=1e-7, err_msg=variable.path)


def assert_same_checkpoint(first: pathlib.Path, second: pathlib.Path, step: int, least: int = 60) -> None:
    """Checks that two runs have saved the same bits, in more than `least` tensors."""
    values, others = checkpoint(first, step), checkpoint(second, step)
    assert len(values) > least
    np.testing.assert_equal(others, values)


def write_manifest(record_files: list[str], vocab_file: str, **flags: object) -> None:
    """Writes the manifest that describes how the records were made, in their folder."""
    stem = pathlib.Path(record_files[0]).parent / "records"
    make.write_manifest(stem, dict.fromkeys(record_files, 50), vocab_file, **flags)
