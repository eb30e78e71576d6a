"""Lowers a training step for the TPU's compiler: traces it without a TPU, with variables as arguments and results.

This needs the package tensorflow-tpu, which contains the lowering for TPUs, and private interfaces of TensorFlow. The
versions are pinned in requirements-tpu-check.txt.
"""

from typing import Any

import tensorflow as tf

from tools.tpu_check.compiler import LoweredStep
from tools.tpu_check.functional import replay_without_variables
from tools.tpu_check.steps import ReplicaStep


class _ReplicaOfMany(tf.distribute.ReplicaContext):
    """The context of one of several replicas (the TPU's cores). It sums over replicas like TPUStrategy."""

    def __init__(self, strategy: tf.distribute.Strategy, replica: tf.Tensor, replicas: int) -> None:
        super().__init__(strategy, replica)
        self._replicas = replicas

    @property
    def num_replicas_in_sync(self) -> int:
        return self._replicas

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        if reduce_op not in (tf.distribute.ReduceOp.SUM, "SUM"):
            raise NotImplementedError(f"the step reduces by {reduce_op}; only sums are supported")
        group = [list(range(self._replicas))]
        return tf.nest.map_structure(lambda x: tf.raw_ops.CrossReplicaSum(input=x, group_assignment=group), value)


def lower(step: ReplicaStep, batch: int, replicas: int) -> LoweredStep:
    """Traces the step of one replica and lowers it for a TPU.

    Args:
        step: A step of pre-training, fine-tuning or prediction.
        batch: Number of rows per replica.
        replicas: Number of replicas over which gradients are summed.
    """
    structure = step.arguments(batch)
    specs = [tf.TensorSpec((), tf.int32), *tf.nest.flatten(structure)]  # The replica's index comes first.

    def run_replica(replica: tf.Tensor, *tensors: tf.Tensor) -> Any:
        with step.strategy.scope(), _ReplicaOfMany(step.strategy, replica, replicas):
            return step.function(*tf.nest.pack_sequence_as(structure, tensors))

    traced = tf.function(run_replica, autograph=False).get_concrete_function(*specs).graph
    variables = {variable.handle.ref(): variable for variable in traced.variables}
    captured = [variables[handle.ref()] for handle, _ in traced.captures]
    values = [tf.TensorSpec(variable.shape, variable.dtype) for variable in captured]
    arguments = len(specs)

    def pure(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return replay_without_variables(traced, tensors[:arguments], tensors[arguments:])

    # TensorFlow returns the HLO only of functions marked for XLA. This process does not compile or run anything.
    compiled = tf.function(pure, jit_compile=True, autograph=False)
    hlo = compiled.experimental_get_compiler_ir(*specs, *values)(stage="hlo_serialized", platform_name="TPU")
    return LoweredStep(hlo, range(arguments, arguments + len(values)), len(traced.outputs))
