"""How long a step takes on this machine, measured by taking some."""

import dataclasses
import functools
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from official_bert.data.dataset_options import dataset_options
from official_bert.data.record_schema import pretraining_schema
from official_bert.modeling.config import BertConfig
from official_bert.optimization import distribution
from official_bert.optimization.choices import DTYPES, ONE_DEVICE
from official_bert.optimization.schedules import WarmupPolynomialDecay
from official_bert.pretraining import cost
from official_bert.pretraining.train_step import Pretrainer
from planning.recipe import BATCH_SIZE, Part, compiles_whole_step

_SECONDS, _CALLS = 3.0, 3  # for how long steps are measured at the least, and in how many calls


@dataclasses.dataclass(frozen=True)
class Speed:
    """What a part of training takes."""

    start: float  # seconds before its first step: the model is built, the step compiled
    step: float  # seconds
    dtype: str  # of the computation


def measure(config: BertConfig, part: Part, next_sentence: bool, clock: Callable[[], float] = time.monotonic) -> Speed:
    """Measures steps on made-up records, as the plan's commands compile them, by a clock of seconds.

    Returns:
        The speed in the precision that has the shorter steps.
    """
    return min(measure_each(config, part, next_sentence, clock), key=lambda speed: speed.step)


def measure_each(
    config: BertConfig, part: Part, next_sentence: bool, clock: Callable[[], float] = time.monotonic
) -> list[Speed]:
    """Returns the speed in float32, and in bfloat16 where that may be faster."""
    return [_measure(config, part, next_sentence, clock, dtype) for dtype in _precisions()]


@functools.cache
def _precisions() -> tuple[str, ...]:
    """Those to measure: bfloat16 too on a processor that multiplies matrices faster in it than in float32."""
    strategy = distribution.get_strategy(ONE_DEVICE)
    is_faster = distribution.compiles_parts(strategy) and (
        cost.matmul_rate(strategy, "bfloat16") > cost.matmul_rate(strategy, "float32")
    )
    return ("float32", "bfloat16") if is_faster else ("float32",)


def _measure(config: BertConfig, part: Part, next_sentence: bool, clock: Callable[[], float], dtype: str) -> Speed:
    since = clock()
    strategy = distribution.get_strategy(ONE_DEVICE)
    pretrainer = Pretrainer(
        config=config,
        strategy=strategy,
        schedule=WarmupPolynomialDecay(1e-4, 1000, 10),
        seed=1,
        dtype=DTYPES[dtype],
        jit_compile=compiles_whole_step(dtype),
        compile_parts=distribution.compiles_parts(strategy),
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
    return Speed(start, float(np.median(seconds)), dtype)


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
