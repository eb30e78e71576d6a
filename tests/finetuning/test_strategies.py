"""Fine-tuning on several replicas gives the steps, losses and predictions of one device."""

import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest

from official_bert.checkpoints.checkpoint import LoadedModel
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.run_checkpoints import RunCheckpoints
from official_bert.finetuning import batches
from official_bert.finetuning.options import FinetuningOptions
from official_bert.finetuning.trainer import Trainer
from official_bert.inference.keras_model import compute_outputs
from official_bert.kinds.all_kinds import SPECS
from official_bert.kinds.classification.model import build_classifier
from official_bert.kinds.features import padded_inputs, row_lengths
from official_bert.kinds.names import CLASSIFICATION, KINDS, QUESTION_ANSWERING, TAGGING, VECTORS
from official_bert.kinds.vectors.spec import VectorSpec
from official_bert.modeling.dropout import Dropout
from official_bert.modeling.encoder import build_encoder
from official_bert.optimization import distribution
from official_bert.runs.training_log import read_log
from official_bert.tokenization.casing import UNCASED
from official_bert.training import replicas
from tests.finetuning.conftest import CLASSES, random_features, write_table
from tests.make import ROOT, VOCAB, assert_equal_weights, tiny_config, write_text
from tests.processes import run_marked_tests, worker_environments

# A gradient that is zero except for rounding, such as for a bias that all candidates share, leads to an Adam step of up
# to the learning rate times rounding error / epsilon. RATE is low enough to keep this below the tolerance.
RATE = 1e-4
WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
CONFIG = tiny_config(num_hidden_layers=1, **WITHOUT_DROPOUT)
STEPS, EPOCHS, ROWS, BATCH = 20, 6.7, 13, 5  # the last batch of an epoch has 3 rows


def make_trainer(kind: str, strategy: str, head_dropout: float = 0.0, micro_batches: int = 1) -> Trainer:
    options = FinetuningOptions(
        task="sst-2", output_dir="unused", do_train=True, train_batch_size=BATCH, learning_rate=RATE,
        num_train_epochs=EPOCHS, max_seq_length=24, random_seed=7, gradient_accumulation_steps=micro_batches,
    )  # fmt: skip
    head = VectorSpec(normalize=True) if kind == VECTORS else SPECS[kind](labels=tuple(map(str, range(CLASSES))))
    # Vectors of small weights are nearly equal.
    config = tiny_config(num_hidden_layers=1, initializer_range=0.2, **WITHOUT_DROPOUT) if kind == VECTORS else CONFIG
    initial_model = LoadedModel(config, {}, VOCAB, UNCASED)
    trainer = Trainer(head, initial_model, options, ROWS, strategy=distribution.get_strategy(strategy))
    assert trainer.num_steps == STEPS
    for layer in trainer.model._flatten_layers():
        if isinstance(layer, Dropout):  # its masks depend on the replica
            layer.rate = head_dropout
    return trainer


def train(kind: str, strategy: str, micro_batches: int = 1):
    """Returns losses, weights and predictions after 20 steps."""
    trainer, features = make_trainer(kind, strategy, 0.0, micro_batches), random_features(kind, ROWS, longest=24)
    losses = [0.0]
    trainer.train(features, 0, STEPS, lambda done, mean: bool(losses.append(mean * done)))
    outputs = trainer.predict(features, 4)
    outputs = [*outputs["start_logits"], *outputs["end_logits"]] if isinstance(outputs, dict) else outputs
    arrays = {"losses": [np.diff(losses)], "weights": trainer.model.get_weights(), "predictions": outputs}
    return {name: np.concatenate([np.ravel(each) for each in values]) for name, values in arrays.items()}


def assert_alike(kind: str, one, other) -> None:
    """Prints the largest differences, and asserts that they are small."""
    found = {name: float(np.abs(value - other[name]).max()) for name, value in one.items()}
    print(f"{kind}: " + ", ".join(f"{name} {value:.1e}" for name, value in found.items()))
    assert max(found.values()) < 1e-5
    assert kind != VECTORS or found["weights"] < 2e-6


