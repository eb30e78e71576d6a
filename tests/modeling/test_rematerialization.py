import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.modeling import task_models
from official_bert.modeling.config import BertConfig
from official_bert.modeling.dropout import dropout_seed
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.head_input import HeadInput
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.modeling.rematerialization import rematerialized
from official_bert.modeling.task_models import CLASSIFICATION, KINDS, MULTIPLE_CHOICE, QUESTION_ANSWERING, TAGGING
from official_bert.optimization import distribution
from official_bert.optimization.freezing import freeze
from tests.modeling.small_models import inputs_of_encoder, random_batch, with_random_weights


def gradients(model, call, batch, jit_compile: bool = False) -> list[np.ndarray]:
    """As a training step computes them: the backward pass is outside of the dropout seed's context."""

    @tf.function(jit_compile=jit_compile)
    def compute(batch, seed):
        with tf.GradientTape() as tape, dropout_seed(seed):
            outputs = call(batch, training=True)
            loss = tf.add_n([tf.reduce_sum(tf.square(output)) for output in keras.tree.flatten(outputs)])
        return [tf.convert_to_tensor(each) for each in tape.gradient(loss, model.trainable_variables)]

    strategy = distribution.get_strategy("one_device")
    features = {name: tf.constant(values) for name, values in batch.items()}
    return [each.numpy() for each in strategy.run(compute, args=(features, tf.constant([3, 4])))]


def assert_same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    greatest = max(np.abs(each).max() for each in expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6 * greatest)


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_gradients_are_the_same_with_dropout(tiny_config: BertConfig, jit_compile: bool):
    config = dataclasses.replace(tiny_config, num_hidden_layers=1 if jit_compile else 2)  # XLA compiles for long
    model = with_random_weights(build_pretraining_model(config, seed=0), 0)
    batch = random_batch(config, 0)
    expected = gradients(model, model, batch, jit_compile)
    assert_same(gradients(model, rematerialized(model), batch, jit_compile), expected)
    # Without dropout they are others, so that equal masks have been tested.
    still = gradients(model, lambda batch, training: model(batch, training=False), batch)
    assert max(np.abs(one - other).max() for one, other in zip(still, expected, strict=True)) > 0.1


@pytest.mark.parametrize(
    "kind", [CLASSIFICATION, TAGGING, QUESTION_ANSWERING, MULTIPLE_CHOICE, "tagging above both blocks"]
)
def test_gradients_of_every_task_are_the_same_with_dropout(tiny_config: BertConfig, kind: str):
    config = dataclasses.replace(tiny_config, num_hidden_layers=1 if kind in KINDS else 2)
    encoder = build_encoder(config, return_all_layers=True, seed=0)
    if kind in KINDS:
        model = task_models.build(kind, encoder, num_labels=3, num_choices=3)
    else:
        blocks = keras.layers.Add()(encoder.output["encoder_outputs"])
        model = keras.Model(encoder.input, keras.layers.Dense(3)(blocks))
    model = with_random_weights(model, 0)
    batch = inputs_of_encoder(random_batch(config, 0))
    if kind == MULTIPLE_CHOICE:
        batch = {name: values[None] for name, values in batch.items()}
    call = rematerialized(model)
    assert call is not model
    assert_same(gradients(model, call, batch), gradients(model, model, batch))


def test_a_model_without_blocks_is_returned_as_it_is(tiny_config: BertConfig):
    model = task_models.build(CLASSIFICATION, build_encoder(tiny_config), 3, head_input=HeadInput("embeddings", 2))
    assert rematerialized(model) is model


def test_outputs_are_the_same_in_and_out_of_training(tiny_config: BertConfig):
    model = build_pretraining_model(tiny_config, seed=0)
    batch = random_batch(tiny_config, 0)
    for training in (False, True):
        with dropout_seed([3, 4]):
            expected, found = model(batch, training=training), rematerialized(model)(batch, training=training)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)


def test_backward_pass_computes_blocks_again_and_reads_nothing_of_their_insides(tiny_config: BertConfig):
    model = build_pretraining_model(tiny_config, seed=0)
    call = rematerialized(model)
    names: set[str] = set()

    @tf.function
    def compute(batch):
        with tf.GradientTape() as tape, dropout_seed(tf.constant([3, 4])):
            loss = tf.add_n([tf.reduce_sum(output) for output in call(batch, training=True).values()])
        names.update(operation.name for operation in tf.compat.v1.get_default_graph().get_operations())
        return [tf.convert_to_tensor(each) for each in tape.gradient(loss, model.trainable_variables)]

    batch = {name: tf.constant(values) for name, values in random_batch(tiny_config, 0).items()}
    graph = compute.get_concrete_function(batch).graph
    softmaxes = [operation for operation in graph.get_operations() if operation.type == "Softmax"]
    assert len(softmaxes) == 2 * tiny_config.num_hidden_layers
    inputs = [
        tensor for operation in graph.get_operations() if operation.name not in names for tensor in operation.inputs
    ]
    read = {tensor.op.name for tensor in inputs if tensor.dtype != tf.resource} & names
    assert read
    assert not [name for name in read if "probabilities" in name or "intermediate" in name]


def test_frozen_layers_and_a_bare_encoder_are_rematerialized_too(tiny_config: BertConfig):
    encoder = with_random_weights(build_encoder(tiny_config, seed=0), 0)
    freeze(encoder, ["layer_0_.*"])
    batch = inputs_of_encoder(random_batch(tiny_config, 0))
    expected = gradients(encoder, encoder, batch)
    assert len(expected) == len(encoder.trainable_variables) == len(encoder.variables) - 16
    assert_same(gradients(encoder, rematerialized(encoder), batch), expected)


def test_without_a_seed_the_second_computation_drops_the_same(tiny_config: BertConfig):
    encoder = with_random_weights(build_encoder(tiny_config, seed=0), 0)
    call = rematerialized(encoder)
    batch = inputs_of_encoder(random_batch(tiny_config, 0))
    bias = encoder.get_layer("layer_1_output_layer_norm").variables[1]
    gamma = encoder.get_layer("layer_1_output_layer_norm").variables[0]
    with tf.GradientTape() as tape:
        output = call(batch, training=True)["sequence_output"]
        loss = tf.reduce_sum(output * output)
    # beta + gamma * x is the output, so that its gradient by gamma tells which x was computed again.
    found = tape.gradient(loss, gamma.value)
    x = (output.numpy() - np.asarray(bias)) / np.asarray(gamma)
    np.testing.assert_allclose(found, (2 * output.numpy() * x).sum(axis=(0, 1)), rtol=1e-3)
