"""What a step of fine-tuning computes: rates, seeds, losses and weights, as numbers."""

import dataclasses
import subprocess
import sys
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf
from official_bert.finetuning.initial_model import InitialModel

from official_bert.errors import UserError
from official_bert.finetuning import batches, class_weights, trainer, training
from official_bert.finetuning.options import Options
from official_bert.finetuning.trainer import Trainer
from official_bert.finetuning.training_config import TrainingConfig, training_config
from official_bert.modeling import task_models
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.task_models import QUESTION_ANSWERING, build_classifier
from official_bert.tasks import task, windows
from official_bert.tasks.glue import GlueTask
from official_bert.tasks.options import GlueOptions
from tests.conftest import ROOT, WORDS

SST_2 = GlueTask("sst-2", GlueOptions())
CONFIG = TrainingConfig(
    train_batch_size=4, learning_rate=1e-2, num_steps=10, steps_per_epoch=3, warmup_proportion=0.2, eval_steps=3,
    max_seq_length=16, random_seed=7,
)  # fmt: skip


def rows(count: int) -> task.Features:
    rng = np.random.default_rng(0)
    ids = [rng.integers(5, len(WORDS), rng.integers(3, 9)) for _ in range(count)]
    labels = rng.integers(0, 2, count).astype(np.int32)
    return task.from_rows(ids, [np.zeros(len(each)) for each in ids], {"labels": labels}, {})


@pytest.fixture
def make(tiny_config: BertConfig) -> Callable[..., Trainer]:
    def make_trainer(**changes) -> Trainer:
        initial_model = InitialModel(tiny_config, "\n".join(WORDS), True, {})
        return Trainer(SST_2, initial_model, dataclasses.replace(CONFIG, **changes))

    return make_trainer


def test_the_rate_rises_in_the_warm_up_and_falls_to_zero(make: Callable[..., Trainer]):
    schedule = make().schedule
    rates = [float(schedule(step)) for step in range(11)]
    np.testing.assert_allclose(rates, [0.0, 0.005, 0.008, 0.007, 0.006, 0.005, 0.004, 0.003, 0.002, 0.001, 0.0], 1e-5)


def test_epochs_and_batches_make_the_number_of_steps():
    options = Options(task="sst-2", init="i", output_dir="o", train_batch_size=4, num_train_epochs=2.5, eval_steps=2)
    config = training_config(options, rows=9)
    assert (config.steps_per_epoch, config.num_steps, config.eval_steps) == (3, 7, 2)
    assert (config.learning_rate, config.max_seq_length) == (5e-5, 128)  # the task's
    assert training_config(dataclasses.replace(options, eval_steps=None), rows=9).eval_steps == 3


@pytest.mark.slow
def test_layers_move_by_their_rate_and_frozen_ones_stay(make: Callable[..., Trainer]):
    features = rows(4)
    moves = []
    for changes in ({}, {"layer_decay": 0.5}, {"freeze": ("layer_0_.*", ".*embeddings")}):
        trained = make(warmup_proportion=0.0, **changes)
        before = {each.path: each.numpy() for each in trained.model.variables}
        trained.train(features, 0, 1, lambda done, loss: False)
        moves.append({each.path: each.numpy() - before[each.path] for each in trained.model.variables})
    whole, decayed, frozen = moves
    for path, move in whole.items():
        layer = path.split("/")[-2]
        factor = {"layer_1": 0.5, "layer_0": 0.25}.get(layer[:7], 0.125 if "embeddings" in layer else 1.0)
        np.testing.assert_allclose(decayed[path], factor * move, rtol=1e-3, atol=1e-7, err_msg=path)
        assert np.any(frozen[path]) == (not layer.startswith("layer_0_") and not layer.endswith("embeddings")), path


@pytest.mark.parametrize(("replica", "seed"), [(0, 7), (1, 7), (0, 8)])
def test_dropout_s_seed_is_of_the_run_the_step_and_the_replica(
    replica: int, seed: int, make: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
):
    received = []

    class Context:
        replica_id_in_sync_group = replica

    class SeenError(Exception):
        pass

    def step_seed(*arguments):
        received.append([int(each) for each in arguments])
        raise SeenError

    made = make(random_seed=seed)
    made.optimizer.iterations.assign(5)
    monkeypatch.setattr(trainer, "step_seed", step_seed)
    monkeypatch.setattr(trainer.tf.distribute, "get_replica_context", Context)
    with pytest.raises(SeenError):
        made.replica_step({}, {}, tf.zeros(0))
    assert received == [[seed, 5, replica]]


def test_classes_weigh_alike_when_balanced():
    features = dataclasses.replace(rows(6), targets={"labels": np.array([0, 1, 1, 1, 1, 1], np.int32)})
    weights = class_weights.row_weights(["balanced"], SST_2, features)
    np.testing.assert_allclose(weights, [3.0, 0.6, 0.6, 0.6, 0.6, 0.6])
    np.testing.assert_allclose(class_weights.row_weights(["2", "0.5"], SST_2, features), [2, 0.5, 0.5, 0.5, 0.5, 0.5])
    assert class_weights.row_weights([], SST_2, features) is None
    with pytest.raises(UserError, match="expected balanced, or 2 numbers, one for each of 0, 1"):
        class_weights.row_weights(["2"], SST_2, features)


