"""What training does, in numbers: the options with the size of the data."""

import dataclasses

from official_bert.finetuning.options import Options
from official_bert.optimization.choices import DTYPES, ONE_DEVICE


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """What training does.

    Attributes:
        train_batch_size: rows in a step, over all devices.
        learning_rate: the highest.
        num_steps: in all.
        steps_per_epoch: batches of an epoch.
        warmup_proportion: the share of the steps in which the rate rises.
        eval_steps: steps from one evaluation to the next.
        max_seq_length: the longest row.
        random_seed: of the head's weights, the order of the data and dropout.
        freeze: regular expressions of the encoder's layers that stay as they are.
        layer_decay: the rate of each layer by that of the layer above.
        dtype: a Keras dtype policy.
        micro_batches: into how many parts a replica's rows are cut.
        rematerialize: whether encoder blocks are computed a second time in the backward pass.
        strategy: as distribution.get_strategy names it.
    """

    train_batch_size: int
    learning_rate: float
    num_steps: int
    steps_per_epoch: int
    warmup_proportion: float
    eval_steps: int
    max_seq_length: int
    random_seed: int
    freeze: tuple[str, ...] = ()
    layer_decay: float = 1.0
    dtype: str = "float32"
    micro_batches: int = 1
    rematerialize: bool = False
    strategy: str = ONE_DEVICE


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
        layer_decay=options.layer_decay,
        dtype=DTYPES[options.dtype],
        micro_batches=options.gradient_accumulation_steps,
        rematerialize=options.rematerialize,
        strategy=options.strategy,
    )
