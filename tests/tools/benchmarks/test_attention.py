import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from official_bert.modeling.config import BertConfig
from official_bert.modeling.dropout import Dropout
from official_bert.modeling.pretraining_model import build_pretraining_model
from tests.modeling.small_models import random_batch, with_random_weights
from tests.modeling.test_rematerialization import assert_same, gradients
from tools.benchmarks.attention import blockwise, with_blockwise_attention


@pytest.mark.slow
def test_blockwise_attention_has_the_gradients_of_the_model(tiny_config: BertConfig):
    config = dataclasses.replace(tiny_config, attention_probs_dropout_prob=0.0)
    model = with_random_weights(build_pretraining_model(config, seed=0), 0)
    batch = random_batch(config, 0)
    assert (batch["input_mask"] == 0).any()
    assert_same(gradients(model, with_blockwise_attention(model), batch), gradients(model, model, batch))


def test_dropped_probabilities_are_the_same_in_both_passes_and_of_the_right_share():
    length, rate = 128, 0.25
    shape = (3, length, 1)
    zeros, key, value = tf.zeros(shape), tf.random.stateless_normal(shape, (1, 2)), tf.ones(shape)

    def context(value: tf.Tensor, seed: int) -> tf.Tensor:
        return blockwise(zeros, key, value, tf.zeros((3, length)), Dropout(rate), tf.constant([seed, 0]))

    with tf.GradientTape() as tape:
        tape.watch(value)
        first = context(value, 1)
    # Scores are zero, so each row keeps a share of 1 / length each: its sum has the share that is kept, scaled up.
    kept = first.numpy() * (1 - rate)
    assert abs(kept.mean() - (1 - rate)) < 0.01
    assert 0.5 < kept.std() / np.sqrt(rate * (1 - rate) / length) < 2
    # The context is linear in the values, so that its gradient has the masks of the forward pass.
    np.testing.assert_allclose(np.sum(tape.gradient(first, value)), np.sum(first), rtol=1e-5)
    np.testing.assert_array_equal(context(value, 1), first)
    assert np.abs(context(value, 2) - first).max() > 0.01
