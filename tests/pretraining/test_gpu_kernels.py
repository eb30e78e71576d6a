"""GPU support, as far as it can be checked without a GPU: TensorFlow's packages contain the CUDA kernels."""

import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels

from tests.make import tiny_config
from tests.pretraining.pretraining_runs import feature_specs, make_pretrainer

pytestmark = pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="TensorFlow is built without CUDA")


def list_operations(function, *arguments):
    """Returns the operations in the graph of a tf.function and of all functions that it calls."""
    graph = function.get_concrete_function(*arguments).graph.as_graph_def()
    return [*graph.node, *(node for called in graph.library.function for node in called.node_def)]


def has_kernel_for_gpus(node):
    """Returns whether a GPU kernel accepts the types of an operation."""

    def accepts(kernel):
        for constraint in kernel.constraint:
            given = node.attr[constraint.name]
            types = [given.type] if given.WhichOneof("value") == "type" else list(given.list.type)
            if not set(types) <= set(constraint.allowed_values.list.type):
                return False
        return kernel.device_type in ("GPU", "DEFAULT") and not kernel.label

    return any(map(accepts, kernels.get_registered_kernels_for_op(node.op).kernel))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_every_operation_of_a_step_has_a_kernel_for_gpus(dtype):
    pretrainer = make_pretrainer(tiny_config(num_hidden_layers=1), dtype=dtype, micro_batches=2)
    step = tf.function(lambda batch: pretrainer.strategy.run(pretrainer.replica_step, args=(batch,)))
    operations = list_operations(step, feature_specs(4, 12, 3))
    assert len({node.op for node in operations}) > 50
    assert {node.op for node in operations if not has_kernel_for_gpus(node)} == set()


def test_operations_without_a_kernel_for_gpus_are_found():
    strings = list_operations(tf.function(tf.strings.length), tf.TensorSpec([None], tf.string))
    assert "StringLength" in {node.op for node in strings if not has_kernel_for_gpus(node)}
    integers = list_operations(tf.function(lambda x: x @ x), tf.TensorSpec([2, 2], tf.int64))
    assert "MatMul" in {node.op for node in integers if not has_kernel_for_gpus(node)}
