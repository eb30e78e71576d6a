"""Compiles the training steps that flags of pretrain or finetune describe, and reports the compiler's results."""

import dataclasses
import importlib.metadata
import sys
import time

from official_bert.errors import UserError
from official_bert.tasks.options import get_options_class
from official_bert.utils import markdown, progress
from tools.tpu_check import compiler, steps
from tools.tpu_check.answers import Compiled, Refused, find_largest_batch, format_cells
from tools.tpu_check.options import FineTuningStepOptions, Options, PretrainingStepOptions, TaskStepOptions
from tools.tpu_check.steps import ReplicaStep

OUT_OF_TIME = "not known: out of time"


class StepCompiler:
    """Compiles several steps for a TPU, with one time limit for all of them.

    Args:
        topology: Kind and layout of the TPU, such as v5e:2x4.
        time_limit: Time limit for all steps, in seconds.

    Attributes:
        topology: Kind and layout of the TPU.
        replicas: Number of replicas that the TPU has.

    Raises:
        UserError: If the topology does not exist, or a package of the check's environment is missing.
    """

    def __init__(self, topology: str, time_limit: int) -> None:
        _check_environment()
        self.topology = topology
        self._deadline = time.monotonic() + time_limit
        self.replicas = compiler.count_replicas(topology)

    def compile(self, step: ReplicaStep, batch: int, fast: bool = False) -> Compiled | Refused:
        """Compiles a step and prints a line about the result.

        Args:
            step: The step of one replica.
            batch: Number of rows per replica.
            fast: See `compiler.compile_step`.

        Raises:
            compiler.OutOfTimeError: If the time limit is exceeded.
        """
        from tools.tpu_check import lowering  # Needs TensorFlow's TPU build.

        since = time.monotonic()
        if since > self._deadline:
            raise compiler.OutOfTimeError
        with progress.report_elapsed_time(f"compiling the {step.name} for {batch:,} per replica"):
            lowered = lowering.lower(step, batch, self.replicas)
            seconds = max(1.0, self._deadline - time.monotonic())
            answer = compiler.compile_step(lowered, self.topology, fast, seconds)
        if isinstance(answer, Compiled):
            # The compiler counts the body of the loop once. The optimizer, outside of it, is less than 1 %.
            answer = dataclasses.replace(answer, flops=answer.flops * step.repeats)
        verdict = answer if isinstance(answer, Refused) else f"fits, {answer.memory}"
        duration = progress.format_duration(time.monotonic() - since)
        print(
            f"compiled the {step.name} for {batch:,} per replica: {verdict} ({duration})", file=sys.stderr, flush=True
        )
        return answer


def run(
    options: Options,
    step_options: PretrainingStepOptions | FineTuningStepOptions,
    task_options: TaskStepOptions | None = None,
) -> int:
    """Reports whether the training steps fit, and the largest batch that fits. Returns the exit code: 0 if they fit.

    Args:
        options: The flags of the check.
        step_options: The flags of pretrain or finetune.
        task_options: The flags of the task, for finetune.

    Raises:
        UserError: If an option is invalid, or a package of the check's environment is missing.
    """
    if isinstance(step_options, PretrainingStepOptions):
        return _check_pretraining(options, step_options)
    assert task_options is not None
    return _check_finetuning(
        options, step_options.fill_in_defaults(get_options_class(options.task).defaults), task_options
    )


def get_replica_batch_size(options: PretrainingStepOptions, replicas: int, topology: str) -> int:
    """Returns the number of records per replica and step.

    Raises:
        UserError: If the batch cannot be divided evenly among replicas and micro-batches.
    """
    # Packed rows can be divided into any number of micro-batches.
    parts = 1 if options.pack_sequences else options.gradient_accumulation_steps
    if options.train_batch_size % (replicas * parts):
        raise UserError(
            f"--train_batch_size is {options.train_batch_size}; expected a multiple of the {replicas} replicas of "
            f"{topology} times --gradient_accumulation_steps={parts}, {replicas * parts}"
        )
    return options.train_batch_size // replicas


