"""The training step as a TPU's compiler takes it: traced without a TPU, with variables as arguments and results.

It needs the tensorflow-tpu package, whose lowering is the TPU's own, and uses interfaces that TensorFlow does not
promise to keep: versions are pinned in requirements-tpu-check.txt.

B batch of one replica
"""

from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from official_bert.data.record_schema import FLOAT, Schema
from official_bert.modeling.config import BertConfig
from official_bert.optimization.schedules import WarmupPolynomialDecay
from official_bert.pretraining.train_step import Pretrainer
from tpu_check.compiler import LoweredStep
from tpu_check.functional import without_variables


class _ReplicaOfMany(tf.distribute.ReplicaContext):
    """One of `replicas` that stand for the TPU's cores; sums over them are what TPUStrategy makes of them."""

    def __init__(self, strategy: tf.distribute.Strategy, replica: tf.Tensor, replicas: int) -> None:
        super().__init__(strategy, replica)
        self._replicas = replicas

    @property
    def num_replicas_in_sync(self) -> int:
        return self._replicas

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        if reduce_op not in (tf.distribute.ReduceOp.SUM, "SUM"):
            raise NotImplementedError(f"the step reduces by {reduce_op}; only sums are known here")
        group = [list(range(self._replicas))]
        return tf.nest.map_structure(lambda x: tf.raw_ops.CrossReplicaSum(input=x, group_assignment=group), value)


def build_pretrainer(config: BertConfig, **settings: Any) -> Pretrainer:
    """Returns what run_pretraining would train, with variables that have shapes but no values, and cost no memory.

    Args:
        config: the model's sizes.
        settings: of Pretrainer.
    """
    with tf.variable_creator_scope(_without_value):
        schedule = WarmupPolynomialDecay(1e-4, num_steps=1_000_000, warmup_steps=10_000)
        strategy = tf.distribute.OneDeviceStrategy("CPU:0")
        return Pretrainer(config=config, strategy=strategy, schedule=schedule, seed=0, **settings)


def lower(pretrainer: Pretrainer, schema: Schema, batch: int, replicas: int) -> LoweredStep:
    """Traces the step of one of many replicas and lowers it for a TPU.

    Args:
        pretrainer: from `build_pretrainer`.
        schema: the features of a record.
        batch: records of a replica, B.
        replicas: how many replicas gradients are summed over.
    """
    specs = [tf.TensorSpec((), tf.int32)]  # the replica's number
    for feature in schema.values():
        specs.append(tf.TensorSpec((batch, *feature.shape), tf.float32 if feature.dtype == FLOAT else tf.int32))

    def step(replica: tf.Tensor, *features: tf.Tensor) -> dict[str, tf.Tensor]:
        with pretrainer.strategy.scope(), _ReplicaOfMany(pretrainer.strategy, replica, replicas):
            return pretrainer.replica_step(dict(zip(schema, features, strict=True)))

    traced = tf.function(step).get_concrete_function(*specs).graph
    variables = {variable.handle.ref(): variable for variable in traced.variables}
    captured = [variables[handle.ref()] for handle, _ in traced.captures]
    values = [tf.TensorSpec(variable.shape, variable.dtype) for variable in captured]
    arguments = len(specs)

    def pure(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return without_variables(traced, tensors[:arguments], tensors[arguments:])

    # Only a function that is marked for XLA can be asked for its HLO; nothing is compiled or run by this process.
    compiled = tf.function(pure, jit_compile=True, autograph=False)
    hlo = compiled.experimental_get_compiler_ir(*specs, *values)(stage="hlo_serialized", platform_name="TPU")
    return LoweredStep(hlo, range(arguments, arguments + len(values)), len(traced.outputs))


def _without_value(_: Any, **given: Any) -> Any:
    """Makes a variable in place of TensorFlow: its handle only."""
    value = given["initial_value"]
    if callable(value):
        with tf.Graph().as_default():  # where nothing is computed
            value = value()
    value = tf.convert_to_tensor(value, given.get("dtype")) if not tf.is_tensor(value) else value
    return resource_variable_ops.UninitializedVariable(
        trainable=given.get("trainable"),
        name=given.get("name"),
        shape=value.shape,
        dtype=value.dtype,
        synchronization=given.get("synchronization"),
        aggregation=given.get("aggregation"),
        distribute_strategy=tf.distribute.get_strategy(),
    )
