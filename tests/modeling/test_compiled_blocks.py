import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from official_bert.data.packing import one_record_a_row
from official_bert.modeling.compiled_blocks import with_compiled_blocks
from official_bert.modeling.config import BertConfig
from official_bert.modeling.dropout import dropout_seed
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.pretraining.losses import factored_masked_lm_losses, masked_lm_losses, mean_losses, pretraining_sums
from tests.modeling.small_models import random_batch, with_random_weights


def batch_of(model, batch) -> dict[str, Any]:
    return {name: batch[name] for name in model.input}


def sums_and_gradients(model, call, batch, of_masked_lm) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    @tf.function
    def compute(batch):
        with tf.GradientTape() as tape, dropout_seed([3, 4]):
            sums = pretraining_sums(call(batch_of(model, batch), training=True), batch, of_masked_lm)
            loss = tf.add(*mean_losses(sums, sums["masked_lm_count"], sums["next_sentence_count"]))
        return sums, [tf.convert_to_tensor(each) for each in tape.gradient(loss, model.trainable_variables)]

    sums, gradients = compute({name: tf.constant(values) for name, values in batch.items()})
    paths = [variable.path for variable in model.trainable_variables]
    return {name: float(value) for name, value in sums.items()}, {
        path: gradient.numpy() for path, gradient in zip(paths, gradients, strict=True)
    }


@pytest.mark.parametrize(
    "kind", ["plain", pytest.param("causal", marks=pytest.mark.slow), pytest.param("packed", marks=pytest.mark.slow)]
)
def test_compiled_blocks_have_the_losses_and_gradients_of_the_model_with_dropout(tiny_config: BertConfig, kind: str):
    config = dataclasses.replace(
        tiny_config, num_hidden_layers=2, hidden_dropout_prob=0.2, layer_norm_eps=0.1, causal_attention=kind == "causal"
    )
    model = with_random_weights(build_pretraining_model(config, packed=kind == "packed"), 0)
    rng = np.random.default_rng(1)
    batch = {
        **random_batch(config, 0),
        "masked_lm_ids": rng.integers(0, config.vocab_size, (3, 4)).astype("int32"),
        "masked_lm_weights": np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], "float32"),
        "next_sentence_labels": np.array([[0], [1], [1]], "int32"),
    }
    if kind == "packed":
        batch = {name: np.array(values) for name, values in one_record_a_row(batch).items()}
    expected_sums, expected = sums_and_gradients(model, model, batch, masked_lm_losses)
    sums, gradients = sums_and_gradients(model, with_compiled_blocks(model), batch, factored_masked_lm_losses)
    for name, value in expected_sums.items():
        np.testing.assert_allclose(sums[name], value, rtol=1e-5, err_msg=name)
    greatest = max(np.abs(each).max() for each in expected.values())
    for path, gradient in expected.items():
        np.testing.assert_allclose(gradients[path], gradient, rtol=1e-4, atol=1e-5 * greatest, err_msg=path)


def test_outside_of_training_compiled_blocks_are_the_model(tiny_config: BertConfig):
    model = with_random_weights(build_pretraining_model(tiny_config), 0)
    batch = random_batch(tiny_config, 0)
    expected, found = model(batch), with_compiled_blocks(model)(batch)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
