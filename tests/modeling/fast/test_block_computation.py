"""Blocks that are compiled, rematerialized or computed for one position only give the model's outputs and gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.kinds.classification.model import build_classifier
from official_bert.kinds.multiple_choice.model import build_multiple_choice_model
from official_bert.kinds.names import CLASSIFICATION, MULTIPLE_CHOICE
from official_bert.kinds.question_answering.model import build_span_predictor
from official_bert.kinds.tagging.model import build_token_tagger
from official_bert.modeling import dropout, head_input, heads, layer_names, pretraining_model
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.fast.compiled_blocks import compile_blocks
from official_bert.modeling.fast.flat_blocks import flatten_blocks
from official_bert.modeling.fast.last_block import skip_unread_positions
from official_bert.modeling.fast.rematerialization import rematerialized
from official_bert.optimization import distribution, freezing
from tests.export.exported_models import CHOICES, CONFIG, build_model, random_features, scattered
from tests.make import assert_rejected, build_task_model, tiny_config
from tests.modeling.small_models import inputs_of_encoder, random_batch, randomize_weights


def training_function(model, call):
    """Returns a training step that, like the real one, runs the backward pass outside the dropout seed's context."""

    def compute(batch, seed):
        with tf.GradientTape() as tape, dropout.dropout_seed(seed):
            outputs = keras.tree.flatten(call(batch, training=True))
            loss = tf.add_n([tf.reduce_sum(tf.square(output)) for output in outputs])
        return [tf.convert_to_tensor(each) for each in tape.gradient(loss, model.trainable_variables)]

    return compute


def classifier(**changes) -> keras.Model:
    return build_classifier(build_encoder(tiny_config(**changes), seed=0), 3)


def multiple_choice() -> keras.Model:
    return build_multiple_choice_model(build_encoder(tiny_config(num_hidden_layers=1), seed=0), 3)


def causal_first_position() -> keras.Model:
    encoder = build_encoder(tiny_config(num_hidden_layers=1, causal_attention=True), seed=0)
    first = heads.FirstPosition(name=layer_names.FIRST_POSITION)(encoder.output["sequence_output"])
    return keras.Model(encoder.input, keras.layers.Dense(3)(first))


def causal_tagger() -> keras.Model:
    encoder = build_encoder(tiny_config(causal_attention=True), return_all_layers=True, seed=0)
    blocks = keras.layers.Add()(encoder.output["encoder_outputs"])
    return keras.Model(encoder.input, keras.layers.Dense(3)(blocks))


def frozen_encoder() -> keras.Model:
    encoder = build_encoder(tiny_config(), seed=0)
    freezing.freeze(encoder, ["layer_0_.*"])
    assert len(encoder.trainable_variables) == len(encoder.variables) - 16
    return encoder


def make_batch(model: keras.Model) -> dict[str, tf.Tensor]:
    """Returns inputs of a model. The texts are the choices of one example if the model compares choices."""
    batch = {name: tf.constant(each) for name, each in random_batch(tiny_config(), 0).items() if name in model.input}
    has_choices = len(model.input["input_ids"].shape) == 3
    return {name: values[None] for name, values in batch.items()} if has_choices else batch


@pytest.mark.parametrize("build", [multiple_choice, causal_tagger, frozen_encoder])
def test_gradients_are_the_same_with_dropout(build):
    model = randomize_weights(build(), 0)
    call, arguments = rematerialized(model), (make_batch(model), tf.constant([3, 4]))
    assert call is not model
    run = distribution.get_strategy("one_device").run
    expected, found = (run(training_function(model, each), args=arguments) for each in (model, call))
    greatest = max(np.abs(each).max() for each in expected)
    for variable, one, other in zip(model.trainable_variables, expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6 * greatest, err_msg=variable.path)


def test_outputs_are_the_same_in_and_out_of_training():
    model = randomize_weights(pretraining_model.build_pretraining_model(tiny_config()), 0)
    batch = make_batch(model)
    still, call = model(batch), rematerialized(model)
    for training in (False, True):
        with dropout.dropout_seed([3, 4]):
            expected, found = model(batch, training=training), call(batch, training=training)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)
            # Outputs in training differ, which proves that the comparison covers the dropout masks.
            assert np.array_equal(value, still[name]) != training
    for name, value in compile_blocks(model)(batch).items():
        np.testing.assert_array_equal(value, still[name])


