"""The check itself: from the flags of pretrain or finetune to what a TPU's compiler says of the steps."""

import dataclasses
import importlib.metadata
import sys
import time

from official_bert.errors import UserError
from official_bert.tasks.options import get_options_class
from official_bert.utils import progress
from tools.tpu_check import compiler, steps
from tools.tpu_check.answers import Compiled, Refused, as_table, cells_of, largest_fitting
from tools.tpu_check.options import FineTuningStepOptions, Options, PretrainingStepOptions, TaskStepOptions
from tools.tpu_check.steps import ReplicaStep

OUT_OF_TIME = "not known: out of time"


class StepCompiler:
    """Compiles steps for a TPU, within a time limit for all of them.

    Args:
        topology: kind and layout.
        time_limit: in seconds.

    Attributes:
        topology: as given.
        replicas: of the topology.

    Raises:
        UserError: there is no such topology, or this is not the environment of the check.
    """

    def __init__(self, topology: str, time_limit: int) -> None:
        _check_environment()
        self.topology = topology
        self._deadline = time.monotonic() + time_limit
        self.replicas = compiler.replicas_of(topology)

    def compiled(self, step: ReplicaStep, batch: int, quickly: bool = False) -> Compiled | Refused:
        """Compiles a step for so many rows of a replica.

        Raises:
            compiler.OutOfTimeError: the time limit is over.
        """
        from tools.tpu_check import lowering  # late: it needs TensorFlow's TPU build

        since = time.monotonic()
        if since > self._deadline:
            raise compiler.OutOfTimeError
        with progress.report_elapsed_time(f"compiling the {step.name} for {batch:,} per replica"):
            lowered = lowering.lower(step, batch, self.replicas)
            seconds = max(1.0, self._deadline - time.monotonic())
            answer = compiler.compile_step(lowered, self.topology, quickly, seconds)
        if isinstance(answer, Compiled):
            # The compiler counts what is in a loop once; outside is the optimizer, less than a hundredth of it all.
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
    """Says whether the steps fit, and which batch would; returns 0 if they do, else 1.

    Raises:
        UserError: something given is wrong, or this is not the environment of the check.
    """
    if isinstance(step_options, PretrainingStepOptions):
        return _check_pretraining(options, step_options)
    assert task_options is not None
    return _check_finetuning(options, step_options.resolved(get_options_class(options.task).defaults), task_options)


def share_of_replica(options: PretrainingStepOptions, replicas: int, topology: str) -> int:
    """Returns the records of a replica.

    Raises:
        UserError: the batch cannot be cut.
    """
    # Packed rows are cut into parts whatever the number of records.
    parts = 1 if options.pack_sequences else options.gradient_accumulation_steps
    if options.train_batch_size % (replicas * parts):
        raise UserError(
            f"--train_batch_size is {options.train_batch_size}; expected a multiple of the {replicas} replicas of "
            f"{topology} times --gradient_accumulation_steps={parts}, {replicas * parts}"
        )
    return options.train_batch_size // replicas


def _check_pretraining(options: Options, step_options: PretrainingStepOptions) -> int:
    config = steps.read_config(step_options)
    of_tpu = StepCompiler(options.topology, options.time_limit)
    batch = share_of_replica(step_options, of_tpu.replicas, options.topology)
    step, parameters = steps.pretraining_step(config, step_options, of_tpu.replicas)
    parts = step_options.gradient_accumulation_steps
    packed = f" packed into {step_options.packed_rows:,} rows" if step_options.packed_rows else ""
    print(
        f"{parameters:,} parameters, length {step_options.max_seq_length}, "
        f"{step_options.max_predictions_per_seq} predictions, {step_options.dtype}, {step_options.optimizer}\n"
        f"{options.topology}: {of_tpu.replicas} replicas; a global batch of {step_options.train_batch_size:,}{packed} "
        f"is {batch:,} per replica{f', in {parts} micro-batches' if parts > 1 else ''}",
        flush=True,
    )
    # The default effort first, for its memory is what training will use; the search needs the verdict alone.
    try:
        first = of_tpu.compiled(step, batch)
    except compiler.OutOfTimeError as error:
        raise UserError(
            f"the compiler did not end within --time_limit={options.time_limit} seconds, so that nothing is known of "
            "this run; give it more, or a smaller model"
        ) from error
    if isinstance(first, Compiled):
        print(f"it fits a core of {first.device}. A step of one replica: {first}", flush=True)
    else:
        print(f"it does not fit: a replica {first}", flush=True)
    if options.find_largest_batch:
        print(_largest_batch(of_tpu, step, batch, parts, options, isinstance(first, Compiled)))
    return 0 if isinstance(first, Compiled) else 1


