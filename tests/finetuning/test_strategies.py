"""Fine-tuning on several replicas gives the steps, losses and predictions of one device."""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.checkpoints.checkpoint import LoadedModel
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.run_checkpoints import RunCheckpoints
from official_bert.finetuning import batches, runner
from official_bert.finetuning.options import Options
from official_bert.finetuning.trainer import Trainer
from official_bert.finetuning.training_config import TrainingConfig
from official_bert.inference.keras_model import compute_outputs
from official_bert.kinds import names
from official_bert.kinds.all_kinds import SPECS
from official_bert.kinds.classification.model import build_classifier
from official_bert.modeling.dropout import Dropout
from official_bert.modeling.encoder import build_encoder
from official_bert.optimization import distribution
from official_bert.runs.training_log import read_log
from official_bert.tokenization.casing import UNCASED
from official_bert.training import replicas
from official_bert.training.replicas import make_length_buckets
from tests.conftest import ROOT
from tests.finetuning.random_features import CLASSES, random_features
from tests.finetuning.test_finetuning import options, write_table  # noqa: F401
from tests.make import VOCAB, tiny_config
from tests.processes import run_marked_tests, worker_environments

# A gradient that is zero except for rounding, such as for a bias that all candidates share, leads to an Adam step of up
# to the learning rate times rounding error / epsilon. RATE is low enough to keep this below the tolerance.
RATE = 1e-4
CONFIG = tiny_config(num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
STEPS, ROWS, BATCH = 20, 13, 5  # the last batch of an epoch has 3 rows


def make_trainer(kind: str, strategy: tf.distribute.Strategy) -> Trainer:
    training = TrainingConfig(
        train_batch_size=BATCH, learning_rate=RATE, num_steps=STEPS, steps_per_epoch=-(-ROWS // BATCH),
        warmup_proportion=0.1, eval_steps=STEPS, max_seq_length=24, random_seed=7,
    )  # fmt: skip
    initial_model = LoadedModel(CONFIG, {}, VOCAB, UNCASED)
    head = SPECS[kind](labels=tuple(map(str, range(CLASSES))))
    trainer = Trainer(head, initial_model, training, strategy=strategy)
    for layer in trainer.model._flatten_layers():
        if isinstance(layer, Dropout):  # its masks depend on the replica
            layer.rate = 0.0
    return trainer


def trained(kind: str, strategy: tf.distribute.Strategy) -> dict[str, Any]:
    """Returns losses, weights and predictions after 20 steps."""
    trainer, features = make_trainer(kind, strategy), random_features(kind, ROWS, longest=24)
    losses: list[float] = []

    def on_step(done: int, mean: float) -> bool:
        losses.append(mean * done)
        return False

    trainer.train(features, 0, STEPS, on_step)
    outputs = trainer.predict(features, 4)
    outputs = outputs if isinstance(outputs, dict) else {"": outputs}
    return {
        "losses": np.diff([0.0, *losses]),
        "weights": np.concatenate([np.ravel(each) for each in trainer.model.get_weights()]),
        "predictions": np.concatenate([np.ravel(each) for values in outputs.values() for each in values]),
    }


def differences(kind: str, one: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    found = {name: float(np.abs(value - other[name]).max()) for name, value in one.items()}
    print(f"{kind}: " + ", ".join(f"{n} {v:.1e}" for n, v in found.items()))
    return found


@pytest.fixture
def compiled_lengths(monkeypatch: pytest.MonkeyPatch) -> tuple[int, ...]:
    """Pads batches to the few lengths that a TPU compiles, and returns these lengths."""
    monkeypatch.setattr(distribution, "needs_static_shapes", lambda strategy: True)
    monkeypatch.setattr(replicas, "_SHORTEST_BUCKET", 8)
    return make_length_buckets(24)


def test_lengths_of_a_tpu_are_few():
    assert make_length_buckets(384) == (32, 64, 128, 256, 384)
    assert make_length_buckets(128) == (32, 64, 128)
    assert make_length_buckets(20) == (20,)
    features = random_features(names.CLASSIFICATION, ROWS, longest=24)
    lengths = batches.row_lengths(features)
    for row, length in enumerate(lengths):
        padded = batches.padded_inputs(features, np.array([row, -1]), 24, buckets=(8, 16, 24))["input_mask"]
        assert padded.shape == (2, -(-length // 8) * 8)
        assert padded.sum(axis=1).tolist() == [length, 0]


def test_batches_are_filled_up_to_a_multiple_of_the_replicas():
    filled = batches.pad_batches(np.arange(10).reshape(2, 5), 4)
    assert filled.tolist() == [[0, 1, 2, 3, 4, -1, -1, -1], [5, 6, 7, 8, 9, -1, -1, -1]]
    assert batches.pad_batches(filled, 8).shape == (2, 8)


@pytest.mark.slow
def test_each_length_of_a_tpu_is_compiled_once(compiled_lengths: tuple[int, ...], capsys, monkeypatch):
    strategy = distribution.get_strategy("one_device")
    few = trained(names.TAGGING, strategy)
    lines = capsys.readouterr().out.splitlines()
    for what, rows in (("training", BATCH), ("prediction", 4)):
        of_kind = [line for line in lines if line.startswith(f"compiling {what}")]
        lengths = [int(re.search(rf"of shape {rows} x (\d+),.* 3 shapes", line)[1]) for line in of_kind]  # type: ignore[index]
        assert set(lengths) <= set(compiled_lengths)
        assert 1 < len(lengths) == len(set(lengths))
    monkeypatch.undo()
    assert max(differences(names.TAGGING, trained(names.TAGGING, strategy), few).values()) < 1e-5


WITHOUT_HEAD_DROPOUT = """
import sys
from official_bert.inference.keras_model import compute_outputs
from official_bert.kinds import names
from official_bert.kinds.classification.model import build_classifier
build_classifier.__defaults__ = (0.0, None)
from official_bert.commands import FINETUNE
FINETUNE.run()
"""


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize("number", [2, 8])
def test_replicas_equal_one_device(number: int):
    """Runs the tests marked for a number of devices in a process with a split CPU. -rP prints the differences."""
    print(run_marked_tests(number, __file__))


ON_TWO_DEVICES = [pytest.param(kind, marks=pytest.mark.two_devices) for kind in names.KINDS]
# Batches of 5 rows are padded to 8, so some replicas receive only padding.
ON_EIGHT_DEVICES = pytest.param(names.TAGGING, marks=pytest.mark.eight_devices)


@pytest.mark.parametrize("kind", [*ON_TWO_DEVICES, ON_EIGHT_DEVICES])
def test_several_devices_take_the_steps_of_one(kind: str):
    one, several = (trained(kind, distribution.get_strategy(name)) for name in ("one_device", "mirrored"))
    assert max(differences(kind, one, several).values()) < 1e-5


@pytest.mark.two_devices
def test_the_command_on_two_devices_ends_with_the_weights_of_one(options: Options, monkeypatch):  # noqa: F811
    path = pathlib.Path(options.init or "")
    config = json.loads(path.read_text()) | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    path.write_text(json.dumps(config))
    monkeypatch.setattr(build_classifier, "__defaults__", (0.0, None))
    options = dataclasses.replace(options, num_train_epochs=1.0, do_predict=False)
    weights = []
    for name in ("one_device", "mirrored"):
        folder = f"{options.output_dir}-{name}"
        runner.run(dataclasses.replace(options, distribution_strategy=name, output_dir=folder))
        weights.append([*open_model(folder).weights.values()])
    for one, two in zip(*weights, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-4)


@pytest.mark.two_devices
def test_fit_is_right_where_one_device_gets_no_row_of_the_last_batch():
    features = random_features(names.CLASSIFICATION, 9, longest=24)
    labels = features.targets["labels"]

    def fitted(rate: float) -> tuple[keras.Model, dict[str, Any]]:
        with distribution.get_strategy("mirrored").scope():
            model = build_classifier(build_encoder(CONFIG, seed=1), CLASSES, rate, seed=1)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.SGD(0.0), loss, metrics=["accuracy"])
        ids = batches.padded_inputs(features, np.arange(9), 24)
        return model, model.fit(ids, labels, batch_size=4, verbose=0).history

    model, history = fitted(0.0)
    logits = np.stack(compute_outputs(model, features, 9, 24))
    assert history["accuracy"] == pytest.approx([np.mean(logits.argmax(-1) == labels)])
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(9), labels]
    assert history["loss"] == pytest.approx([losses.mean()], rel=1e-4)
    assert np.isfinite(fitted(0.5)[1]["loss"]).all()


@pytest.mark.two_devices
def test_two_devices_with_the_lengths_of_a_tpu_take_the_steps_of_one(compiled_lengths: tuple[int, ...], monkeypatch):
    kind = names.QUESTION_ANSWERING
    two = trained(kind, distribution.get_strategy("mirrored"))
    monkeypatch.undo()
    assert max(differences(kind, trained(kind, distribution.get_strategy("one_device")), two).values()) < 1e-5


@pytest.mark.two_devices
def test_training_goes_on_from_any_strategy_to_any_other(tmp_path: pathlib.Path):
    """Equal bit for bit with the same number of replicas, and like one device with another number."""
    features, half = random_features(names.CLASSIFICATION, ROWS, longest=24), STEPS // 2

    def train_in_two_parts(first: str, second: str, rate: float) -> list[np.ndarray]:
        weights: list[np.ndarray] = []
        for number, name in enumerate((first, second)):
            trainer = make_trainer(names.CLASSIFICATION, distribution.get_strategy(name))
            trainer.model.get_layer("head_dropout").rate = rate
            variables = {"model": trainer.model.variables, "optimizer": trainer.optimizer.variables}
            state = RunCheckpoints(str(tmp_path / f"{first}-{second}-{rate}"), variables, keep=1)
            state.restore_latest()
            trainer.train(features, number * half, (number + 1) * half, lambda done, loss: False)
            state.save((number + 1) * half)
            weights = trainer.model.get_weights()
        return weights

    whole = make_trainer(names.CLASSIFICATION, distribution.get_strategy("mirrored"))
    whole.model.get_layer("head_dropout").rate = 0.5
    whole.train(features, 0, STEPS, lambda done, loss: False)
    for one, other in zip(whole.model.get_weights(), train_in_two_parts("mirrored", "mirrored", 0.5), strict=True):
        np.testing.assert_array_equal(one, other)
    expected = trained(names.CLASSIFICATION, distribution.get_strategy("one_device"))["weights"]
    found = np.concatenate([np.ravel(each) for each in train_in_two_parts("one_device", "mirrored", 0.0)])
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
def test_one_replica_takes_the_very_steps_of_one_device():
    features, weights = random_features(names.CLASSIFICATION, ROWS, longest=24), []
    for name in ("one_device", "mirrored"):
        strategy = distribution.get_strategy(name)
        assert strategy.num_replicas_in_sync == 1
        trainer = make_trainer(names.CLASSIFICATION, strategy)
        trainer.train(features, 0, 3, lambda done, loss: False)
        weights.append(trainer.model.get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.core
def test_two_workers_equal_one_device(tmp_path: pathlib.Path, vocab_file: str):
    """Launches two real processes with the command. They train, evaluate and predict."""
    (tmp_path / "config.json").write_text(CONFIG.to_json())
    tables = {name: write_table(tmp_path / f"{name}.csv", rows, rows) for name, rows in (("train", 21), ("eval", 11))}
    command = [
        sys.executable, "-c", WITHOUT_HEAD_DROPOUT, "--task=table", "--do_train", "--do_eval", "--do_predict",
        f"--train_file={tables['train']}", f"--eval_file={tables['eval']}", f"--predict_file={tables['eval']}",
        f"--init={tmp_path}/config.json", f"--vocab_file={vocab_file}", "--max_seq_length=16", "--train_batch_size=5",
        "--num_train_epochs=2", "--eval_batch_size=4", "--learning_rate=1e-3",
    ]  # fmt: skip
    alone = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(ROOT)}
    launches = [("one", "one_device", alone), *(("two", "multi_worker", each) for each in worker_environments(2))]
    processes = []
    for folder, strategy, environment in launches:
        flags = [f"--output_dir={tmp_path}/{folder}", f"--distribution_strategy={strategy}"]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        processes.append(subprocess.Popen([*command, *flags], cwd=ROOT, env=environment, text=True, **pipes))
    outputs = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    one, two = ([*open_model(str(tmp_path / name)).weights.values()] for name in ("one", "two"))
    for expected, found in zip(one, two, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    for name in ("results.json", "eval.jsonl"):
        assert (tmp_path / "two" / name).read_text() == (tmp_path / "one" / name).read_text()
    tables_of = [(tmp_path / name / "predictions_test.tsv").read_text().split() for name in ("one", "two")]
    assert len(tables_of[0]) == len(tables_of[1]) > 11
    assert sum(line["loss"] for line in read_log(str(tmp_path / "two"), "train")) == pytest.approx(
        sum(line["loss"] for line in read_log(str(tmp_path / "one"), "train")), abs=1e-5
    )
