"""Records, options and models of small pre-training runs."""

import pathlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest
import tensorflow as tf

from official_bert.data import manifest, record_codec, record_schema
from official_bert.data.input_pipeline import training_batches
from official_bert.modeling.config import BertConfig
from official_bert.optimization import distribution
from official_bert.optimization.schedules import WarmupPolynomialDecay
from official_bert.pretraining.options import Options
from official_bert.pretraining.train_step import Pretrainer
from official_bert.utils import files
from tests.conftest import WORDS

LENGTH, PREDICTIONS = 12, 3
OptionsMaker = Callable[..., Options]
SCHEMA = record_schema.pretraining_schema(LENGTH, PREDICTIONS, len(WORDS), 2)


def random_record(rng: random.Random) -> dict[str, list[float]]:
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
        "input_ids": ids + [0] * (LENGTH - length),
        "input_mask": [1] * length + [0] * (LENGTH - length),
        "segment_ids": [0] * first + [1] * (length - first) + [0] * (LENGTH - length),
        "masked_lm_positions": positions + [0] * (PREDICTIONS - count),
        "masked_lm_ids": labels + [0] * (PREDICTIONS - count),
        "masked_lm_weights": [1.0] * count + [0.0] * (PREDICTIONS - count),
        "next_sentence_labels": [rng.randint(0, 1)],
    }


def encoded(record: dict[str, list[float]], schema: record_schema.Schema) -> bytes:
    return record_codec.encode({name: np.array([value]) for name, value in record.items()}, schema)[0]


def write_records(
    path: pathlib.Path, records: Iterable[dict[str, list[float]]], schema: record_schema.Schema = SCHEMA
) -> str:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(encoded(record, schema))
    return str(path)


def options_for(record_files: list[str], config: str, folder: pathlib.Path, **changes: object) -> Options:
    values = {
        "input_file": record_files,
        "bert_config_file": config,
        "output_dir": str(folder),
        "max_seq_length": LENGTH,
        "max_predictions_per_seq": PREDICTIONS,
        "do_train": True,
        "train_batch_size": 8,
        "eval_batch_size": 8,
        "learning_rate": 1e-2,
        "num_train_steps": 20,
        "num_warmup_steps": 4,
        "save_checkpoints_steps": 10,
        "log_steps": 1,
        "compile_parts": False,  # takes seconds
        **changes,
    }
    return Options(**values)  # type: ignore[arg-type]


def pretrain_command(record_files: list[str], config: object, folder: pathlib.Path, *flags: str) -> list[str]:
    return [
        *(
            sys.executable,
            "-m",
            "official_bert_cli",
            "pretrain",
            "--do_train",
            f"--input_file={','.join(record_files)}",
        ),
        *(f"--bert_config_file={config}", f"--output_dir={folder}", f"--max_seq_length={LENGTH}"),
        *(f"--max_predictions_per_seq={PREDICTIONS}", "--train_batch_size=8", *flags),
    ]


def pretrainer_for(
    config: BertConfig, strategy: tf.distribute.Strategy | None = None, rate: float = 1e-2, **settings: object
) -> Pretrainer:
    strategy = strategy or distribution.get_strategy("one_device")
    schedule = WarmupPolynomialDecay(rate, 20, 2)
    return Pretrainer(config=config, strategy=strategy, schedule=schedule, seed=1, **settings)  # type: ignore[arg-type]


def batches_for(pretrainer: Pretrainer, record_files: list[str], size: int = 8):
    data = training_batches(record_files, size, SCHEMA, seed=1)
    return iter(pretrainer.strategy.experimental_distribute_dataset(data))


def disable_dropout(config: BertConfig) -> BertConfig:
    values = {**config.to_dict(), "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertConfig.from_dict(values)


def list_weights(pretrainer: Pretrainer) -> dict[str, np.ndarray]:
    return {variable.path: np.asarray(variable).copy() for variable in pretrainer.model.variables}


def checkpoint(folder: pathlib.Path, step: int) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(folder / f"ckpt-{step}"))
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if "ATTRIBUTES" in name and "counter" not in name
    }


def steps_and_weights(
    pretrainer: Pretrainer, batches: Iterator[dict[str, tf.Tensor]]
) -> tuple[list[dict[str, float]], dict[str, np.ndarray]]:
    """Takes ten steps and returns the sums of each step and the final weights."""
    return [pretrainer.train(batches, 1) for _ in range(10)], list_weights(pretrainer)


def assert_same_steps(
    found: tuple[list[dict[str, float]], dict[str, np.ndarray]],
    expected: tuple[list[dict[str, float]], dict[str, np.ndarray]],
) -> None:
    """Compares two results of `steps_and_weights`."""
    for sums, expected_sums in zip(found[0], expected[0], strict=True):
        for name in set(expected_sums) - {"input_wait"}:  # including the gradient norm before clipping
            assert sums[name] == pytest.approx(expected_sums[name], rel=1e-4, abs=1e-4), name
    for path, value in expected[1].items():
        np.testing.assert_allclose(found[1][path], value, atol=2e-5, err_msg=path)


def assert_same_to_the_bit(first: dict[str, np.ndarray], second: dict[str, np.ndarray], least: int = 60) -> None:
    assert first.keys() == second.keys()
    assert len(first) > least
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value, err_msg=name)


def write_manifest(record_files: list[str], vocab_file: str, **flags: object) -> None:
    """Writes the manifest that describes how the records were made, in their folder."""
    shards = [
        manifest.Shard(pathlib.Path(path).name, 50, pathlib.Path(path).stat().st_size, files.sha256(path))
        for path in record_files
    ]
    source = {"format": manifest.FORMAT, "flags": flags, "vocabulary": files.sha256(vocab_file), "inputs": []}
    path = pathlib.Path(record_files[0]).parent / "records.manifest.json"
    path.write_text(manifest.Manifest(source, shards, {}).to_json())