@pytest.fixture
def compiled_lengths(monkeypatch: pytest.MonkeyPatch) -> tuple[int, ...]:
    """Pads batches to the few lengths that a TPU compiles, and returns these lengths."""
    monkeypatch.setattr(distribution, "needs_static_shapes", lambda strategy: True)
    monkeypatch.setattr(replicas, "_SHORTEST_BUCKET", 8)
    return replicas.make_length_buckets(24)


def test_batches_for_a_tpu_have_few_lengths():
    features = random_features(CLASSIFICATION, ROWS, longest=24)
    for row, length in enumerate(row_lengths(features)):
        padded = padded_inputs(features, np.array([row, -1]), 24, buckets=(8, 16, 24))["input_mask"]
        assert padded.shape == (2, -(-length // 8) * 8)
        assert padded.sum(axis=1).tolist() == [length, 0]


def test_batches_are_filled_up_to_a_multiple_of_the_replicas():
    filled = batches.pad_batches(np.arange(10).reshape(2, 5), 4)
    assert filled.tolist() == [[0, 1, 2, 3, 4, -1, -1, -1], [5, 6, 7, 8, 9, -1, -1, -1]]
    assert batches.pad_batches(filled, 8).shape == (2, 8)


@pytest.mark.slow
def test_each_length_is_compiled_once_for_a_tpu(compiled_lengths: tuple[int, ...], capsys, monkeypatch):
    few = train(TAGGING, "one_device")
    text = capsys.readouterr().out
    for what, rows in (("training", BATCH), ("prediction", 4)):
        lengths = re.findall(rf"^compiling {what} .*of shape {rows} x (\d+),.* 3 shapes", text, re.MULTILINE)
        assert set(map(int, lengths)) <= set(compiled_lengths)
        assert 1 < len(lengths) == len(set(lengths))
    monkeypatch.undo()
    assert_alike(TAGGING, train(TAGGING, "one_device"), few)


WITHOUT_HEAD_DROPOUT = """
from official_bert.kinds.classification.model import build_classifier
build_classifier.__defaults__ = (0.0, *build_classifier.__defaults__[1:])
from official_bert.commands import FINETUNE
FINETUNE.run()
"""


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize("number", [2, 8])
def test_replicas_equal_one_device(number: int):
    """Runs the tests marked for a number of devices in a process with a split CPU. -rP prints the differences."""
    print(run_marked_tests(number, __file__))


ON_TWO_DEVICES = [(kind, 1) for kind in (*KINDS, VECTORS)] + [(VECTORS, 2)]
# Batches of 5 rows are padded to 8, so some replicas receive only padding.
ON_EIGHT_DEVICES = pytest.param(TAGGING, 1, marks=pytest.mark.eight_devices)


@pytest.mark.parametrize(
    ("kind", "micro_batches"),
    [*(pytest.param(*each, marks=pytest.mark.two_devices) for each in ON_TWO_DEVICES), ON_EIGHT_DEVICES],
)
def test_several_devices_take_the_same_steps_as_one(kind: str, micro_batches: int):
    assert_alike(kind, train(kind, "one_device"), train(kind, "mirrored", micro_batches))


@pytest.mark.two_devices
def test_fit_is_correct_if_a_device_gets_no_row_of_the_last_batch():
    features = random_features(CLASSIFICATION, 9, longest=24)
    labels = features.targets["labels"]

    def fit(rate: float):
        with distribution.get_strategy("mirrored").scope():
            model = build_classifier(build_encoder(CONFIG, seed=1), CLASSES, rate, seed=1)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.SGD(0.0), loss, metrics=["accuracy"])
        ids = padded_inputs(features, np.arange(9), 24)
        return model, model.fit(ids, labels, batch_size=4, verbose=0).history

    model, history = fit(0.0)
    logits = np.stack(compute_outputs(model, features, 9, 24))
    assert history["accuracy"] == pytest.approx([np.mean(logits.argmax(-1) == labels)])
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(9), labels]
    assert history["loss"] == pytest.approx([losses.mean()], rel=1e-4)
    assert np.isfinite(fit(0.5)[1]["loss"]).all()


