"""The settings of the trainer, which follow from the options and the number of training rows."""

import dataclasses
from typing import Any

from official_bert.finetuning.options import Options
from official_bert.optimization.choices import DTYPES


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The settings of the trainer."""

    train_batch_size: int  # rows per step, over all devices
    learning_rate: float  # maximum learning rate
    num_steps: int  # steps of the whole run
    steps_per_epoch: int  # batches per epoch
    warmup_proportion: float  # share of the steps in which the learning rate rises
    eval_steps: int  # steps between two evaluations
    max_seq_length: int  # maximum number of tokens of a row
    random_seed: int  # seed of the head's weights, the order of the data and dropout
    freeze: tuple[str, ...] = ()  # regular expressions of encoder layers to freeze
    balanced_sampling: bool = False  # whether an epoch has equally many rows of each class
    layer_decay: float = 1.0  # learning rate of a layer divided by the rate of the next higher layer
    optimizer_settings: dict[str, Any] = dataclasses.field(default_factory=dict)  # arguments of BertAdamW
    group_by_length: bool = False  # whether the rows of a batch have similar lengths
    dtype: str = "float32"  # a Keras dtype policy
    micro_batches: int = 1  # micro-batches that a replica's rows are split into
    rematerialize: bool = False  # whether the backward pass computes encoder blocks again


def make_training_config(options: Options, rows: int) -> TrainingConfig:
    """Computes the settings of the trainer.

    Args:
        options: Options of the run.
        rows: Number of training rows.
    """
    settings = options.settings()
    steps_per_epoch = -(-rows // settings.train_batch_size)
    return TrainingConfig(
        train_batch_size=settings.train_batch_size,
        learning_rate=settings.learning_rate,
        num_steps=max(1, int(steps_per_epoch * settings.num_train_epochs)),
        steps_per_epoch=steps_per_epoch,
        warmup_proportion=options.warmup_proportion,
        eval_steps=options.eval_steps or steps_per_epoch,
        max_seq_length=settings.max_seq_length,
        random_seed=options.random_seed,
        freeze=tuple(options.freeze),
        balanced_sampling=options.balanced_sampling,
        layer_decay=options.layer_decay,
        optimizer_settings=options.optimizer_settings,
        group_by_length=options.group_by_length,
        dtype=DTYPES[options.dtype],
        micro_batches=options.gradient_accumulation_steps,
        rematerialize=options.rematerialize,
    )
