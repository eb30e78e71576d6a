"""The fine-tuning step with micro-batches, rematerialized blocks, loss scaling, any Keras optimizer, and vectors."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.finetuning import batches
from official_bert.finetuning.loss_share import LossShare, make_loss_share
from official_bert.finetuning.training_step import TrainingStep
from official_bert.kinds.all_kinds import SPECS
from official_bert.kinds.model import create_kind_model
from official_bert.kinds.names import KINDS, VECTORS
from official_bert.kinds.vectors.spec import VectorSpec
from official_bert.modeling.dropout import dropout_seed, step_seed
from official_bert.modeling.encoder import build_encoder
from official_bert.optimization.finetuning_optimizer import create_bert_optimizer
from official_bert.optimization.optimizers import BertAdamW, KerasAdamW, Lamb, LayerwiseAdamW
from official_bert.training.forward_pass import make_forward_pass
from tests.finetuning.conftest import random_features
from tests.make import VOCAB, slow_after, tiny_config

OPTIMIZER = {"num_steps": 10, "learning_rate": 1e-4, "warmup_proportion": 0.0, "layer_decay": 1.0}
ROWS, LENGTH = 7, 12


def make_encoder(dropout: float, dtype: str = "float32") -> keras.Model:
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return build_encoder(tiny_config(num_hidden_layers=1, initializer_range=0.2, **rates), seed=1, dtype=dtype)


def make_batch(kind: str, texts: int = 1) -> tuple:
    """Returns the inputs and targets of seven rows. Rows of vectors have several texts."""
    features = random_features(kind, ROWS, LENGTH, texts)
    return tf.nest.map_structure(tf.constant, batches.pad_batch(features, np.arange(ROWS), LENGTH))


def make_step(
    kind: str, dropout: float = 0.0, dtype: str = "float32", optimizer=None, traced: bool = False, **settings
):
    """Returns a training step, and a function that runs it on seven rows with targets times its argument."""
    head = SPECS[kind](labels=tuple("abcd"))
    model = create_kind_model(head).build(make_encoder(dropout, dtype), seed=1)
    for layer in model._flatten_layers():
        if layer.name == "head_dropout":
            layer.rate = dropout
    if optimizer is None:
        # The gradient of the multiple-choice bias is only rounding, which the bias correction would turn into a large
        # step.
        scaling = {"scales_loss": dtype == "mixed_float16", "adam_bias_correction": False}
        optimizer, _ = create_bert_optimizer(model, 1, **OPTIMIZER, **scaling)
    share = LossShare(create_kind_model(head).loss(), loss_weights=head.loss_weights())
    step = TrainingStep(model, optimizer, share, seed=3, **settings)
    inputs, targets = make_batch(kind)

    def run(factor):
        scaled = tf.nest.map_structure(lambda each: each * tf.cast(factor, each.dtype), targets)
        return tf.distribute.get_strategy().run(step, args=(inputs, scaled))[0]

    if traced:  # a few steps are faster without a graph
        run = tf.function(run, autograph=False)
    return step, lambda factor=1.0: float(run(tf.constant(factor)))


def stepped(kind: str, **settings):
    """Returns the losses of three steps, and the weights."""
    step, run = make_step(kind, **settings)
    return [run() for _ in range(3)], step.model.get_weights()


def assert_same(one, other, **tolerances):
    np.testing.assert_allclose(one[0], other[0], rtol=1e-5)
    for left, right in zip(one[1], other[1], strict=True):
        np.testing.assert_allclose(left, tf.convert_to_tensor(right), **{"rtol": 1e-7, "atol": 2e-6, **tolerances})


@pytest.mark.parametrize("kind", slow_after(1, sorted(KINDS, key="tagging".__eq__, reverse=True)))
def test_micro_batches_and_rematerialization_take_the_same_steps(kind: str):
    """Seven rows in two micro-batches of four. The last row is padding."""
    assert_same(stepped(kind), stepped(kind, traced=True, micro_batches=2, rematerialize=True))


@pytest.mark.slow
def test_rematerialized_blocks_have_the_same_dropout():
    plain = stepped("classification", dropout=0.3)
    assert_same(plain, stepped("classification", dropout=0.3, rematerialize=True))
    # Micro-batches have different dropout masks: rows at the same place in the first and second have different masks.
    assert not np.allclose(plain[0], stepped("classification", dropout=0.3, micro_batches=2)[0], rtol=1e-3)


def test_float16_scales_the_loss_and_an_overflow_only_halves_the_scale():
    step, run = make_step("regression", dtype="mixed_float16")
    np.testing.assert_allclose([run() for _ in range(3)], stepped("regression")[0], rtol=2e-2)
    before, optimizer = step.model.get_weights(), step.optimizer
    assert len(optimizer.variables) == 1 + 2 * len(before) + 2  # the number of steps, the moments, the loss scale
    optimizer.loss_scale._factor.assign(2.0**20)
    run(1e4)
    assert float(optimizer.loss_scale.factor) == 2.0**19
    assert int(optimizer.iterations) == 4
    for one, other in zip(before, step.model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    optimizer.loss_scale._factor.assign(1.0)
    run()
    assert any(not np.array_equal(one, other) for one, other in zip(before, step.model.get_weights(), strict=True))


def test_custom_optimizers_get_dense_gradients():
    """Keras' Adam would square the gradient rows of repeated word pieces before adding them up."""
    received = []

    class Seen(keras.optimizers.SGD):
        def apply(self, grads, trainable_variables=None):
            received.extend(map(type, grads))
            super().apply(grads, trainable_variables)

    make_step("classification", optimizer=Seen(0.1))[1]()
    assert received
    assert tf.IndexedSlices not in received


