"""Exact values of a fine-tuning step: learning rates, seeds, losses and weights."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from official_bert.checkpoints.checkpoint import LoadedModel
from official_bert.finetuning import batches, training_step
from official_bert.finetuning.trainer import Trainer
from official_bert.finetuning.training_config import TrainingConfig
from official_bert.kinds.classification.model import build_classifier
from official_bert.kinds.features import Features, concatenate_rows
from official_bert.kinds.model import create_model
from official_bert.kinds.vectors.spec import VectorSpec
from official_bert.modeling.encoder import build_encoder
from official_bert.tasks.glue import GlueTask
from official_bert.tasks.options import GlueOptions
from official_bert.tokenization.casing import UNCASED
from tests.conftest import WORDS
from tests.make import VOCAB, refusal, tiny_config

SST_2 = GlueTask("sst-2", GlueOptions())


CONFIG = TrainingConfig(
    train_batch_size=4, learning_rate=1e-2, num_steps=10, steps_per_epoch=3, warmup_proportion=0.2, eval_steps=3,
    max_seq_length=16, random_seed=7,
)  # fmt: skip


def rows(count: int) -> Features:
    rng = np.random.default_rng(0)
    ids = [rng.integers(5, len(WORDS), rng.integers(3, 9)) for _ in range(count)]
    labels = rng.integers(0, 2, count).astype(np.int32)
    return concatenate_rows(ids, [np.zeros(len(each)) for each in ids], {"labels": labels}, {})


def make(**changes) -> Trainer:
    initial_model = LoadedModel(tiny_config(), {}, VOCAB, UNCASED)
    return Trainer(SST_2.head, initial_model, dataclasses.replace(CONFIG, **changes))


def test_the_rate_rises_in_the_warm_up_and_falls_to_zero():
    schedule = make().schedule
    rates = [float(schedule(step)) for step in range(11)]
    np.testing.assert_allclose(rates, [0.0, 0.005, 0.008, 0.007, 0.006, 0.005, 0.004, 0.003, 0.002, 0.001, 0.0], 1e-5)


@pytest.mark.slow
def test_layers_move_by_their_rate_and_frozen_ones_stay():
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


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["all", ".*"])
def test_a_frozen_encoder_trains_the_head_alone(pattern: str):
    trained = make(freeze=(pattern,), warmup_proportion=0.0)
    before = {each.path: each.numpy() for each in trained.model.variables}
    trained.train(rows(4), 0, 1, lambda done, loss: False)
    moved = {each.path for each in trained.model.variables if np.any(each.numpy() != before[each.path])}
    assert moved == {"sequence_classifier/kernel", "sequence_classifier/bias"}


def test_a_frozen_encoder_without_a_head_is_refused():
    initial_model = LoadedModel(tiny_config(), {}, VOCAB, UNCASED)
    config = dataclasses.replace(CONFIG, freeze=("all",))
    assert "nothing to train" in refusal(Trainer, VectorSpec(), initial_model, config)


@pytest.mark.parametrize(("replica", "seed"), [(0, 7), (1, 7), (0, 8)])
def test_dropout_s_seed_is_of_the_run_the_step_and_the_replica(replica: int, seed: int, monkeypatch):
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
    monkeypatch.setattr(training_step, "step_seed", step_seed)
    monkeypatch.setattr(training_step, "all_reduce_sum", lambda value: value)
    monkeypatch.setattr(tf.distribute, "get_replica_context", Context)
    with pytest.raises(SeenError):
        made.replica_step({"input_mask": tf.ones((1, 2), tf.int32)}, tf.zeros(1, tf.int32))
    assert received == [[seed, 5, replica, 0]]


def test_a_classifier_fits_under_a_strategy():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = build_classifier(build_encoder(tiny_config(), seed=1), 2, seed=1)
        model.compile("sgd", create_model(SST_2.head).loss(), metrics=["accuracy"], jit_compile=False)
    before, features = model.get_weights(), rows(5)
    ids = batches.padded_inputs(features, np.arange(5), 16)
    history = model.fit(ids, features.targets["labels"], batch_size=4, epochs=1, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert any(not np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