def test_training_stops_after_so_many_evaluations_that_are_no_better():
    assert not training.no_longer_better([0.1, 0.3], 1)
    assert training.no_longer_better([0.1, 0.3, 0.2], 1)
    assert not training.no_longer_better([0.1, 0.3, 0.2], 2)
    assert training.no_longer_better([0.1, 0.3, 0.2, 0.3], 2)  # as good is no better
    assert not training.no_longer_better([0.5, 0.4, 0.3], 0)
    assert not training.no_longer_better([], 1)


def test_the_loss_of_questions_is_the_mean_of_starts_and_ends():
    names = ("start_logits", "end_logits")
    inputs = [keras.Input((3,)) for _ in names]
    outputs = {
        name: keras.layers.Activation("linear", name=name)(each) for name, each in zip(names, inputs, strict=True)
    }
    model = keras.Model(inputs, outputs)
    model.compile("sgd", task.loss_of(QUESTION_ANSWERING), task.loss_weights_of(QUESTION_ANSWERING))
    rng = np.random.default_rng(0)
    logits = {name: rng.normal(size=(2, 3)).astype(np.float32) for name in names}
    labels = {"start_logits": np.array([0, 2], np.int32), "end_logits": np.array([1, 2], np.int32)}
    expected = 0.0
    for name in names:
        losses = np.log(np.exp(logits[name]).sum(-1)) - logits[name][np.arange(2), labels[name]]
        expected += 0.5 * losses.mean()
    assert model.evaluate([logits[name] for name in names], labels, verbose=0, return_dict=True)[
        "loss"
    ] == pytest.approx(expected, rel=1e-5)


def test_of_equal_contexts_the_longer_window_s_counts():
    # Token 3 has one token to its nearer side in both windows; the second one is longer.
    assert windows.with_most_context([(0, 5), (2, 9)], 9).tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 1]
    # Of equally long ones it is the first: token 4 has two to its nearer side in both.
    assert windows.with_most_context([(0, 7), (2, 9)], 9).tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1]


def test_a_smaller_last_batch_leaves_loss_and_accuracy_right():
    features = rows(9)
    encoded = keras.Input((None,), dtype="int32", name="input_ids")
    mask = keras.Input((None,), dtype="int32", name="input_mask")
    segments = keras.Input((None,), dtype="int32", name="segment_ids")
    x = keras.layers.Embedding(len(WORDS), 4)(encoded)
    logits = keras.layers.Dense(2)(keras.layers.GlobalAveragePooling1D()(x, mask=mask))
    model = keras.Model({"input_ids": encoded, "input_mask": mask, "segment_ids": segments}, logits)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.0), loss, metrics=["accuracy"], jit_compile=False)
    history = model.fit(batches.for_fit(features, 8, 16), verbose=0, shuffle=False).history
    found = np.stack(trainer.predict(model, features, 3, 16))
    labels = features.targets["labels"]
    assert history["accuracy"] == [pytest.approx(np.mean(found.argmax(-1) == labels))]
    losses = np.log(np.exp(found).sum(-1)) - found[np.arange(9), labels]
    assert history["loss"] == [pytest.approx(losses.mean(), rel=1e-5)]


def test_a_classifier_fits_under_a_strategy(tiny_config: BertConfig):
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = build_classifier(build_encoder(tiny_config, seed=1), 2, seed=1)
        model.compile("sgd", task.loss_of(task_models.CLASSIFICATION), metrics=["accuracy"], jit_compile=False)
    before = model.get_weights()
    history = model.fit(batches.for_fit(rows(5), 4, 16), epochs=1, verbose=0, shuffle=False).history
    assert np.isfinite(history["loss"]).all()
    assert any(not np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


@pytest.mark.slow
def test_a_classifier_fits_on_two_devices_where_one_gets_no_row_of_the_last_batch():
    code = """
import keras
import numpy as np
import tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
from official_bert.finetuning import batches, trainer
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.task_models import build_classifier
from tests.finetuning.test_trainer import rows
config = BertConfig(vocab_size=128, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
    max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
features = rows(9)
def built(rate):
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = build_classifier(build_encoder(config, seed=1), 2, rate, seed=1)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.0), loss, metrics=["accuracy"])
    return model, model.fit(batches.for_fit(features, 4, 16), verbose=0, shuffle=False).history
model, history = built(0.0)
found = np.stack(trainer.predict(model, features, 9, 16))
assert np.isclose(history["accuracy"], np.mean(found.argmax(-1) == features.targets["labels"])).all(), history
losses = np.log(np.exp(found).sum(-1)) - found[np.arange(9), features.targets["labels"]]
assert np.isclose(history["loss"], losses.mean(), rtol=1e-4).all(), (history, losses.mean())
assert np.isfinite(built(0.5)[1]["loss"]).all()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
