"""The estimated memory of a training step."""

import dataclasses
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from official_bert.modeling.config import BertConfig
from official_bert.modeling.dropout import dropout_seed
from official_bert.modeling.fast.rematerialization import rematerialized
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.pretraining.cost import estimate_memory, print_memory_estimate
from official_bert.pretraining.losses import compute_mean_losses, compute_pretraining_sums
from official_bert.pretraining.options import Phase
from tests.make import slow_after
from tests.pretraining.pretraining_runs import feature_specs

BATCH, LENGTH, PREDICTIONS = 7, 128, 2
CONFIG = BertConfig(1009, 64, 2, 4, 208, max_position_embeddings=128)


def measure_activations(config, dtype, rematerialize):
    """Returns the size of the tensors that the backward pass reads from the forward pass, except weights and inputs."""
    model = build_pretraining_model(config, seed=0, dtype=dtype)
    call = rematerialized(model) if rematerialize else model
    specs = feature_specs(BATCH, LENGTH, PREDICTIONS)
    forward = set()

    @tf.function(autograph=False)
    def gradients(features):
        with tf.GradientTape() as tape, dropout_seed(tf.constant([1, 2])):
            outputs = call({name: features[name] for name in model.input}, training=True)
            loss = tf.add(*compute_mean_losses(compute_pretraining_sums(outputs, features), 14.0, 7.0))
        forward.update(operation.name for operation in tf.compat.v1.get_default_graph().get_operations())
        return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, model.trainable_variables)]

    kept = {}
    for operation in gradients.get_concrete_function(specs).graph.get_operations():
        for tensor in () if operation.name in forward or operation.type == "Shape" else operation.inputs:
            while tensor.op.type in ("Reshape", "Identity", "IdentityN"):  # the same memory under another name
                tensor = tensor.op.inputs[tensor.value_index]
            if tensor.op.name in forward and tensor.op.type not in ("ReadVariableOp", "Placeholder", "Const", "Shape"):
                kept[tensor.name] = int(np.prod(tensor.shape)) * tensor.dtype.size
    return sum(kept.values())


ONE_BLOCK = dataclasses.replace(CONFIG, num_hidden_layers=1)
CASES = [
    (ONE_BLOCK, "float32", False),
    (CONFIG, "mixed_bfloat16", True),
    (dataclasses.replace(ONE_BLOCK, hidden_act="gelu_exact"), "float32", False),
    (CONFIG, "mixed_bfloat16", False),
    (CONFIG, "float32", True),
    (dataclasses.replace(CONFIG, hidden_act="relu"), "float32", False),
]


@pytest.mark.parametrize(("config", "dtype", "rematerialize"), slow_after(3, CASES))
def test_estimated_activations_equal_those_of_the_backward_pass(config, dtype, rematerialize):
    measured = measure_activations(config, dtype, rematerialize)
    estimate = estimate_memory(config, BATCH, LENGTH, PREDICTIONS, dtype, rematerialize)
    tolerance = 0.06 if rematerialize else 0.01  # small tensors are ignored
    assert estimate.activations == pytest.approx(measured, rel=tolerance)


def test_parameters_are_counted_as_the_model_has_them(tiny_config):
    assert estimate_memory(tiny_config, 1, 8, 1).weights == 4 * build_pretraining_model(tiny_config).count_params()


def test_peak_memory_is_reached_in_the_backward_pass_or_the_update():
    mini = BertConfig(30522, 256, 4, 4, 1024)
    weights, activations, total = estimate_memory(mini, 1, 8, 1)
    assert total == 3 * weights + 11 * weights // 2
    weights, activations, total = estimate_memory(mini, 1024, 128, 20)
    logits, table = 4 * 1024 * 20 * mini.vocab_size, 4 * mini.vocab_size * mini.hidden_size
    assert total == 3 * weights + activations + 3 * logits + weights + 2 * table
    whole, again = (estimate_memory(mini, 1024, 128, 1, rematerialize=flag) for flag in (False, True))
    inside = (whole.activations - again.activations) // mini.num_hidden_layers + 4 * 1024 * 128 * mini.hidden_size
    for (weights, activations, total), working in ((whole, inside // 2), (again, inside * 3 // 2)):
        assert total == 4 * weights + activations + working + 2 * table


def test_the_printed_estimate_is_for_one_micro_batch_of_a_device(capsys):
    options = mock.Mock(pack_sequences=False, dtype="bfloat16", rematerialize=True, strategy="mirrored")
    phase = mock.Mock(number=1, max_seq_length=LENGTH, predictions=lambda config: PREDICTIONS)
    for rows, replicas, steps in ((3000, 1, 1), (12000, 2, 2)):
        options.gradient_accumulation_steps = steps
        print_memory_estimate(options, CONFIG, replicas, phase, rows)
    expected = estimate_memory(CONFIG, 3000, LENGTH, PREDICTIONS, "bfloat16", True).total
    line = f"estimated memory of each device in phase 1: {expected / 1e9:.2f} GB"
    assert capsys.readouterr().out.splitlines() == [line, line]
    causal, sizes = dataclasses.replace(CONFIG, causal_attention=True), mock.Mock(max_seq_length=9)
    assert Phase.predictions(sizes, causal) == 8, "each token but the first"
