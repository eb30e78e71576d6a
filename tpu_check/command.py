"""The check itself: from the flags of run_pretraining to what a TPU's compiler says of its step."""

import dataclasses
import importlib.metadata
import sys
import time
from typing import Any

from official_bert.data import record_schema
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.optimization.choices import DTYPES
from official_bert.pretraining import options as pretraining_options
from official_bert.utils import progress
from official_bert.utils.flags import option
from tpu_check import compiler
from tpu_check.answers import Compiled, Refused, largest_fitting

_TRAINING = {field.name: field for field in dataclasses.fields(pretraining_options.Options)}


def _as_in_training(name: str) -> Any:
    """The flag of run_pretraining: its default, help and choices."""
    field = _TRAINING[name]
    return dataclasses.field(default=field.default, default_factory=field.default_factory, metadata=field.metadata)


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the check: those of run_pretraining that the step depends on, and some of its own."""

    bert_config_file: str = _as_in_training("bert_config_file")
    max_seq_length: int = _as_in_training("max_seq_length")
    max_predictions_per_seq: int = _as_in_training("max_predictions_per_seq")
    train_batch_size: int = _as_in_training("train_batch_size")
    gradient_accumulation_steps: int = _as_in_training("gradient_accumulation_steps")
    rematerialize: bool = _as_in_training("rematerialize")
    dtype: str = _as_in_training("dtype")
    optimizer: str = _as_in_training("optimizer")
    freeze: list[str] = _as_in_training("freeze")
    on_nonfinite: str = _as_in_training("on_nonfinite")
    topology: str = option("v5e:2x4", "Kind and layout of the TPU: v5e:1x1, v5e:2x4, v6e:2x2, v4:2x2x1, v3:2x2 ...")
    find_largest_batch: bool = option(True, "Whether to look for the largest batch that fits: minutes for BERT-Base.")
    time_limit: int = option(1200, "Seconds after which the check ends with what it knows by then.")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.type is int and getattr(self, field.name) < 1:
                raise UserError(f"--{field.name} is {getattr(self, field.name)}; expected at least 1")
        if self.dtype == "float16":
            raise UserError("--dtype is float16, which is for GPUs; a TPU computes in bfloat16")


class StepCheck:
    """The step of a run, compiled for batches of any size.

    Args:
        options: of the run.

    Attributes:
        batch: records of a replica.
        replicas: of the topology.

    Raises:
        UserError: something given is wrong, or this is not the environment of the check.
    """

    def __init__(self, options: Options) -> None:
        config = BertConfig.from_json_file(options.bert_config_file)
        if options.max_seq_length > config.max_position_embeddings:
            raise UserError(
                f"--max_seq_length is {options.max_seq_length}, but {options.bert_config_file} has "
                f"max_position_embeddings {config.max_position_embeddings}"
            )
        _check_environment()
        self._options = options
        self._deadline = time.monotonic() + options.time_limit
        self.replicas = compiler.replicas_of(options.topology)
        parts = options.gradient_accumulation_steps
        if options.train_batch_size % (self.replicas * parts):
            raise UserError(
                f"--train_batch_size is {options.train_batch_size}; expected a multiple of the {self.replicas} "
                f"replicas of {options.topology} times --gradient_accumulation_steps={parts}, {self.replicas * parts}"
            )
        self.batch = options.train_batch_size // self.replicas
        from tpu_check import lowering  # late: it needs TensorFlow's TPU build

        self._lower = lowering.lower
        self._pretrainer = lowering.build_pretrainer(
            config,
            dtype=DTYPES[options.dtype],
            optimizer=options.optimizer,
            frozen=options.freeze,
            micro_batches=parts,
            rematerialize=options.rematerialize,
            skip_nonfinite=options.on_nonfinite == "skip",
        )
        self._schema = record_schema.pretraining_schema(options.max_seq_length, options.max_predictions_per_seq)

    def __str__(self) -> str:
        options, parts = self._options, self._options.gradient_accumulation_steps
        return (
            f"{self._pretrainer.model.count_params():,} parameters, length {options.max_seq_length}, "
            f"{options.max_predictions_per_seq} predictions, {options.dtype}, {options.optimizer}\n"
            f"{options.topology}: {self.replicas} replicas; a global batch of {options.train_batch_size:,} is "
            f"{self.batch:,} per replica{f', in {parts} micro-batches' if parts > 1 else ''}"
        )

    def compiled(self, batch: int, quickly: bool) -> Compiled | Refused:
        """Compiles the step for so many records of a replica.

        Raises:
            compiler.OutOfTimeError: the time limit of the options is over.
        """
        since = time.monotonic()
        with progress.waiting(f"compiling for {batch:,} per replica"):
            step = self._lower(self._pretrainer, self._schema, batch, self.replicas)
            seconds = max(1.0, self._deadline - time.monotonic())
            answer = compiler.compile_step(step, self._options.topology, quickly, seconds)
        if isinstance(answer, Compiled):
            # The compiler counts what is in a loop once; outside is the optimizer, less than a hundredth of it all.
            answer = dataclasses.replace(answer, flops=answer.flops * self._options.gradient_accumulation_steps)
        verdict = answer if isinstance(answer, Refused) else f"fits, {answer.memory}"
        duration = progress.duration(time.monotonic() - since)
        print(f"compiled for {batch:,} per replica: {verdict} ({duration})", file=sys.stderr, flush=True)
        return answer


def run(options: Options) -> int:
    """Says whether the step fits, and which batch would; returns 0 if it does, else 1.

    Raises:
        UserError: something given is wrong, or this is not the environment of the check.
    """
    check = StepCheck(options)
    print(check, flush=True)
    # The default effort first, for its memory is what training will use; the search needs the verdict alone.
    try:
        first = check.compiled(check.batch, quickly=False)
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
        print(_largest_batch(check, options, isinstance(first, Compiled)))
    return 0 if isinstance(first, Compiled) else 1


def _largest_batch(check: StepCheck, options: Options, is_fitting: bool) -> str:
    """Looks for the largest batch that fits, and says which it is."""
    parts = options.gradient_accumulation_steps
    known = {check.batch // parts: is_fitting}

    def fits(micro_batch: int) -> bool:
        if micro_batch not in known:
            known[micro_batch] = isinstance(check.compiled(micro_batch * parts, quickly=True), Compiled)
        return known[micro_batch]

    try:
        largest = parts * largest_fitting(fits, check.batch // parts)
    except compiler.OutOfTimeError:
        return f"--time_limit={options.time_limit} seconds are over; {_known_so_far(known, parts)}"
    if not largest:
        return "not even one record at a time fits"
    return f"the largest batch that fits, to an eighth: {largest:,} per replica, {largest * check.replicas:,} in all"


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
