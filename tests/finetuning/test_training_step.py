"""The fine-tuning step with micro-batches, rematerialized blocks, loss scaling, and any Keras optimizer."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.finetuning import batches
from official_bert.finetuning.loss_share import LossShare
from official_bert.finetuning.training_step import TrainingStep
from official_bert.kinds.all_kinds import SPECS
from official_bert.kinds.model import create_model
from official_bert.kinds.names import KINDS
from official_bert.modeling.encoder import build_encoder
from official_bert.optimization.finetuning_optimizer import create_bert_optimizer
from tests.finetuning.random_features import random_features
from tests.make import VOCAB, tiny_config

ROWS, LENGTH = 7, 12


def stepped(kind: str, dropout: float = 0.0, dtype: str = "float32", optimizer=None, steps: int = 3, **settings):
    """Returns the losses and weights after some steps on one batch of seven rows."""
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    config = tiny_config(initializer_range=0.2, **rates)
    head = SPECS[kind](labels=tuple("abcd"))
    model = create_model(head).build(build_encoder(config, seed=1, dtype=dtype), seed=1)
    for layer in model._flatten_layers():
        if layer.name == "head_dropout":
            layer.rate = dropout
    if optimizer is None:
        optimizer, _ = create_bert_optimizer(
            model, 2, num_steps=10, learning_rate=1e-4, warmup_proportion=0.0, layer_decay=1.0,
            scales_loss=dtype == "mixed_float16",
            # The gradient of the multiple-choice bias is only rounding, which the bias correction would turn into a
            # large step.
            adam_bias_correction=False,
        )  # fmt: skip
    share = LossShare(create_model(head).loss(), loss_weights=head.loss_weights())
    step = TrainingStep(model, optimizer, share, seed=3, **settings)
    padded = batches.pad_batch(random_features(kind, ROWS, LENGTH), np.arange(ROWS), LENGTH)
    inputs, targets = tf.nest.map_structure(tf.constant, padded)
    run = tf.function(lambda: tf.distribute.get_strategy().run(step, args=(inputs, targets))[0], autograph=False)
    losses = [float(run()) for _ in range(steps)]
    return losses, model.get_weights(), optimizer


def assert_same(one, other, tolerance: float = 2e-6):
    np.testing.assert_allclose(one[0], other[0], rtol=1e-5)
    for left, right in zip(one[1], other[1], strict=True):
        np.testing.assert_allclose(left, right, atol=tolerance)


FAST = ("classification", "tagging")


@pytest.mark.parametrize(
    "kind", [kind if kind in FAST else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_micro_batches_and_blocks_computed_again_take_the_same_steps(kind: str):
    """Seven rows in two micro-batches of four. The last row is padding."""
    assert_same(stepped(kind), stepped(kind, micro_batches=2, rematerialize=True))


@pytest.mark.slow
def test_blocks_computed_again_have_the_same_dropout():
    plain = stepped("classification", dropout=0.3)
    assert_same(plain, stepped("classification", dropout=0.3, rematerialize=True))
    # Micro-batches have different dropout masks: rows at the same place in the first and second have different masks.
    assert not np.allclose(plain[0], stepped("classification", dropout=0.3, micro_batches=2)[0], rtol=1e-3)


def test_float16_learns_by_a_scaled_loss():
    losses, weights, optimizer = stepped("classification", dtype="mixed_float16")
    np.testing.assert_allclose(losses, stepped("classification")[0], rtol=2e-2)
    assert len(optimizer.variables) == 1 + 2 * len(weights) + 2  # the number of steps, the moments, the loss scale


def test_a_step_that_overflows_leaves_the_weights_and_halves_the_factor():
    head = SPECS["regression"]()
    encoder = build_encoder(tiny_config(num_hidden_layers=1), seed=1, dtype="mixed_float16")
    model = create_model(head).build(encoder, seed=1)
    optimizer, _ = create_bert_optimizer(
        model, 1, num_steps=10, learning_rate=1e-3, warmup_proportion=0.0, layer_decay=1.0, scales_loss=True
    )
    step = TrainingStep(model, optimizer, LossShare(create_model(head).loss()), seed=0)
    padded = batches.pad_batch(random_features("regression", ROWS, LENGTH), np.arange(ROWS), LENGTH)
    inputs, targets = tf.nest.map_structure(tf.constant, padded)
    before = model.get_weights()
    optimizer.loss_scale._factor.assign(2.0**20)
    run = tf.function(lambda y: tf.distribute.get_strategy().run(step, args=(inputs, y)), autograph=False)
    run(1e4 * targets)
    assert float(optimizer.loss_scale.factor) == 2.0**19
    assert int(optimizer.iterations) == 1
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    optimizer.loss_scale._factor.assign(1.0)
    run(targets)
    assert any(not np.array_equal(one, other) for one, other in zip(before, model.get_weights(), strict=True))


def test_a_user_s_optimizer_gets_dense_gradients():
    """Keras' Adam would square the gradient rows of repeated word pieces before adding them up."""
    received = []

    class Seen(keras.optimizers.SGD):
        def apply(self, grads, trainable_variables=None):
            received.extend(grads)
            super().apply(grads, trainable_variables)

    stepped("classification", optimizer=Seen(0.1), steps=1)
    assert received
    assert not any(isinstance(gradient, tf.IndexedSlices) for gradient in received)


def test_a_weight_that_the_loss_does_not_read_stays_as_it_is():
    """A zero gradient would still let the weight decay."""
    inputs = keras.Input([None], dtype="int32", name="input_mask")
    read = keras.layers.Dense(1, name="read")
    unread = keras.layers.Dense(1, name="unread")
    values = keras.ops.sum(keras.ops.cast(inputs, "float32"), axis=1, keepdims=True)
    model = keras.Model({"input_mask": inputs}, {"read": read(values)[:, 0], "unread": unread(values)[:, 0]})
    optimizer, _ = create_bert_optimizer(
        model, 1, num_steps=10, learning_rate=0.1, warmup_proportion=0.0, layer_decay=1.0
    )

    def mean_squared_error(inputs, targets, outputs, weights):
        return tf.reduce_mean(tf.square(outputs["read"] - targets))

    step = TrainingStep(model, optimizer, LossShare(None, mean_squared_error), seed=0)
    before = [np.array(layer.kernel) for layer in (read, unread)]
    batch = {"input_mask": tf.ones([2, 3], tf.int32)}, tf.ones(2)
    tf.function(lambda: tf.distribute.get_strategy().run(step, batch), autograph=False)()
    assert not np.array_equal(before[0], read.kernel)
    np.testing.assert_array_equal(before[1], unread.kernel)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["micro-batches", "float16"])
def test_fit_and_what_it_saves_know_of_it(name: str, tmp_path):
    config = tiny_config(num_hidden_layers=1, max_position_embeddings=16)
    settings = {"dtype": "mixed_float16"} if name == "float16" else {"gradient_accumulation_steps": 3}
    model = official_bert.TextClassifier(config, VOCAB, labels=["0", "1"], **settings)
    model.compile(official_bert.BertAdamW(1e-2))
    texts, labels = ["the cat sat", "a dog ran in the sun", "walking", "mat"] * 2, [0, 1, 0, 1] * 2
    history = model.fit(texts, labels, batch_size=7, epochs=3, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    model.save(tmp_path / "model.keras")
    loaded = official_bert.TextClassifier.load(str(tmp_path / "model.keras"))
    assert loaded.get_config() == model.get_config()
    for one, other in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one, other)
