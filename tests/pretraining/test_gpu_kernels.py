"""GPU support, as far as it can be checked without a GPU: TensorFlow's packages contain the CUDA kernels."""

from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels

from official_bert.modeling.config import BertConfig
from official_bert.optimization.schedules import WarmupPolynomialDecay
from official_bert.pretraining.train_step import Pretrainer

B, S, P = 4, 12, 3
FEATURES = {
    "input_ids": tf.TensorSpec((B, S), tf.int32),
    "input_mask": tf.TensorSpec((B, S), tf.int32),
    "segment_ids": tf.TensorSpec((B, S), tf.int32),
    "masked_lm_positions": tf.TensorSpec((B, P), tf.int32),
    "masked_lm_ids": tf.TensorSpec((B, P), tf.int32),
    "masked_lm_weights": tf.TensorSpec((B, P), tf.float32),
    "next_sentence_labels": tf.TensorSpec((B, 1), tf.int32),
}


def list_operations(function: Any, *arguments: Any) -> list[Any]:
    """Returns the operations in the graph of a tf.function and of all functions that it calls."""
    graph = function.get_concrete_function(*arguments).graph.as_graph_def()
    return [*graph.node, *(node for called in graph.library.function for node in called.node_def)]


def has_kernel_for_gpus(node: Any) -> bool:
    """Returns whether a GPU kernel accepts the types of an operation."""

    def takes(kernel: Any) -> bool:
        for constraint in kernel.constraint:
            given = node.attr[constraint.name]
            types = [given.type] if given.WhichOneof("value") == "type" else list(given.list.type)
            if not set(types) <= set(constraint.allowed_values.list.type):
                return False
        return kernel.device_type in ("GPU", "DEFAULT") and not kernel.label

    return any(map(takes, kernels.get_registered_kernels_for_op(node.op).kernel))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_every_operation_of_a_step_has_a_kernel_for_gpus(dtype: str):
    if not tf.test.is_built_with_cuda():
        pytest.skip("TensorFlow is built without CUDA")
    config = BertConfig(
        vocab_size=40, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16,
    )  # fmt: skip
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    pretrainer = Pretrainer(
        config=config, strategy=strategy, schedule=WarmupPolynomialDecay(1e-3, 10), seed=1, dtype=dtype, micro_batches=2
    )
    operations = list_operations(
        tf.function(lambda batch: strategy.run(pretrainer.replica_step, args=(batch,))), FEATURES
    )
    assert len({node.op for node in operations}) > 50
    assert {node.op for node in operations if not has_kernel_for_gpus(node)} == set()


def test_operations_without_a_kernel_for_gpus_are_found():
    if not tf.test.is_built_with_cuda():
        pytest.skip("TensorFlow is built without CUDA")
    strings = list_operations(tf.function(tf.strings.length), tf.TensorSpec([None], tf.string))
    assert "StringLength" in {node.op for node in strings if not has_kernel_for_gpus(node)}
    integers = list_operations(tf.function(lambda x: x @ x), tf.TensorSpec([2, 2], tf.int64))
    assert "MatMul" in {node.op for node in integers if not has_kernel_for_gpus(node)}
