"""The flags of the check: its own, and the flags of pretrain and finetune that affect the training step."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from official_bert.errors import UserError
from official_bert.finetuning.options import FinetuningOptions
from official_bert.pretraining.options import PretrainingOptions
from official_bert.tasks.options import TABLE, TAGGING, TASK_OPTIONS, Defaults, TableOptions, TaskOptions
from official_bert.utils.command_line import Variant
from official_bert.utils.flags import ValidatedOptions, option

PRETRAINING = "pretraining"

# Flags of run_pretraining that change the step in a way that the check does not support.
REFUSED = {"left_to_right": "the check supports only masked language models; remove the flag"}


def _copy_flag(owner: type, name: str) -> Any:
    """Returns an option with the default, help and choices of another command's flag.

    Args:
        owner: The options class of the other command.
        name: Name of the flag.
    """
    field = next(field for field in dataclasses.fields(owner) if field.name == name)
    return dataclasses.field(default=field.default, default_factory=field.default_factory, metadata=field.metadata)


class _StepOptions(ValidatedOptions):
    """Base class of the options that describe a training step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if getattr(self, "dtype", None) == "float16":
            raise UserError("--dtype is float16, which is for GPUs; use bfloat16 on a TPU")


@dataclasses.dataclass(frozen=True)
class Options(ValidatedOptions):
    """The common flags of every check."""

    task: str = option(PRETRAINING, "Task of the step: pretraining, or a task of finetune.")
    topology: str = option("v5e:2x4", "Kind and layout of the TPU: v5e:1x1, v5e:2x4, v6e:2x2, v4:2x2x1, v3:2x2 ...")
    find_largest_batch: bool = option(True, "Search for the largest batch that fits. Takes minutes for BERT-Base.")
    time_limit: int = option(1200, "Time limit in seconds. The check then reports what it has found.", min=1)


@dataclasses.dataclass(frozen=True)
class PretrainingStepOptions(_StepOptions):
    """Options of the pre-training step."""

    bert_config_file: str = _copy_flag(PretrainingOptions, "bert_config_file")
    max_seq_length: int = _copy_flag(PretrainingOptions, "max_seq_length")
    max_predictions_per_seq: int = _copy_flag(PretrainingOptions, "max_predictions_per_seq")
    train_batch_size: int = _copy_flag(PretrainingOptions, "train_batch_size")
    gradient_accumulation_steps: int = _copy_flag(PretrainingOptions, "gradient_accumulation_steps")
    pack_sequences: bool = _copy_flag(PretrainingOptions, "pack_sequences")
    rematerialize: bool = _copy_flag(PretrainingOptions, "rematerialize")
    dtype: str = _copy_flag(PretrainingOptions, "dtype")
    optimizer: str = _copy_flag(PretrainingOptions, "optimizer")
    next_sentence_prediction: bool = _copy_flag(PretrainingOptions, "next_sentence_prediction")
    freeze: list[str] = _copy_flag(PretrainingOptions, "freeze")
    on_nonfinite: str = _copy_flag(PretrainingOptions, "on_nonfinite")
    packed_rows: int | None = option(
        None,
        "Number of rows into which --pack_sequences packs a batch. run_pretraining prints it at the start.",
        min=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pack_sequences != (self.packed_rows is not None):
            raise UserError(
                "--pack_sequences and --packed_rows must be used together. The number of packed rows depends on the "
                "records; run_pretraining prints it at the start"
            )


@dataclasses.dataclass(frozen=True)
class FineTuningStepOptions(_StepOptions):
    """The options of the fine-tuning step that all tasks have."""

    init: str = dataclasses.field(
        metadata={
            **_copy_flag(FinetuningOptions, "init").metadata,
            "help": "A bert_config.json, or a folder that has one.",
        }
    )
    max_seq_length: int = _copy_flag(FinetuningOptions, "max_seq_length")
    train_batch_size: int = _copy_flag(FinetuningOptions, "train_batch_size")
    eval_batch_size: int = _copy_flag(FinetuningOptions, "eval_batch_size")
    dtype: str = _copy_flag(FinetuningOptions, "dtype")
    gradient_accumulation_steps: int = _copy_flag(FinetuningOptions, "gradient_accumulation_steps")
    rematerialize: bool = _copy_flag(FinetuningOptions, "rematerialize")
    freeze: list[str] = _copy_flag(FinetuningOptions, "freeze")
    layer_decay: float = _copy_flag(FinetuningOptions, "layer_decay")

    def fill_in_defaults(self, defaults: Defaults) -> "FineTuningStepOptions":
        """Returns the options with the defaults of a task in place of None."""
        missing = {name for name in ("max_seq_length", "train_batch_size") if getattr(self, name) is None}
        return dataclasses.replace(self, **{name: getattr(defaults, name) for name in missing})


@dataclasses.dataclass(frozen=True)
class TaskStepOptions(_StepOptions):
    """The options of the fine-tuning step that depend on the task."""

    head: str = _copy_flag(TaskOptions, "head")
    lstm_units: int = _copy_flag(TaskOptions, "lstm_units")


@dataclasses.dataclass(frozen=True)
class LabelledTaskStepOptions(TaskStepOptions):
    """The options of tasks whose labels come from data. The check reads no data and takes their number instead."""

    num_labels: int = option(9, "Number of labels.", min=1)


@dataclasses.dataclass(frozen=True)
class TableStepOptions(LabelledTaskStepOptions):
    """The options of the table task."""

    label_kind: str = _copy_flag(TableOptions, "label_kind")


def make_variants() -> Mapping[str, Variant]:
    """Returns the additional flags for each value of --task."""
    own = {TAGGING: LabelledTaskStepOptions, TABLE: TableStepOptions}
    tasks = {
        task: Variant((FineTuningStepOptions, own.get(task, TaskStepOptions)), vars(options.defaults))
        for task, options in TASK_OPTIONS.items()
    }
    return {PRETRAINING: Variant((PretrainingStepOptions,)), **tasks}