class PlainDescent(BertAdamW):
    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, learning_rate * gradient)


@pytest.mark.parametrize("create", [BertAdamW, LayerwiseAdamW, Lamb, KerasAdamW, PlainDescent])
def test_every_optimizer_takes_its_usual_steps_and_keeps_weights_without_a_gradient(create):
    """TensorFlow's kernel must not replace the steps. A zero gradient would still let a weight decay."""
    batch, results = ({"input_mask": tf.constant([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])}, tf.constant([1.0, -1.0])), []
    settings = {"factors": {"read/kernel": 0.25}} if create is LayerwiseAdamW else {"use_ema": True}
    loss = LossShare(None, lambda _, y, outputs, __: tf.reduce_mean(tf.square(outputs["read"][:, 0] - y)))
    for uses_kernel in (True, False):
        symbol = keras.Input([3], name="input_mask")
        layers = [keras.layers.Dense(1, name=name, kernel_constraint="unit_norm") for name in ("read", "unread")]
        model = keras.Model({"input_mask": symbol}, {layer.name: layer(symbol) for layer in layers})
        model.set_weights([np.full(each.shape, 0.5) for each in model.weights])
        optimizer = create(0.1, **settings)
        step = TrainingStep(model, optimizer, loss, seed=0)
        optimizer.uses_kernel &= uses_kernel
        for _ in range(2):
            tf.distribute.get_strategy().run(step, batch)
        np.testing.assert_array_equal(layers[1].kernel, np.full((3, 1), 0.5))
        results.append(list(map(np.asarray, (*model.weights, *optimizer.variables))))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"gradient_accumulation_steps": 3}, {"dtype": "mixed_float16"}], ids=str)
def test_memory_settings_work_in_fit_and_are_saved(settings: dict, tmp_path):
    config = tiny_config(num_hidden_layers=1, max_position_embeddings=16)
    model = official_bert.TextClassifier(config, VOCAB, labels=["0", "1"], **settings)
    model.compile(official_bert.BertAdamW(1e-2))
    texts, labels = ["the cat sat", "a dog ran in the sun", "walking", "mat"] * 2, [0, 1, 0, 1] * 2
    assert np.isfinite(model.fit(texts, labels, batch_size=7, epochs=3, verbose=0).history["loss"]).all()
    model.save(tmp_path / "model.keras")
    loaded = official_bert.TextClassifier.load(str(tmp_path / "model.keras"))
    assert loaded.get_config() == model.get_config()
    for one, other in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one, other)


def gradients_of_step(head: VectorSpec, micro_batches: int, dropout: float = 0.0):
    """Returns the loss of a step, the gradients (what gradient descent with rate 1 subtracts), and the model."""
    learner = create_kind_model(head).answering_model(make_encoder(dropout))
    share = make_loss_share(create_kind_model(head).loss())
    step = TrainingStep(learner, keras.optimizers.SGD(1.0), share, seed=3, micro_batches=micro_batches)
    before = learner.get_weights()
    run = tf.distribute.get_strategy().run
    if micro_batches > 1:  # otherwise tracing a graph takes longer than the step
        run = tf.function(run, autograph=False)
    loss = float(run(step, make_batch(VECTORS, 2 if head.objective == "cosine" else 3))[0])
    gradients = [one - other for one, other in zip(before, learner.get_weights(), strict=True)]
    learner.set_weights(before)
    return loss, gradients, learner


def gradients_at_once(head: VectorSpec, micro_batches: int, learner: keras.Model):
    """Returns the loss and its gradients if all forward passes are differentiated together."""
    inputs, targets = make_batch(VECTORS, 2 if head.objective == "cosine" else 3)
    rows = -(-ROWS // micro_batches)
    with tf.GradientTape() as tape:
        outputs = []
        for number in range(micro_batches):
            part = {name: each[number * rows : (number + 1) * rows] for name, each in inputs.items()}
            missing = rows - part["input_ids"].shape[0]
            part = {name: tf.pad(each, [[0, missing], [0, 0], [0, 0]]) for name, each in part.items()}
            with dropout_seed(step_seed(3, 0, 0, number)):
                outputs.append(make_forward_pass(learner)(part, training=True)[: rows - missing])
        loss = tf.reduce_mean(create_kind_model(head).loss().call(targets, tf.concat(outputs, 0)))
    return float(loss), tape.gradient(loss, learner.trainable_variables)


def test_rows_of_several_texts_have_dropout_in_training_only():
    learner = create_kind_model(VectorSpec()).answering_model(make_encoder(0.3))
    forward, (inputs, _) = make_forward_pass(learner), make_batch(VECTORS, 3)
    outputs = {training: np.asarray(forward(inputs, training=training)) for training in (False, True)}
    assert outputs[False].shape == outputs[True].shape
    assert not np.allclose(outputs[False], outputs[True])
    np.testing.assert_array_equal(forward(inputs), outputs[False])


HEADS = [
    *((VectorSpec(normalize=True), count) for count in (1, 3)),
    (VectorSpec(objective="cosine", dimensions=(4,)), 2),
    (VectorSpec(objective="triplet", pooling="max"), 2),
    (VectorSpec(pooling="cls", dimensions=(4, 2)), 2),
    (VectorSpec(pooling="pooled"), 2),
]


@pytest.mark.parametrize(("head", "micro_batches"), slow_after(2, HEADS))
def test_gradients_of_batchwise_losses_equal_those_of_the_whole_batch(head: VectorSpec, micro_batches: int):
    """With micro-batches, the vectors' gradients are kept between two forward passes with the same dropout."""
    found = gradients_of_step(head, micro_batches, dropout=0.3)
    assert_same(found, gradients_at_once(head, micro_batches, found[2]), rtol=1e-5, atol=5e-6)
