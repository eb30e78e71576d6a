"""Blocks that are compiled, rematerialized or computed for one position only give the model's outputs and gradients."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.data.packing import spread_over_rows
from official_bert.kinds.classification.model import build_classifier
from official_bert.kinds.multiple_choice.model import build_multiple_choice_model
from official_bert.kinds.names import CLASSIFICATION, KINDS, MULTIPLE_CHOICE, QUESTION_ANSWERING, TAGGING
from official_bert.kinds.question_answering.model import build_span_predictor
from official_bert.kinds.tagging.model import build_token_tagger
from official_bert.modeling.config import BertConfig
from official_bert.modeling.dropout import dropout_seed
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.fast.compiled_blocks import compile_blocks
from official_bert.modeling.fast.last_block import skip_unread_positions
from official_bert.modeling.fast.rematerialization import rematerialized
from official_bert.modeling.head_input import HeadInput
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.optimization import distribution
from official_bert.optimization.freezing import freeze
from official_bert.pretraining.losses import (
    compute_mean_losses,
    compute_pretraining_sums,
    factored_masked_lm_losses,
    masked_lm_losses,
)
from tests.conftest import slow_after
from tests.make import build_task_model
from tests.modeling.small_models import inputs_of_encoder, random_batch, randomize_weights


def sum_of_squares(outputs) -> tf.Tensor:
    return tf.add_n([tf.reduce_sum(tf.square(output)) for output in keras.tree.flatten(outputs)])


def training_function(model, call, compute_loss, jit_compile: bool = False):
    """Returns a training step that, like the real one, runs the backward pass outside the dropout seed's context."""

    @tf.function(jit_compile=jit_compile, autograph=False)
    def compute(batch, seed):
        with tf.GradientTape() as tape, dropout_seed(seed):
            outputs = call(batch, training=True)
            loss = compute_loss(outputs)
        return outputs, [tf.convert_to_tensor(each) for each in tape.gradient(loss, model.trainable_variables)]

    return compute


def outputs_and_gradients(model, call, batch, compute_loss=sum_of_squares, jit_compile: bool = False):
    compute = training_function(model, call, compute_loss, jit_compile)
    features = {name: tf.constant(values) for name, values in batch.items()}
    outputs, gradients = distribution.get_strategy("one_device").run(compute, args=(features, tf.constant([3, 4])))
    paths = [variable.path for variable in model.trainable_variables]
    return outputs, {path: gradient.numpy() for path, gradient in zip(paths, gradients, strict=True)}


def gradients(*arguments) -> dict[str, np.ndarray]:
    return outputs_and_gradients(*arguments)[1]


def trace_operations(model, call, batch, compute_loss=sum_of_squares) -> list[tf.Operation]:
    """Returns the operations in the graph of a training step."""
    compute = training_function(model, call, compute_loss)
    return compute.get_concrete_function(batch, tf.constant([3, 4])).graph.get_operations()


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float = 1e-5) -> None:
    greatest = max(np.abs(each).max() for each in expected.values())
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, rtol=tolerance, atol=tolerance / 10 * greatest, err_msg=path)


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_gradients_are_the_same_with_dropout(tiny_config: BertConfig, jit_compile: bool):
    config = dataclasses.replace(tiny_config, num_hidden_layers=1 if jit_compile else 2)  # XLA compilation is slow
    model = randomize_weights(build_pretraining_model(config, seed=0), 0)
    batch = random_batch(config, 0)
    expected = gradients(model, model, batch, sum_of_squares, jit_compile)
    assert_same(gradients(model, rematerialized(model), batch, sum_of_squares, jit_compile), expected)
    # Gradients without dropout differ, which proves that the comparison covers the dropout masks.
    still = gradients(model, lambda batch, training: model(batch, training=False), batch)
    assert max(np.abs(still[path] - value).max() for path, value in expected.items()) > 0.1