def _check_finetuning(options: Options, step_options: FineTuningStepOptions, task_options: TaskStepOptions) -> int:
    config = steps.read_config(step_options)
    of_tpu = StepCompiler(options.topology, options.time_limit)
    by_length, parameters = steps.finetuning_steps(config, options.task, step_options, task_options)
    train_batch, predict_batch = step_options.train_batch_size or 0, step_options.eval_batch_size
    # Where rows do not come out even, rows that weigh nothing are added.
    rows, predicted = (-(-size // of_tpu.replicas) for size in (train_batch, predict_batch))
    print(
        f"{options.task}: {parameters:,} parameters, {step_options.dtype}; batches are padded to "
        f"{', '.join(str(length) for length, _, _ in reversed(by_length))} tokens\n"
        f"{options.topology}: {of_tpu.replicas} replicas; {train_batch:,} rows of a training batch are {rows:,} per "
        f"replica, {predict_batch:,} of prediction {predicted:,}",
        flush=True,
    )
    table = [("length", "step", "rows per replica", "TFLOP", "memory, GiB", "exchanged", "fits")]
    answers: list[Compiled | Refused | str] = []
    for length, training, prediction in by_length:
        for kind, step, batch in (("training", training, rows), ("prediction", prediction, predicted)):
            try:
                answers.append(of_tpu.compiled(step, batch))
            except compiler.OutOfTimeError:
                answers.append(OUT_OF_TIME)
            print(f"{step.name}, {batch:,} rows of a replica: {answers[-1]}", flush=True)
            table.append((str(length), kind, *cells_of(answers[-1], batch)))
    print(as_table(table), flush=True)
    fits = [isinstance(answer, Compiled) for answer in answers]
    if options.find_largest_batch and answers[0] != OUT_OF_TIME:
        # The longest batches need the most memory, and all lengths have the same number of rows.
        longest = by_length[0][1]
        print(f"{longest.name}: {_largest_batch(of_tpu, longest, rows, 1, options, fits[0])}")
    return 0 if all(fits) else 1


def _largest_batch(
    of_tpu: StepCompiler, step: ReplicaStep, batch: int, parts: int, options: Options, is_fitting: bool
) -> str:
    """Looks for the largest batch that fits, and says which it is."""
    known = {batch // parts: is_fitting}

    def fits(micro_batch: int) -> bool:
        if micro_batch not in known:
            known[micro_batch] = isinstance(of_tpu.compiled(step, micro_batch * parts, quickly=True), Compiled)
        return known[micro_batch]

    try:
        largest = parts * largest_fitting(fits, batch // parts)
    except compiler.OutOfTimeError:
        return f"--time_limit={options.time_limit} seconds are over; {_known_so_far(known, parts)}"
    if not largest:
        return "not even one record at a time fits"
    return f"the largest batch that fits, to an eighth: {largest:,} per replica, {largest * of_tpu.replicas:,} in all"


def _known_so_far(known: dict[int, bool], parts: int) -> str:
    """What the search for the largest batch has found out, from verdicts by micro-batch."""
    fitting = max((batch for batch, fits in known.items() if fits), default=0)
    refused = min((batch for batch, fits in known.items() if not fits), default=0)
    least = f"{parts * fitting:,} per replica fits" if fitting else "no batch that fits was found"
    return f"{least}, {parts * refused:,} does not" if refused else f"{least}, nothing larger was tried to the end"


def _check_environment() -> None:
    for package in ("tensorflow-tpu", "jax", "libtpu"):
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError as error:
            raise UserError(
                f"there is no {package} here; `make tpu-check` makes the environment that has it"
            ) from error
