"""Training steps of embedding models: the whole batch at once, in micro-batches, and on two devices."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.checkpoints.checkpoint import LoadedModel
from official_bert.finetuning import batches
from official_bert.finetuning.loss_share import make_loss_share
from official_bert.finetuning.trainer import Trainer
from official_bert.finetuning.training_config import TrainingConfig
from official_bert.finetuning.training_step import TrainingStep
from official_bert.kinds.features import Features, concatenate_rows
from official_bert.kinds.model import create_model
from official_bert.kinds.vectors.spec import VectorSpec
from official_bert.modeling.config import BertConfig
from official_bert.modeling.dropout import dropout_seed, step_seed
from official_bert.modeling.encoder import build_encoder
from official_bert.optimization import distribution
from official_bert.training.forward_pass import make_forward_pass
from tests.conftest import WORDS
from tests.make import VOCAB, tiny_config
from tests.processes import run_marked_tests

ROWS, LENGTH = 7, 12
RANKING = VectorSpec(normalize=True)


def make_config(dropout: float) -> BertConfig:
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return tiny_config(initializer_range=0.2, **rates)


def build_features(texts: int, rows: int = ROWS) -> Features:
    rng = np.random.default_rng(0)
    ids = [rng.integers(5, len(WORDS), rng.integers(3, LENGTH)) for _ in range(rows * texts)]
    labels = rng.random(rows).astype(np.float32)
    return concatenate_rows(ids, [np.zeros(len(each)) for each in ids], {"labels": labels}, {}, texts)


def make_batch(texts: int) -> tuple:
    return tf.nest.map_structure(tf.constant, batches.pad_batch(build_features(texts), np.arange(ROWS), LENGTH))


def gradients_of_step(head: VectorSpec, texts: int, dropout: float, micro_batches: int):
    """Returns the loss of a step, the gradients (what gradient descent with rate 1 subtracts), and the model."""
    learner = create_model(head).answering_model(build_encoder(make_config(dropout), seed=1))
    optimizer, share = keras.optimizers.SGD(1.0), make_loss_share(create_model(head).loss())
    step = TrainingStep(learner, optimizer, share, seed=3, micro_batches=micro_batches)
    before = [variable.numpy() for variable in learner.trainable_variables]
    inputs, targets = make_batch(texts)
    loss = tf.function(lambda: tf.distribute.get_strategy().run(step, args=(inputs, targets))[0], autograph=False)()
    after = [variable.numpy() for variable in learner.trainable_variables]
    for variable, values in zip(learner.trainable_variables, before, strict=True):
        variable.assign(values)
    return float(loss), [one - other for one, other in zip(before, after, strict=True)], learner


def gradients_at_once(head: VectorSpec, learner: keras.Model, texts: int, micro_batches: int):
    """Returns the loss and its gradients if all forward passes are differentiated together."""
    inputs, targets = make_batch(texts)
    rows = -(-ROWS // micro_batches)
    with tf.GradientTape() as tape:
        outputs = []
        for number in range(micro_batches):
            part = {name: each[number * rows : (number + 1) * rows] for name, each in inputs.items()}
            missing = rows - part["input_ids"].shape[0]
            part = {name: tf.pad(each, [[0, missing], [0, 0], [0, 0]]) for name, each in part.items()}
            with dropout_seed(step_seed(3, 0, 0, number)):
                outputs.append(make_forward_pass(learner)(part, training=True)[: rows - missing])
        loss = tf.reduce_mean(create_model(head).loss().call(targets, tf.concat(outputs, 0)))
    return float(loss), tape.gradient(loss, learner.trainable_variables)


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_are_those_of_the_whole_batch(dropout: float, micro_batches: int):
    """With micro-batches, the vectors' gradients are kept between two forward passes with the same dropout."""
    loss, gradients, learner = gradients_of_step(RANKING, 3, dropout, micro_batches)
    expected_loss, expected = gradients_at_once(RANKING, learner, 3, micro_batches)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    for ours, theirs, variable in zip(gradients, expected, learner.trainable_variables, strict=True):
        np.testing.assert_allclose(ours, tf.convert_to_tensor(theirs), rtol=1e-5, atol=5e-6, err_msg=variable.path)


@pytest.mark.parametrize(
    "head",
    [
        VectorSpec(objective="cosine", dimensions=(4,)),
        pytest.param(VectorSpec(objective="triplet", pooling="max"), marks=pytest.mark.slow),
        pytest.param(VectorSpec(pooling="cls", dimensions=(4, 2)), marks=pytest.mark.slow),
        pytest.param(VectorSpec(pooling="pooled"), marks=pytest.mark.slow),
    ],
    ids=lambda head: f"{head.objective}-{head.pooling}",
)
def test_micro_batches_have_the_gradients_of_the_whole_batch(head: VectorSpec):
    texts = 3 if head.objective == "triplet" else 2
    whole, parts = (gradients_of_step(head, texts, 0.0, micro_batches) for micro_batches in (1, 2))
    assert parts[0] == pytest.approx(whole[0], rel=1e-5)
    for ours, theirs in zip(parts[1], whole[1], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=5e-6)


def trained(strategy: tf.distribute.Strategy, micro_batches: int = 1) -> tuple:
    """Returns losses, weights and vectors after some steps. The last batch of an epoch is smaller."""
    config = TrainingConfig(
        train_batch_size=5, learning_rate=1e-4, num_steps=6, steps_per_epoch=3, warmup_proportion=0.1, eval_steps=6,
        max_seq_length=LENGTH, random_seed=7, micro_batches=micro_batches,
    )  # fmt: skip
    trainer = Trainer(RANKING, LoadedModel(make_config(0.0), {}, VOCAB, True), config, strategy=strategy)
    features = build_features(2, 13)
    losses: list[float] = []
    trainer.train(features, 0, 6, lambda done, mean: bool(losses.append(mean * done)))
    vectors = np.stack(trainer.predict(features, 4))
    return np.diff([0.0, *losses]), np.concatenate([np.ravel(each) for each in trainer.model.get_weights()]), vectors


@pytest.mark.slow
@pytest.mark.core
def test_the_negatives_are_those_of_all_replicas():
    print(run_marked_tests(2, __file__))


@pytest.mark.two_devices
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_two_devices_take_the_steps_of_one(micro_batches: int):
    one = trained(distribution.get_strategy("one_device"))
    two = trained(distribution.get_strategy("mirrored"), micro_batches)
    for ours, theirs, tolerance in zip(two, one, (1e-5, 2e-6, 1e-5), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=tolerance)