@pytest.mark.parametrize(
    "kind", [CLASSIFICATION, TAGGING, QUESTION_ANSWERING, MULTIPLE_CHOICE, "tagging above both blocks"]
)
def test_gradients_of_every_task_are_the_same_with_dropout(tiny_config: BertConfig, kind: str):
    config = dataclasses.replace(tiny_config, num_hidden_layers=1 if kind in KINDS else 2)
    encoder = build_encoder(config, return_all_layers=True, seed=0)
    if kind in KINDS:
        model = build_task_model(kind, encoder, num_labels=3, num_choices=3)
    else:
        blocks = keras.layers.Add()(encoder.output["encoder_outputs"])
        model = keras.Model(encoder.input, keras.layers.Dense(3)(blocks))
    model = randomize_weights(model, 0)
    batch = inputs_of_encoder(random_batch(config, 0))
    if kind == MULTIPLE_CHOICE:
        batch = {name: values[None] for name, values in batch.items()}
    call = rematerialized(model)
    assert call is not model
    assert_same(gradients(model, call, batch), gradients(model, model, batch))


def test_a_model_without_blocks_is_returned_as_it_is(tiny_config: BertConfig):
    model = build_task_model(CLASSIFICATION, build_encoder(tiny_config), 3, head_input=HeadInput("embeddings", 2))
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
    names: set[str] = set()

    def compute_loss(outputs) -> tf.Tensor:
        loss = sum_of_squares(outputs)
        names.update(operation.name for operation in loss.graph.get_operations())
        return loss

    batch = {name: tf.constant(values) for name, values in random_batch(tiny_config, 0).items()}
    operations = trace_operations(model, rematerialized(model), batch, compute_loss)
    softmaxes = [operation for operation in operations if operation.type == "Softmax"]
    assert len(softmaxes) == 2 * tiny_config.num_hidden_layers
    inputs = [tensor for operation in operations if operation.name not in names for tensor in operation.inputs]
    read = {tensor.op.name for tensor in inputs if tensor.dtype != tf.resource} & names
    assert read
    assert not [name for name in read if "probabilities" in name or "intermediate" in name]


def test_frozen_layers_and_a_bare_encoder_are_rematerialized_too(tiny_config: BertConfig):
    encoder = randomize_weights(build_encoder(tiny_config, seed=0), 0)
    freeze(encoder, ["layer_0_.*"])
    batch = inputs_of_encoder(random_batch(tiny_config, 0))
    expected = gradients(encoder, encoder, batch)
    assert len(expected) == len(encoder.trainable_variables) == len(encoder.variables) - 16
    assert_same(gradients(encoder, rematerialized(encoder), batch), expected)


def test_without_a_seed_the_second_computation_drops_the_same(tiny_config: BertConfig):
    encoder = randomize_weights(build_encoder(tiny_config, seed=0), 0)
    call = rematerialized(encoder)
    batch = inputs_of_encoder(random_batch(tiny_config, 0))
    bias = encoder.get_layer("layer_1_output_layer_norm").variables[1]
    gamma = encoder.get_layer("layer_1_output_layer_norm").variables[0]
    with tf.GradientTape() as tape:
        output = call(batch, training=True)["sequence_output"]
        loss = tf.reduce_sum(output * output)
    # The output is beta + gamma * x, so its gradient with respect to gamma shows which x was recomputed.
    found = tape.gradient(loss, gamma.value)
    x = (output.numpy() - np.asarray(bias)) / np.asarray(gamma)
    np.testing.assert_allclose(found, (2 * output.numpy() * x).sum(axis=(0, 1)), rtol=1e-3)


def sums_and_gradients(model, call, batch, of_masked_lm):
    def compute_sums(batch, training: bool) -> dict[str, tf.Tensor]:
        outputs = call({name: batch[name] for name in model.input}, training=training)
        return compute_pretraining_sums(outputs, batch, of_masked_lm)

    def compute_loss(sums: dict[str, tf.Tensor]) -> tf.Tensor:
        return tf.add(*compute_mean_losses(sums, sums["masked_lm_count"], sums["next_sentence_count"]))

    return outputs_and_gradients(model, compute_sums, batch, compute_loss)


