"""How long a step takes on this machine, measured by taking some."""

import dataclasses
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from official_bert.data.dataset_options import dataset_options
from official_bert.data.record_schema import pretraining_schema
from official_bert.modeling.config import BertConfig
from official_bert.optimization import distribution
from official_bert.optimization.choices import ONE_DEVICE
from official_bert.optimization.schedules import WarmupPolynomialDecay
from official_bert.pretraining.train_step import Pretrainer
from planning.recipe import BATCH_SIZE, Part

_SECONDS, _CALLS = 3.0, 3  # for how long steps are measured at the least, and in how many calls


@dataclasses.dataclass(frozen=True)
class Speed:
    """What a part of training takes."""

    start: float  # seconds before its first step: the model is built, the step compiled
    step: float  # seconds


def measure(config: BertConfig, part: Part, next_sentence: bool, clock: Callable[[], float] = time.monotonic) -> Speed:
    """Measures steps on made-up records, compiled as the plan's commands compile them, by a clock of seconds."""
    since = clock()
    strategy = distribution.get_strategy(ONE_DEVICE)
    pretrainer = Pretrainer(
        config=config,
        strategy=strategy,
        schedule=WarmupPolynomialDecay(1e-4, 1000, 10),
        seed=1,
        jit_compile=True,
        next_sentence=next_sentence,
    )
    data = tf.data.Dataset.from_tensors(_batch(config, part)).repeat()
    data = data.with_options(dataset_options())
    batches = iter(strategy.experimental_distribute_dataset(data))
    pretrainer.train(batches, 1)
    start = clock() - since
    # A few steps say how many fill the time; the median call counts, as others may use the machine too.
    since = clock()
    pretrainer.train(batches, 3)
    steps = max(3, round(3 * _SECONDS / _CALLS / (clock() - since)))
    seconds = []
    for _ in range(_CALLS):
        since = clock()
        pretrainer.train(batches, steps)
        seconds.append((clock() - since) / steps)
    return Speed(start, float(np.median(seconds)))


def _batch(config: BertConfig, part: Part) -> dict[str, np.ndarray]:
    """A batch of records without padding, of random tokens."""
    rng = np.random.default_rng(0)
    schema = pretraining_schema(part.length, part.predictions, config.vocab_size, config.type_vocab_size)
    batch = {
        name: rng.integers(0, feature.limit, (BATCH_SIZE, *feature.shape), np.int32)
        if feature.limit
        else np.ones((BATCH_SIZE, *feature.shape), np.float32)
        for name, feature in schema.items()
    }
    return {**batch, "input_mask": np.ones_like(batch["input_mask"])}