def _check_pretraining(options: Options, step_options: PretrainingStepOptions) -> int:
    config = steps.read_config(step_options)
    step_compiler = StepCompiler(options.topology, options.time_limit)
    batch = get_replica_batch_size(step_options, step_compiler.replicas, options.topology)
    step, parameters = steps.pretraining_step(config, step_options, step_compiler.replicas)
    parts = step_options.gradient_accumulation_steps
    packed = f" packed into {step_options.packed_rows:,} rows" if step_options.packed_rows else ""
    print(
        f"{parameters:,} parameters, length {step_options.max_seq_length}, "
        f"{step_options.max_predictions_per_seq} predictions, {step_options.dtype}, {step_options.optimizer}\n"
        f"{options.topology}: {step_compiler.replicas} replicas; a global batch of "
        f"{step_options.train_batch_size:,}{packed} is {batch:,} per replica"
        f"{f', in {parts} micro-batches' if parts > 1 else ''}",
        flush=True,
    )
    # First with the default effort, which needs as much memory as training. The search only needs to know what fits.
    try:
        first = step_compiler.compile(step, batch)
    except compiler.OutOfTimeError as error:
        raise UserError(
            f"the compiler did not finish within --time_limit={options.time_limit} seconds; raise the limit, or use a "
            "smaller model"
        ) from error
    if isinstance(first, Compiled):
        print(f"it fits a core of {first.device}. A step of one replica: {first}", flush=True)
    else:
        print(f"it does not fit: a replica {first}", flush=True)
    if options.find_largest_batch:
        print(_search_largest_batch(step_compiler, step, batch, parts, options, isinstance(first, Compiled)))
    return 0 if isinstance(first, Compiled) else 1


def _check_finetuning(options: Options, step_options: FineTuningStepOptions, task_options: TaskStepOptions) -> int:
    config = steps.read_config(step_options)
    step_compiler = StepCompiler(options.topology, options.time_limit)
    by_length, parameters = steps.finetuning_steps(config, options.task, step_options, task_options)
    train_batch, predict_batch = step_options.train_batch_size or 0, step_options.eval_batch_size
    # If a batch cannot be divided evenly, rows with weight 0 are added.
    rows, predicted = (-(-size // step_compiler.replicas) for size in (train_batch, predict_batch))
    print(
        f"{options.task}: {parameters:,} parameters, {step_options.dtype}; batches are padded to "
        f"{', '.join(str(length) for length, _, _ in reversed(by_length))} tokens\n"
        f"{options.topology}: {step_compiler.replicas} replicas; {train_batch:,} rows of a training batch are {rows:,} "
        f"per replica, {predict_batch:,} rows of prediction {predicted:,}",
        flush=True,
    )
    table = [("length", "step", "rows per replica", "TFLOP", "memory, GiB", "exchanged", "fits")]
    answers: list[Compiled | Refused | str] = []
    for length, training, prediction in by_length:
        for kind, step, batch in (("training", training, rows), ("prediction", prediction, predicted)):
            try:
                answers.append(step_compiler.compile(step, batch))
            except compiler.OutOfTimeError:
                answers.append(OUT_OF_TIME)
            print(f"{step.name}, {batch:,} rows of a replica: {answers[-1]}", flush=True)
            table.append((str(length), kind, *format_cells(answers[-1], batch)))
    print(markdown.table(table), flush=True)
    fits = [isinstance(answer, Compiled) for answer in answers]
    if options.find_largest_batch and answers[0] != OUT_OF_TIME:
        # The longest batches need the most memory: all lengths have the same number of rows.
        longest = by_length[0][1]
        print(f"{longest.name}: {_search_largest_batch(step_compiler, longest, rows, 1, options, fits[0])}")
    return 0 if all(fits) else 1


def _search_largest_batch(
    step_compiler: StepCompiler, step: ReplicaStep, batch: int, parts: int, options: Options, is_fitting: bool
) -> str:
    """Searches for the largest batch that fits. Returns a sentence about the result.

    Args:
        step_compiler: Compiles the steps.
        step: The step of one replica.
        batch: A number of rows per replica that has been compiled.
        parts: Number of micro-batches.
        options: The flags of the check.
        is_fitting: Whether `batch` fits.
    """
    known = {batch // parts: is_fitting}

    def fits(micro_batch: int) -> bool:
        if micro_batch not in known:
            known[micro_batch] = isinstance(step_compiler.compile(step, micro_batch * parts, fast=True), Compiled)
        return known[micro_batch]

    try:
        largest = parts * find_largest_batch(fits, batch // parts)
    except compiler.OutOfTimeError:
        return f"stopped after --time_limit={options.time_limit} seconds; {_describe_search(known, parts)}"
    if not largest:
        return "not even one record at a time fits"
    in_all = largest * step_compiler.replicas
    return f"the largest batch that fits, to within an eighth: {largest:,} per replica, {in_all:,} in all"


def _describe_search(known: dict[int, bool], parts: int) -> str:
    """Describes what an unfinished search has found.

    Args:
        known: Whether each micro-batch size that was tried fits.
        parts: Number of micro-batches.
    """
    fitting = max((batch for batch, fits in known.items() if fits), default=0)
    refused = min((batch for batch, fits in known.items() if not fits), default=0)
    least = f"{parts * fitting:,} per replica fits" if fitting else "no batch that fits was found"
    return f"{least}, {parts * refused:,} does not" if refused else f"{least}, larger batches were not tried"


def _check_environment() -> None:
    for package in ("tensorflow-tpu", "jax", "libtpu"):
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError as error:
            raise UserError(
                f"the package {package} is not installed; run `make tpu-check`, which creates the environment for it"
            ) from error