@pytest.mark.parametrize(
    "kind", ["plain", pytest.param("causal", marks=pytest.mark.slow), pytest.param("packed", marks=pytest.mark.slow)]
)
def test_compiled_blocks_have_the_losses_and_gradients_of_the_model_with_dropout(tiny_config: BertConfig, kind: str):
    config = dataclasses.replace(
        tiny_config, num_hidden_layers=2, hidden_dropout_prob=0.2, layer_norm_eps=0.1, causal_attention=kind == "causal"
    )
    model = randomize_weights(build_pretraining_model(config, packed=kind == "packed"), 0)
    rng = np.random.default_rng(1)
    batch = {
        **random_batch(config, 0),
        "masked_lm_ids": rng.integers(0, config.vocab_size, (3, 4)).astype("int32"),
        "masked_lm_weights": np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], "float32"),
        "next_sentence_labels": np.array([[0], [1], [1]], "int32"),
    }
    if kind == "packed":
        batch = {name: np.array(values) for name, values in spread_over_rows(batch).items()}
    expected_sums, expected = sums_and_gradients(model, model, batch, masked_lm_losses)
    sums, gradients = sums_and_gradients(model, compile_blocks(model), batch, factored_masked_lm_losses)
    for name, value in expected_sums.items():
        np.testing.assert_allclose(sums[name], value, rtol=1e-5, err_msg=name)
    assert_same(gradients, expected, 1e-4)


def test_outside_of_training_compiled_blocks_are_the_model(tiny_config: BertConfig):
    model = randomize_weights(build_pretraining_model(tiny_config), 0)
    batch = random_batch(tiny_config, 0)
    expected, found = model(batch), compile_blocks(model)(batch)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


def classifier(config: BertConfig):
    return randomize_weights(build_classifier(build_encoder(config), 3), 0)


def multiple_choice(config: BertConfig):
    return randomize_weights(build_multiple_choice_model(build_encoder(config), 3), 0)


def batch_of(config: BertConfig) -> dict[str, tf.Tensor]:
    return {name: tf.constant(values) for name, values in inputs_of_encoder(random_batch(config, 0)).items()}


def choices_of(config: BertConfig) -> dict[str, tf.Tensor]:
    """Returns one example whose choices are the texts of a batch."""
    return {name: values[None] for name, values in batch_of(config).items()}


def weighted_sum(logits: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(logits * [[1.0, 2.0, -4.0]])


@pytest.mark.parametrize(
    ("num_layers", "build", "batch_of"),
    slow_after(1, [(2, classifier, batch_of), (1, classifier, batch_of), (2, multiple_choice, choices_of)]),
    ids=["two blocks", "one block", "multiple choice"],
)
def test_a_last_block_of_one_position_has_the_logits_and_gradients_of_the_model(
    tiny_config: BertConfig, num_layers: int, build, batch_of
):
    config = dataclasses.replace(tiny_config, num_hidden_layers=num_layers, hidden_dropout_prob=0.2)
    model, batch = build(config), batch_of(config)
    expected_logits, expected = outputs_and_gradients(model, model, batch, weighted_sum)
    for rematerialize in (False, True)[:num_layers]:
        call = skip_unread_positions(model, rematerialize)
        logits, gradients = outputs_and_gradients(model, call, batch, weighted_sum)
        np.testing.assert_allclose(logits, expected_logits, rtol=1e-5, atol=1e-6)
        assert_same(gradients, expected, 1e-4)


@pytest.mark.slow
def test_the_other_blocks_may_be_computed_a_second_time(tiny_config: BertConfig):
    """Of three blocks, the first two compute attention twice, and the last computes it once, for one position."""
    model = classifier(dataclasses.replace(tiny_config, num_hidden_layers=3))
    call = skip_unread_positions(model, rematerialize=True)
    operations = trace_operations(model, call, batch_of(tiny_config))
    softmaxes = [operation.outputs[0].shape[2] for operation in operations if operation.type == "Softmax"]
    length = batch_of(tiny_config)["input_ids"].shape[1]
    assert sorted(softmaxes) == [1, length, length, length, length]


@pytest.mark.parametrize(("build", "batch_of"), [(classifier, batch_of), (multiple_choice, choices_of)])
def test_outside_of_training_the_last_block_gives_the_logits_of_the_model(tiny_config: BertConfig, build, batch_of):
    model, batch = build(tiny_config), batch_of(tiny_config)
    call = skip_unread_positions(model)
    assert call is not model
    np.testing.assert_allclose(call(batch), model(batch), rtol=1e-5, atol=1e-6)


def test_models_that_read_more_than_the_first_position_stay_as_they_are(tiny_config: BertConfig):
    encoder = build_encoder(tiny_config)
    causal = build_encoder(dataclasses.replace(tiny_config, causal_attention=True))
    for model in (
        encoder, build_token_tagger(encoder, 3), build_span_predictor(encoder),
        build_classifier(causal, 3),
    ):  # fmt: skip
        assert skip_unread_positions(model) is model
