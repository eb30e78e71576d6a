"""The check itself: from the flags of run_pretraining to what a TPU's compiler says of its step."""

import dataclasses
import importlib.metadata
import sys
import time
from typing import Any

from official_bert import progress, records, training_options
from official_bert.command_line import option
from official_bert.config import BertConfig
from official_bert.errors import UserError
from tpu_check import compiler
from tpu_check.answers import Compiled, Refused, largest_fitting

_TRAINING = {field.name: field for field in dataclasses.fields(training_options.Options)}


def _as_in_training(name: str) -> Any:
    """The flag of run_pretraining: its default, help and choices."""
    field = _TRAINING[name]
    return dataclasses.field(default=field.default, default_factory=field.default_factory, metadata=field.metadata)


@dataclasses.dataclass(frozen=True)
class Options:
    """What the check is told: those flags of run_pretraining that the step depends on, and some of its own."""

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

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.type is int and getattr(self, field.name) < 1:
                raise UserError(f"--{field.name} is {getattr(self, field.name)}; expected at least 1")
        if self.dtype == "float16":
            raise UserError("--dtype is float16, which is for GPUs; a TPU computes in bfloat16")


def run(options: Options) -> int:
    """Says whether the step fits, and which batch would; returns 0 if it does, else 1.

    Raises:
        UserError: something given is wrong, or this is not the environment of the check.
    """
    config = BertConfig.from_json_file(options.bert_config_file)
    if options.max_seq_length > config.max_position_embeddings:
        raise UserError(
            f"--max_seq_length is {options.max_seq_length}, but {options.bert_config_file} has max_position_embeddings "
            f"{config.max_position_embeddings}"
        )
    _check_environment()
    replicas = compiler.replicas_of(options.topology)
    parts = options.gradient_accumulation_steps
    if options.train_batch_size % (replicas * parts):
        raise UserError(
            f"--train_batch_size is {options.train_batch_size}; expected a multiple of the {replicas} replicas of "
            f"{options.topology} times --gradient_accumulation_steps={parts}, {replicas * parts}"
        )
    from tpu_check import lowering  # late: it needs TensorFlow's TPU build

    pretrainer = lowering.build_pretrainer(
        config,
        dtype=training_options.DTYPES[options.dtype],
        optimizer=options.optimizer,
        frozen=options.freeze,
        micro_batches=parts,
        rematerialize=options.rematerialize,
        skip_nonfinite=options.on_nonfinite == "skip",
    )
    schema = records.pretraining_schema(options.max_seq_length, options.max_predictions_per_seq)
    given = options.train_batch_size // replicas
    print(
        f"{pretrainer.model.count_params():,} parameters, length {options.max_seq_length}, "
        f"{options.max_predictions_per_seq} predictions, {options.dtype}, {options.optimizer}\n"
        f"{options.topology}: {replicas} replicas; a global batch of {options.train_batch_size:,} is {given:,} per "
        f"replica{f', in {parts} micro-batches' if parts > 1 else ''}",
        flush=True,
    )

    def compiled(batch: int, quickly: bool) -> Compiled | Refused:
        since = time.monotonic()
        print(f"compiling for {batch:,} per replica ...", end="", file=sys.stderr, flush=True)
        step = lowering.lower(pretrainer, schema, batch, replicas)
        answer = compiler.compile_step(step, options.topology, quickly)
        if isinstance(answer, Compiled):
            # The compiler counts what is in a loop once; outside is the optimizer, less than a hundredth of it all.
            answer = dataclasses.replace(answer, flops=answer.flops * parts)
        verdict = answer if isinstance(answer, Refused) else f"fits, {answer.memory}"
        print(f" {verdict} ({progress.duration(time.monotonic() - since)})", file=sys.stderr, flush=True)
        return answer

    # The default effort first, for its memory is what training will use; the search needs the verdict alone.
    first = compiled(given, quickly=False)
    if isinstance(first, Compiled):
        print(f"it fits a core of {first.device}. A step of one replica: {first}", flush=True)
    else:
        print(f"it does not fit: a replica {first}", flush=True)
    if options.find_largest_batch:
        known = {given // parts: isinstance(first, Compiled)}

        def fits(micro_batch: int) -> bool:
            if micro_batch not in known:
                known[micro_batch] = isinstance(compiled(micro_batch * parts, quickly=True), Compiled)
            return known[micro_batch]

        largest = parts * largest_fitting(fits, given // parts)
        print(
            f"the largest batch that fits, to an eighth: {largest:,} per replica, {largest * replicas:,} in all"
            if largest
            else "not even one record at a time fits"
        )
    return 0 if isinstance(first, Compiled) else 1


def _check_environment() -> None:
    for package in ("tensorflow-tpu", "jax", "libtpu"):
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError as error:
            raise UserError(
                f"there is no {package} here; `make tpu-check` makes the environment that has it"
            ) from error
