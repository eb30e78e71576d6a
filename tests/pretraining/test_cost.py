import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from official_bert.checkpoints.checkpoint import PRETRAINING, count_parameters
from official_bert.modeling.config import BertConfig
from official_bert.modeling.dropout import dropout_seed
from official_bert.modeling.fast.rematerialization import rematerialized
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.pretraining.cost import Memory, estimate_memory
from official_bert.pretraining.losses import compute_mean_losses, compute_pretraining_sums
from tests.conftest import slow_after

BATCH, LENGTH, PREDICTIONS = 7, 128, 2
CONFIG = BertConfig(
    vocab_size=1009,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=208,
    max_position_embeddings=128,
)


def traced_gradient(config: BertConfig, dtype: str, rematerialize: bool) -> tuple[tf.Graph, set[str]]:
    """Returns the graph that computes all gradients, and the names of the operations of the forward pass."""
    model = build_pretraining_model(config, seed=0, dtype=dtype)
    call = rematerialized(model) if rematerialize else model
    shapes = {
        **dict.fromkeys(("input_ids", "input_mask", "segment_ids"), (BATCH, LENGTH)),
        **dict.fromkeys(("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"), (BATCH, PREDICTIONS)),
        "next_sentence_labels": (BATCH, 1),
    }
    specs = {name: tf.TensorSpec(shape, "float32" if "weights" in name else "int32") for name, shape in shapes.items()}
    forward: set[str] = set()

    @tf.function
    def gradients(features):
        with tf.GradientTape() as tape, dropout_seed(tf.constant([1, 2])):
            outputs = call({name: features[name] for name in model.input}, training=True)
            loss = tf.add(*compute_mean_losses(compute_pretraining_sums(outputs, features), 14.0, 7.0))
        forward.update(operation.name for operation in tf.compat.v1.get_default_graph().get_operations())
        return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, model.trainable_variables)]

    return gradients.get_concrete_function(specs).graph, forward


def kept_bytes(graph: tf.Graph, forward: set[str]) -> int:
    """Returns the size of the tensors that the backward pass reads from the forward pass, except weights and inputs."""
    kept = {}
    for operation in graph.get_operations():
        if operation.name in forward or operation.type == "Shape":
            continue
        for tensor in operation.inputs:
            while tensor.op.type in ("Reshape", "Identity", "IdentityN"):  # the same memory under another name
                tensor = tensor.op.inputs[tensor.value_index]
            if tensor.op.name in forward and tensor.op.type not in ("ReadVariableOp", "Placeholder", "Const", "Shape"):
                kept[tensor.name] = int(np.prod(tensor.shape)) * tensor.dtype.size
    return sum(kept.values())


@pytest.mark.parametrize(
    ("dtype", "rematerialize"),
    slow_after(2, [("float32", False), ("mixed_bfloat16", True), ("mixed_bfloat16", False), ("float32", True)]),
)
def test_activations_are_those_that_the_backward_pass_reads(dtype: str, rematerialize: bool):
    graph, forward = traced_gradient(CONFIG, dtype, rematerialize)
    estimate = estimate_memory(CONFIG, BATCH, LENGTH, PREDICTIONS, dtype, rematerialize)
    assert estimate.activations == pytest.approx(kept_bytes(graph, forward), rel=0.06)  # small tensors are ignored


@pytest.mark.parametrize("hidden_act", slow_after(1, ["gelu_exact", "relu"]))
def test_activations_of_other_activations(hidden_act: str):
    config = dataclasses.replace(CONFIG, hidden_act=hidden_act)
    graph, forward = traced_gradient(config, "float32", False)
    estimate = estimate_memory(config, BATCH, LENGTH, PREDICTIONS)
    assert estimate.activations == pytest.approx(kept_bytes(graph, forward), rel=0.06)  # small tensors are ignored


def test_parameters_are_counted_as_the_model_has_them(tiny_config: BertConfig):
    for config in (tiny_config, CONFIG):
        assert count_parameters(PRETRAINING, config) == build_pretraining_model(config).count_params()


def test_peak_is_that_of_the_backward_pass_or_of_the_update():
    memory = Memory(weights=1, optimizer=2, gradients=3, activations=4, working=5, update=6)
    assert memory.total == 1 + 2 + 3 + 4 + 5
    assert dataclasses.replace(memory, update=60).total == 1 + 2 + 60
    mini = BertConfig(30522, 256, 4, 4, 1024)
    whole, again = (estimate_memory(mini, 32, 128, 20, rematerialize=flag).total for flag in (False, True))
    assert again < 0.7 * whole
