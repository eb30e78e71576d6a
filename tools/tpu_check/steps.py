"""Builds the pre-training or fine-tuning step of one replica from the flags.

B batch of one replica, S sequence, N choices
"""

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from official_bert.checkpoints.checkpoint import LoadedModel
from official_bert.data import packing, record_schema
from official_bert.errors import UserError
from official_bert.finetuning import batches
from official_bert.finetuning.options import FinetuningOptions
from official_bert.finetuning.trainer import Trainer
from official_bert.kinds.features import Features, concatenate_rows
from official_bert.kinds.spec import KindSpec
from official_bert.modeling.config import BertConfig
from official_bert.optimization.choices import AUTO, DTYPES
from official_bert.optimization.schedules import WarmupPolynomialDecay
from official_bert.pretraining.train_step import Pretrainer
from official_bert.tasks.all_tasks import make_task
from official_bert.tasks.options import TableOptions, get_options_class
from official_bert.tasks.task import Task
from official_bert.utils import files
from tools.tpu_check.options import (
    FineTuningStepOptions,
    LabelledTaskStepOptions,
    PretrainingStepOptions,
    TableStepOptions,
    TaskStepOptions,
)

RATE, STEPS = 1e-4, 1_000_000  # The compiled step does not depend on these values.


@dataclasses.dataclass(frozen=True)
class ReplicaStep:
    """What one replica computes in a training step, on its share of a batch.

    Attributes:
        name: Description of the step for reports.
        function: The method of the trainer that computes the step. It is called in a replica's context.
        strategy: The distribution strategy of the trainer.
        arguments: Function from B to the TensorSpecs of the arguments of `function`, a tuple of nested structures.
        repeats: Number of iterations of the loop in the step, whose operations the compiler counts only once. 1 if
            there is no loop.
    """

    name: str
    function: Callable[..., Any]
    strategy: tf.distribute.Strategy
    arguments: Callable[[int], tuple[Any, ...]]
    repeats: int = 1


def _resolve_dtype(dtype: str) -> str:
    """Returns the value of --dtype, with the one that is used on a TPU in place of auto."""
    return "bfloat16" if dtype == AUTO else dtype


@contextlib.contextmanager
def create_variables_without_values() -> Iterator[tf.distribute.Strategy]:
    """Within the context, variables are created without values, so that they need no memory.

    Yields:
        The distribution strategy to use.
    """
    with tf.variable_creator_scope(_create_variable):
        yield tf.distribute.OneDeviceStrategy("CPU:0")


def read_config(options: PretrainingStepOptions | FineTuningStepOptions) -> BertConfig:
    """Reads the model configuration.

    Raises:
        UserError: If the file cannot be read, or contradicts the options.
    """
    if isinstance(options, PretrainingStepOptions):
        path = options.bert_config_file
    else:
        path = options.init if options.init.endswith(".json") else os.path.join(options.init, "bert_config.json")
        if not files.exists(path):
            raise UserError(f"--init is {options.init}; expected a bert_config.json, or a folder that has one")
    config, length = BertConfig.from_json_file(path), options.max_seq_length or 0
    config.check_length(length, path)
    return config


