"""What a step learns from and how: batches, optimizer, schedule, losses."""

import dataclasses

from official_bert.optimization.choices import OPTIMIZERS
from official_bert.utils.flags import TRAINING, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The flags about training, of its first phase where there are two."""

    do_train: bool = option(False, "Whether to train.", group=TRAINING, free=True)
    train_batch_size: int = option(32, "Records in a step, over all devices and micro-batches.", group=TRAINING)
    learning_rate: float = option(5e-5, "The highest learning rate.", group=TRAINING)
    num_train_steps: int = option(100_000, "Steps in all (of the first phase, if there are two).", group=TRAINING)
    num_warmup_steps: int = option(10_000, "Steps in which the learning rate rises from 0.", group=TRAINING)
    warmup_jump: bool = option(
        True, "Whether the rate drops after warm-up as in the original, where decay counts from 0.", group=TRAINING
    )
    decay_power: float = option(
        1.0, "The power of the rate's polynomial decay; 1 is the original's line.", group=TRAINING
    )
    end_learning_rate: float = option(0.0, "The rate at the last step.", group=TRAINING)
    next_sentence_prediction: bool = option(
        True,
        "Whether the loss of the records' sentence labels (next sentence, or order) is trained; without it the pooler "
        "keeps its initial weights.",
        group=TRAINING,
    )
    optimizer: str = option(
        "adamw", "adamw: the original's; lamb: for large batches; keras_adamw.", OPTIMIZERS, group=TRAINING
    )
    freeze: list[str] = option(
        [], "Regular expressions of layers' whole names, separated by commas: not trained.", group=TRAINING
    )
    random_seed: int = option(12345, "The seed of initial weights, order of records and dropout.", group=TRAINING)
    gradient_accumulation_steps: int = option(
        1, "Parts that each device's share of a batch is cut into: less memory, the same step.", group=TRAINING
    )
    pack_sequences: bool = option(
        False, "Whether short records share a row: less padding, the same losses and gradients.", group=TRAINING
    )
    on_nonfinite: str = option(
        "stop",
        "What to do with a step whose loss or gradient is not finite.",
        ("stop", "skip"),
        group=TRAINING,
        free=True,
    )
