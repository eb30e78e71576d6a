"""The check itself: from the flags of run_pretraining to what a TPU's compiler says of its step."""

import dataclasses
import importlib.metadata
import sys
import time

from official_bert import progress, records
from official_bert.command_line import option
from official_bert.config import BertConfig
from official_bert.errors import UserError
from official_bert.training import DTYPES
from tpu_check import compiler
from tpu_check.answers import Compiled, Refused, largest_fitting


@dataclasses.dataclass(frozen=True)
class Options:
    """What the check is told; flags that run_pretraining has too mean the same and have the same defaults."""

    bert_config_file: str = option(dataclasses.MISSING, "The model's bert_config.json; configs/models has all sizes.")
    max_seq_length: int = option(128, "Length of the records, in tokens.")
    max_predictions_per_seq: int = option(20, "Predictions in a record.")
    train_batch_size: int = option(32, "Records in a step, over all replicas.")
    dtype: str = option("float32", "Of the computation; weights, softmax and losses are float32.", tuple(DTYPES))
    topology: str = option("v5e:2x4", "Kind and layout of the TPU: v5e:2x4, v6e:2x2, v4:2x2x1, v3:2x2 ...")
    find_largest_batch: bool = option(True, "Whether to look for the largest batch that fits: minutes for BERT-Base.")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.type is int and getattr(self, field.name) < 1:
                raise UserError(f"--{field.name} is {getattr(self, field.name)}; expected at least 1")


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
    if options.train_batch_size % replicas:
        raise UserError(
            f"--train_batch_size is {options.train_batch_size}; expected a multiple of the {replicas} replicas of "
            f"{options.topology}"
        )
    from tpu_check import lowering  # late: it needs TensorFlow's TPU build

    pretrainer = lowering.build_pretrainer(config, DTYPES[options.dtype])
    schema = records.pretraining_schema(options.max_seq_length, options.max_predictions_per_seq)
    given = options.train_batch_size // replicas
    print(
        f"{pretrainer.model.count_params():,} parameters, length {options.max_seq_length}, "
        f"{options.max_predictions_per_seq} predictions, {options.dtype}\n"
        f"{options.topology}: {replicas} replicas; a global batch of {options.train_batch_size:,} is {given:,} per "
        "replica",
        flush=True,
    )

    def compiled(batch: int, quickly: bool) -> Compiled | Refused:
        since = time.monotonic()
        print(f"compiling for {batch:,} per replica ...", end="", file=sys.stderr, flush=True)
        step = lowering.lower(pretrainer, schema, batch, replicas)
        variables = range(step.inputs, step.inputs + step.variables)
        answer = compiler.compile_step(step.hlo, options.topology, variables, step.outputs, quickly)
        verdict = answer if isinstance(answer, Refused) else "fits"
        print(f" {verdict} ({progress.duration(time.monotonic() - since)})", file=sys.stderr, flush=True)
        return answer

    # The default effort first, for its memory is what training will use; the search needs the verdict alone.
    first = compiled(given, quickly=False)
    if isinstance(first, Compiled):
        print(f"it fits a core of {first.device}. A step of one replica: {first}", flush=True)
    else:
        print(f"it does not fit: a replica {first}", flush=True)
    if options.find_largest_batch:
        known = {given: isinstance(first, Compiled)}

        def fits(batch: int) -> bool:
            if batch not in known:
                known[batch] = isinstance(compiled(batch, quickly=True), Compiled)
            return known[batch]

        largest = largest_fitting(fits, given)
        print(
            f"the largest batch that fits, to an eighth: {largest:,} per replica, {largest * replicas:,} in all"
            if largest
            else "not even one record per replica fits"
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