def pretraining_step(config: BertConfig, options: PretrainingStepOptions, replicas: int) -> tuple[ReplicaStep, int]:
    """Builds the pre-training step. Returns it and the number of the model's parameters.

    Args:
        config: Configuration of the model.
        options: Options of the step.
        replicas: Number of replicas that share a batch.
    """
    parts = options.gradient_accumulation_steps
    with create_variables_without_values() as strategy:
        pretrainer = Pretrainer(
            config=config,
            strategy=strategy,
            schedule=WarmupPolynomialDecay(RATE, num_steps=STEPS, warmup_steps=STEPS // 100),
            seed=0,
            dtype=DTYPES[_resolve_dtype(options.dtype)],
            optimizer=options.optimizer,
            next_sentence=options.next_sentence_prediction,
            frozen=options.freeze,
            micro_batches=parts,
            rematerialize=options.rematerialize,
            skip_nonfinite=options.on_nonfinite == "skip",
            packed=options.pack_sequences,
        )
    schema = record_schema.pretraining_schema(options.max_seq_length, options.max_predictions_per_seq)

    def arguments(batch: int) -> tuple[Any, ...]:
        specs = {
            name: tf.TensorSpec(
                (batch, *feature.shape), tf.float32 if feature.dtype == record_schema.FLOAT else tf.int32
            )
            for name, feature in schema.items()
        }
        return (_pack_specs(specs, options, replicas) if options.pack_sequences else specs,)

    step = ReplicaStep("training step", pretrainer.replica_step, strategy, arguments, repeats=parts)
    return step, pretrainer.model.count_params()


def _pack_specs(
    specs: dict[str, tf.TensorSpec], options: PretrainingStepOptions, replicas: int
) -> dict[str, tf.TensorSpec]:
    """Returns the TensorSpecs of a replica's share of a batch after packing [parts, rows, ...].

    Args:
        specs: TensorSpecs of the replica's share before packing [B, ...].
        options: Options of the step, with the number of packed rows.
        replicas: Number of replicas that share a batch.
    """
    batch = replicas * specs["input_ids"].shape[0]
    packed_rows = batch * (options.packed_rows or 0) / options.train_batch_size
    typical_micro_batches = options.gradient_accumulation_steps
    rows = math.ceil(packed_rows / (replicas * typical_micro_batches))
    shapes = packing.Packing(
        batch_size=batch,
        replicas=replicas,
        micro_batches=math.ceil(batch / (replicas * rows)),
        typical_micro_batches=typical_micro_batches,
        rows=rows,
    )
    of_batch = {name: tf.TensorSpec((batch, *spec.shape[1:]), spec.dtype) for name, spec in specs.items()}
    pack = tf.function(lambda features: packing.pack(features, shapes), autograph=False)
    packed = pack.get_concrete_function(of_batch).structured_outputs
    return {name: tf.TensorSpec((shapes.micro_batches, *each.shape[1:]), each.dtype) for name, each in packed.items()}


def finetuning_steps(
    config: BertConfig, task_name: str, options: FineTuningStepOptions, task_options: TaskStepOptions
) -> tuple[list[tuple[int, ReplicaStep, ReplicaStep]], int]:
    """Builds the steps of training and prediction for each length that batches are padded to.

    Args:
        config: Configuration of the encoder.
        task_name: Name of the task, a value of --task.
        options: Options of the step, in which no value is None.
        task_options: Options that depend on the task.

    Returns:
        Length, training step and prediction step for each length, and the number of the model's parameters.
    """
    spec = make_dataless_task(task_name, task_options).spec
    with create_variables_without_values() as strategy:
        training = FinetuningOptions(
            task=task_name, output_dir="unused", do_train=True, train_batch_size=options.train_batch_size,
            max_seq_length=options.max_seq_length, random_seed=0, freeze=options.freeze,
            layer_decay=options.layer_decay, dtype=_resolve_dtype(options.dtype),
            gradient_accumulation_steps=options.gradient_accumulation_steps, rematerialize=options.rematerialize,
        )  # fmt: skip
        trainer = Trainer(spec, LoadedModel(config, {}, ""), training, STEPS, strategy=strategy, is_compiled=True)

    def make_steps(length: int) -> tuple[int, ReplicaStep, ReplicaStep]:
        features = make_blank_features(spec, length)

        def arguments(batch: int) -> tuple[Any, ...]:
            of_batch = batches.pad_batch(features, np.zeros(batch, np.int64), length, buckets=(length,))
            return tuple(tf.nest.map_structure(lambda each: tf.TensorSpec(each.shape, each.dtype), of_batch))

        def forward(inputs: dict[str, tf.Tensor]) -> Any:
            return trainer.model(inputs, training=False)

        return (
            length,
            ReplicaStep(
                f"training step of length {length}",
                trainer.replica_step,
                strategy,
                arguments,
                repeats=options.gradient_accumulation_steps,
            ),
            ReplicaStep(f"prediction of length {length}", forward, strategy, lambda batch: arguments(batch)[:1]),
        )

    return [make_steps(length) for length in reversed(trainer.buckets)], trainer.model.count_params()


def make_dataless_task(name: str, options: TaskStepOptions) -> Task:
    """Returns a task without its data. Its labels are numbers."""
    fields = {"head": options.head, "lstm_units": options.lstm_units}
    labels = None
    if isinstance(options, LabelledTaskStepOptions):
        labels = [str(number) for number in range(options.num_labels)]
    if isinstance(options, TableStepOptions):
        table = TableOptions(label_kind=options.label_kind, **fields)  # type: ignore[arg-type]
        return make_task(name, table, labels)
    return make_task(name, get_options_class(name)(**fields), labels)  # type: ignore[arg-type]


def make_blank_features(spec: KindSpec, length: int) -> Features:
    """Returns the features of one example that consists of zeros, with targets.

    Args:
        spec: The kind of task, with its settings.
        length: Number of tokens.
    """
    choices = spec.num_choices or 1
    zeros = [np.zeros(length, np.int32)] * choices
    return concatenate_rows(zeros, zeros, spec.blank_targets(length), {}, choices, has_token_outputs=spec.has_tokens)


def _create_variable(_: Any, **arguments: Any) -> Any:
    """Creates a variable that has a handle but no value."""
    value = arguments["initial_value"]
    if callable(value):
        with tf.Graph().as_default():  # Nothing is computed in this graph.
            value = value()
    value = tf.convert_to_tensor(value, arguments.get("dtype")) if not tf.is_tensor(value) else value
    return resource_variable_ops.UninitializedVariable(
        trainable=arguments.get("trainable"),
        name=arguments.get("name"),
        shape=value.shape,
        dtype=value.dtype,
        synchronization=arguments.get("synchronization"),
        aggregation=arguments.get("aggregation"),
        distribute_strategy=tf.distribute.get_strategy(),
    )
