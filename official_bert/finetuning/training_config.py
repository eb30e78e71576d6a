"""What training does, in numbers: the options with the size of the data."""

import dataclasses

from official_bert.finetuning.options import Options
from official_bert.optimization.choices import DTYPES, ONE_DEVICE


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """What training does."""

    train_batch_size: int  # rows in a step, over all devices
    learning_rate: float  # the highest
    num_steps: int  # in all
    steps_per_epoch: int  # batches of an epoch
    warmup_proportion: float  # the share of the steps in which the rate rises
    eval_steps: int  # steps from one evaluation to the next
    max_seq_length: int  # the longest row
    random_seed: int  # of the head's weights, the order of the data and dropout
    freeze: tuple[str, ...] = ()  # regular expressions of the encoder's layers that stay as they are
    balanced_sampling: bool = False  # whether an epoch has as many rows of each class
    layer_decay: float = 1.0  # the rate of each layer by that of the layer above
    adam_bias_correction: bool = True
    group_by_length: bool = False  # whether the rows of a batch have similar lengths
    dtype: str = "float32"  # a Keras dtype policy
    micro_batches: int = 1  # into how many parts a replica's rows are cut
    rematerialize: bool = False  # whether encoder blocks are computed a second time in the backward pass
    strategy: str = ONE_DEVICE  # as distribution.get_strategy names it


def training_config(options: Options, rows: int) -> TrainingConfig:
    """Returns what training does.

    Args:
        options: of the run.
        rows: how many there are to learn from.
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
        adam_bias_correction=options.adam_bias_correction,
        group_by_length=options.group_by_length,
        dtype=DTYPES[options.dtype],
        micro_batches=options.gradient_accumulation_steps,
        rematerialize=options.rematerialize,
        strategy=options.strategy,
    )