@pytest.mark.two_devices
def test_two_devices_with_tpu_lengths_take_the_same_steps_as_one(compiled_lengths: tuple[int, ...], monkeypatch):
    two = train(QUESTION_ANSWERING, "mirrored")
    monkeypatch.undo()
    assert_alike(QUESTION_ANSWERING, train(QUESTION_ANSWERING, "one_device"), two)


@pytest.mark.two_devices
def test_a_run_can_be_resumed_under_any_other_strategy(tmp_path):
    """Equal bit for bit with the same number of replicas, and like one device with another number."""
    features, half = random_features(CLASSIFICATION, ROWS, longest=24), STEPS // 2

    def train_in_two_parts(first: str, second: str, rate: float) -> keras.Model:
        for number, name in enumerate((first, second)):
            trainer = make_trainer(CLASSIFICATION, name, rate)
            variables = {"model": trainer.model.variables, "optimizer": trainer.optimizer.variables}
            state = RunCheckpoints(str(tmp_path / f"{first}-{rate}"), variables, keep=1)
            state.restore_latest()
            trainer.train(features, number * half, (number + 1) * half, lambda done, loss: False)
            state.save((number + 1) * half)
        return trainer.model

    whole = make_trainer(CLASSIFICATION, "mirrored", 0.5)
    whole.train(features, 0, STEPS, lambda done, loss: False)
    assert_equal_weights(whole.model, train_in_two_parts("mirrored", "mirrored", 0.5))
    expected = train(CLASSIFICATION, "one_device")["weights"]
    found = np.concatenate([np.ravel(each) for each in train_in_two_parts("one_device", "mirrored", 0.0).get_weights()])
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
def test_one_replica_takes_exactly_the_steps_of_one_device():
    weights = []
    for name in ("one_device", "mirrored"):
        assert distribution.get_strategy(name).num_replicas_in_sync == 1
        trainer = make_trainer(CLASSIFICATION, name)
        trainer.train(random_features(CLASSIFICATION, ROWS, longest=24), 0, 3, lambda done, loss: False)
        weights.append(trainer.model.get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.core
def test_two_workers_equal_one_device(tmp_path, vocab_file: str):
    """Launches two real processes with the command. They train, evaluate and predict."""
    train_file, eval_file = (write_table(tmp_path / f"{rows}.csv", rows, rows) for rows in (21, 11))
    init = write_text(tmp_path / "config.json", CONFIG.to_json())
    command = [
        sys.executable, "-c", WITHOUT_HEAD_DROPOUT, "--task=table", "--do_train", "--do_eval", "--do_predict",
        f"--train_file={train_file}", f"--eval_file={eval_file}", f"--predict_file={eval_file}", f"--init={init}",
        f"--vocab_file={vocab_file}", "--max_seq_length=16", "--train_batch_size=5", "--num_train_epochs=2",
        "--eval_batch_size=4", "--learning_rate=1e-3",
    ]  # fmt: skip
    alone = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(ROOT)}
    launches = [("one", "one_device", alone), *(("two", "multi_worker", each) for each in worker_environments(2))]
    launches += [(name, "multi_worker", each) for name, each in zip("ab", worker_environments(2), strict=True)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": ROOT}
    processes = []
    for name, strategy, environment in launches:
        flags = [f"--output_dir={tmp_path / name}", f"--distribution_strategy={strategy}"]
        processes.append(subprocess.Popen([*command, *flags], env=environment, **pipes))
    outputs = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0, 1, 1], outputs
    assert all(re.search("--output_dir.*--worker_index", output) for output in outputs[3:])
    one, two = tmp_path / "one", tmp_path / "two"
    for expected, found in zip(*(open_model(str(each)).weights.values() for each in (one, two)), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    for name in ("results.json", "eval.jsonl"):
        assert (two / name).read_text() == (one / name).read_text()
    counts = [len((folder / "predictions_test.tsv").read_text().split()) for folder in (one, two)]
    assert counts[0] == counts[1] > 11
    losses = [sum(line["loss"] for line in read_log(str(folder), "train")) for folder in (one, two)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
