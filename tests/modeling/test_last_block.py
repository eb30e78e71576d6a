import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from official_bert.modeling import task_models
from official_bert.modeling.config import BertConfig
from official_bert.modeling.dropout import dropout_seed
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.last_block import without_unread_positions
from tests.modeling.small_models import inputs_of_encoder, random_batch, with_random_weights


def classifier(config: BertConfig):
    return with_random_weights(task_models.build_classifier(build_encoder(config), 3), 0)


def multiple_choice(config: BertConfig):
    return with_random_weights(task_models.build_multiple_choice_model(build_encoder(config), 3), 0)


def batch_of(config: BertConfig) -> dict[str, tf.Tensor]:
    return {name: tf.constant(values) for name, values in inputs_of_encoder(random_batch(config, 0)).items()}


def choices_of(config: BertConfig) -> dict[str, tf.Tensor]:
    """One example, whose choices are the texts of a batch."""
    return {name: values[None] for name, values in batch_of(config).items()}


def logits_and_gradients(model, call, batch):
    @tf.function(autograph=False)
    def compute(batch):
        with tf.GradientTape() as tape, dropout_seed([3, 4]):
            logits = call(batch, training=True)
            loss = tf.reduce_sum(logits * [[1.0, 2.0, -4.0]])
        return logits, [tf.convert_to_tensor(each) for each in tape.gradient(loss, model.trainable_variables)]

    return compute(batch)


@pytest.mark.parametrize(("num_layers", "build", "batch_of"), [
    (1, classifier, batch_of), (2, classifier, batch_of), (2, multiple_choice, choices_of),
], ids=["one block", "two blocks", "multiple choice"])  # fmt: skip
def test_logits_and_gradients_are_those_of_the_model_with_dropout(
    tiny_config: BertConfig, num_layers: int, build, batch_of
):
    config = dataclasses.replace(tiny_config, num_hidden_layers=num_layers, hidden_dropout_prob=0.2)
    model, batch = build(config), batch_of(config)
    expected_logits, expected = logits_and_gradients(model, model, batch)
    greatest = max(np.abs(each).max() for each in expected)
    for rematerialize in (False, True)[:num_layers]:
        call = without_unread_positions(model, rematerialize)
        logits, gradients = logits_and_gradients(model, call, batch)
        np.testing.assert_allclose(logits, expected_logits, rtol=1e-5, atol=1e-6)
        for variable, gradient, other in zip(model.trainable_variables, gradients, expected, strict=True):
            np.testing.assert_allclose(gradient, other, rtol=1e-4, atol=1e-5 * greatest, err_msg=variable.path)


def test_the_other_blocks_may_be_computed_a_second_time(tiny_config: BertConfig):
    """Three blocks: the attention of the first two is computed twice, that of the last once, for one position."""
    model = classifier(dataclasses.replace(tiny_config, num_hidden_layers=3))
    call = without_unread_positions(model, rematerialize=True)

    @tf.function(autograph=False)
    def compute(batch):
        with tf.GradientTape() as tape, dropout_seed(tf.constant([3, 4])):
            loss = tf.reduce_sum(call(batch, training=True))
        return [tf.convert_to_tensor(each) for each in tape.gradient(loss, model.trainable_variables)]

    operations = compute.get_concrete_function(batch_of(tiny_config)).graph.get_operations()
    softmaxes = [operation.outputs[0].shape[2] for operation in operations if operation.type == "Softmax"]
    length = batch_of(tiny_config)["input_ids"].shape[1]
    assert sorted(softmaxes) == [1, length, length, length, length]


@pytest.mark.parametrize(("build", "batch_of"), [(classifier, batch_of), (multiple_choice, choices_of)])
def test_outside_of_training_the_logits_are_those_of_the_model(tiny_config: BertConfig, build, batch_of):
    model, batch = build(tiny_config), batch_of(tiny_config)
    call = without_unread_positions(model)
    assert call is not model
    np.testing.assert_allclose(call(batch), model(batch), rtol=1e-5, atol=1e-6)


def test_models_that_read_more_than_the_first_position_stay_as_they_are(tiny_config: BertConfig):
    encoder = build_encoder(tiny_config)
    causal = build_encoder(dataclasses.replace(tiny_config, causal_attention=True))
    for model in (
        encoder, task_models.build_token_tagger(encoder, 3), task_models.build_span_predictor(encoder),
        task_models.build_classifier(causal, 3),
    ):  # fmt: skip
        assert without_unread_positions(model) is model