def test_rematerialization_without_a_seed_has_the_same_dropout():
    encoder = randomize_weights(build_encoder(tiny_config(), seed=0), 0)
    call = rematerialized(encoder)
    batch = inputs_of_encoder(random_batch(tiny_config(), 0))
    gamma, bias = encoder.get_layer("layer_1_output_layer_norm").variables
    with tf.GradientTape() as tape:
        output = call(batch, training=True)["sequence_output"]
        loss = tf.reduce_sum(output * output)
    # The output is beta + gamma * x, so its gradient with respect to gamma shows which x was recomputed.
    found = tape.gradient(loss, gamma.value)
    x = (output.numpy() - np.asarray(bias)) / np.asarray(gamma)
    np.testing.assert_allclose(found, (2 * output.numpy() * x).sum(axis=(0, 1)), rtol=1e-3)


@pytest.mark.slow
def test_the_other_blocks_can_be_rematerialized():
    """Of three blocks, the first two compute attention twice, and the last computes it once, for one position."""
    model = classifier(num_hidden_layers=3)
    batch = make_batch(model)
    call = skip_unread_positions(model, rematerialize=True)
    compute = tf.function(training_function(model, call), autograph=False)
    operations = compute.get_concrete_function(batch, tf.constant([3, 4])).graph.get_operations()
    softmaxes = [operation.outputs[0].shape[2] for operation in operations if operation.type == "Softmax"]
    assert sorted(softmaxes) == [1, *[batch["input_ids"].shape[1]] * 4]


@pytest.mark.parametrize("build", [classifier, multiple_choice, causal_first_position])
def test_outside_of_training_the_last_block_gives_the_logits_of_the_model(build):
    model = randomize_weights(build(), 0)
    batch = make_batch(model)
    for rematerialize in (False, True):
        call = skip_unread_positions(model, rematerialize)
        assert call is not model
        np.testing.assert_allclose(call(batch), model(batch), rtol=1e-5, atol=1e-6)


def test_models_that_read_other_positions_keep_the_complete_last_block():
    sizes = {"num_hidden_layers": 1}
    encoder = build_encoder(tiny_config(**sizes))
    causal = classifier(**sizes, causal_attention=True)
    fast, regularized = classifier(**sizes), classifier(**sizes)
    regularized.get_layer("layer_0_intermediate").activity_regularizer = keras.regularizers.L2()
    mine = type("Mine", (keras.Model,), {"call": lambda self, inputs, training=False: 0})(fast.input, fast.output)
    assert_rejected(("Mine", "rematerialize=True"), skip_unread_positions, mine, rematerialize=True)
    for model in (encoder, build_token_tagger(encoder, 3), build_span_predictor(encoder), causal, mine, regularized):
        assert skip_unread_positions(model) is model
    model = build_task_model(CLASSIFICATION, encoder, 3, head_input=head_input.HeadInput("embeddings", 2))
    assert rematerialized(model) is model  # it has no blocks


FEATURES = random_features(3, 11)
OTHER_SIZES = {"hidden_act": "relu", "layer_norm_eps": 0.1, "num_hidden_layers": 1}


@pytest.mark.parametrize("changes", [{"causal_attention": True}, OTHER_SIZES])
def test_flat_blocks_have_the_outputs_of_the_model(changes):
    encoder = scattered(build_encoder(tiny_config(**changes), return_all_layers=True, seed=1))
    without_pooler = keras.Model(encoder.input, {"sequence_output": encoder.output["sequence_output"]})
    sum_of_blocks = keras.Model(encoder.input, {"sum": keras.layers.Add()(encoder.output["encoder_outputs"] * 2)})
    for model in (encoder, without_pooler, sum_of_blocks):
        expected, found = model(FEATURES), flatten_blocks(model)(FEATURES)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=5e-6, err_msg=name)


def test_models_with_nested_or_other_blocks_are_not_flattened():
    model, features = build_model(MULTIPLE_CHOICE), random_features(2, CHOICES, 7)
    np.testing.assert_array_equal(flatten_blocks(model)(features), model(features))
    model = build_task_model(CLASSIFICATION, build_encoder(CONFIG, seed=1, dtype="mixed_bfloat16"), 3)
    np.testing.assert_array_equal(flatten_blocks(model)(FEATURES), model(FEATURES))


def test_flat_blocks_have_fewer_operations_and_no_transposes():
    encoder = build_encoder(tiny_config(num_hidden_layers=1), seed=1)
    model = keras.Model(encoder.input, encoder.output["sequence_output"])
    flat = trace_operations(flatten_blocks(model), model)
    assert "Transpose" not in flat
    assert len(flat) < 0.7 * len(trace_operations(model, model))


def trace_operations(function, model: keras.Model) -> list[str]:
    """Returns the operations in the graph of a function of the model's inputs."""
    features = dict.fromkeys(model.input, tf.TensorSpec([None, None], tf.int32))
    graph = tf.function(lambda features: function(features), autograph=False).get_concrete_function(features).graph
    return [operation.type for operation in graph.get_operations() if operation.type != "Const"]
