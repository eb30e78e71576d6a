"""The flags of the check: those of pretrain and finetune that the step depends on, and some of its own."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from official_bert.errors import UserError
from official_bert.finetuning.options import Options as FineTuningOptions
from official_bert.pretraining.options import Options as PretrainingOptions
from official_bert.tasks.options import TABLE, TAGGING, TASK_OPTIONS, Defaults, TableOptions, TaskOptions
from official_bert.utils.command_line import Variant
from official_bert.utils.flags import ValidatedOptions, option

PRETRAINING = "pretraining"

# Flags of run_pretraining that change the step in a way that the check does not know.
REFUSED = {"left_to_right": "the check compiles masked language models alone; leave it out"}


def _as_in(owner: type, name: str) -> Any:
    """The flag of another command: its default, help and choices."""
    field = next(field for field in dataclasses.fields(owner) if field.name == name)
    return dataclasses.field(default=field.default, default_factory=field.default_factory, metadata=field.metadata)


class _StepOptions(ValidatedOptions):
    """What a step depends on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if getattr(self, "dtype", None) == "float16":
            raise UserError("--dtype is float16, which is for GPUs; a TPU computes in bfloat16")


@dataclasses.dataclass(frozen=True)
class Options(ValidatedOptions):
    """The flags of every check."""

    task: str = option(PRETRAINING, "What the step learns: pretraining, or a task of finetune.")
    topology: str = option("v5e:2x4", "Kind and layout of the TPU: v5e:1x1, v5e:2x4, v6e:2x2, v4:2x2x1, v3:2x2 ...")
    find_largest_batch: bool = option(True, "Whether to look for the largest batch that fits: minutes for BERT-Base.")
    time_limit: int = option(1200, "Seconds after which the check ends with what it knows by then.", min=1)


@dataclasses.dataclass(frozen=True)
class PretrainingStepOptions(_StepOptions):
    """What the step of pre-training depends on."""

    bert_config_file: str = _as_in(PretrainingOptions, "bert_config_file")
    max_seq_length: int = _as_in(PretrainingOptions, "max_seq_length")
    max_predictions_per_seq: int = _as_in(PretrainingOptions, "max_predictions_per_seq")
    train_batch_size: int = _as_in(PretrainingOptions, "train_batch_size")
    gradient_accumulation_steps: int = _as_in(PretrainingOptions, "gradient_accumulation_steps")
    pack_sequences: bool = _as_in(PretrainingOptions, "pack_sequences")
    rematerialize: bool = _as_in(PretrainingOptions, "rematerialize")
    dtype: str = _as_in(PretrainingOptions, "dtype")
    optimizer: str = _as_in(PretrainingOptions, "optimizer")
    next_sentence_prediction: bool = _as_in(PretrainingOptions, "next_sentence_prediction")
    freeze: list[str] = _as_in(PretrainingOptions, "freeze")
    on_nonfinite: str = _as_in(PretrainingOptions, "on_nonfinite")
    packed_rows: int | None = option(
        None,
        "Of --pack_sequences: the rows that a batch is packed into, which run_pretraining prints when it begins.",
        min=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pack_sequences != (self.packed_rows is not None):
            raise UserError(
                "--pack_sequences and --packed_rows go together: how many rows a batch is packed into depends on the "
                "records, and run_pretraining prints it when it begins; one of them is missing"
            )


@dataclasses.dataclass(frozen=True)
class FineTuningStepOptions(_StepOptions):
    """What the step of fine-tuning depends on, of every task."""

    init: str = dataclasses.field(
        metadata={**_as_in(FineTuningOptions, "init").metadata, "help": "A bert_config.json, or a folder that has one."}
    )
    max_seq_length: int | None = _as_in(FineTuningOptions, "max_seq_length")
    train_batch_size: int | None = _as_in(FineTuningOptions, "train_batch_size")
    eval_batch_size: int = _as_in(FineTuningOptions, "eval_batch_size")
    dtype: str = _as_in(FineTuningOptions, "dtype")
    gradient_accumulation_steps: int = _as_in(FineTuningOptions, "gradient_accumulation_steps")
    rematerialize: bool = _as_in(FineTuningOptions, "rematerialize")
    freeze: list[str] = _as_in(FineTuningOptions, "freeze")
    layer_decay: float = _as_in(FineTuningOptions, "layer_decay")

    def resolved(self, defaults: Defaults) -> "FineTuningStepOptions":
        """Returns the options with a task's defaults in place of None."""
        missing = {name for name in ("max_seq_length", "train_batch_size") if getattr(self, name) is None}
        return dataclasses.replace(self, **{name: getattr(defaults, name) for name in missing})


@dataclasses.dataclass(frozen=True)
class TaskStepOptions(_StepOptions):
    """What the head of a task depends on."""

    head: str = _as_in(TaskOptions, "head")
    lstm_units: int = _as_in(TaskOptions, "lstm_units")


@dataclasses.dataclass(frozen=True)
class LabelledTaskStepOptions(TaskStepOptions):
    """Of tasks whose labels come from their data, which the check does not read."""

    num_labels: int = option(9, "How many labels the data have.", min=1)


@dataclasses.dataclass(frozen=True)
class TableStepOptions(LabelledTaskStepOptions):
    """Of a table."""

    label_kind: str = _as_in(TableOptions, "label_kind")


def variants() -> Mapping[str, Variant]:
    """Returns the flags by --task."""
    own = {TAGGING: LabelledTaskStepOptions, TABLE: TableStepOptions}
    tasks = {
        task: Variant((FineTuningStepOptions, own.get(task, TaskStepOptions)), vars(options.defaults))
        for task, options in TASK_OPTIONS.items()
    }
    return {PRETRAINING: Variant((PretrainingStepOptions,)), **tasks}
