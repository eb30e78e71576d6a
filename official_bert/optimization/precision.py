"""Selects the precision of a training run, and decides whether XLA compiles its step."""

import functools
import time

import tensorflow as tf

from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.optimization import distribution
from official_bert.optimization.choices import AUTO

_SECONDS = 0.8  # Time for the measurement, without the first call of each precision.
_MULTIPLICATIONS = 5e8  # In one timed product, at most: a few hundredths of a second.
# Only products are faster in bfloat16. The casts around them take time, so a small advantage would be lost.
_WORTHWHILE = 0.8


def resolve_dtype(
    dtype: str,
    earlier: str | None,
    strategy: tf.distribute.Strategy,
    config: BertConfig,
    tokens: int,
) -> str:
    """Returns the precision of a run: "float32", "bfloat16" or "float16". For "auto", measures which one is faster.

    Args:
        dtype: Value of --dtype.
        earlier: Precision of the run that is resumed, which "auto" keeps. None if the run is new.
        strategy: The distribution strategy. "auto" selects bfloat16 on a TPU.
        config: Sizes of the model.
        tokens: Number of tokens in a step.

    Raises:
        UserError: If `dtype` is "auto" and there are several workers, which might measure differently.
    """
    if dtype != AUTO:
        return dtype
    if earlier:
        return earlier
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return "bfloat16"
    if distribution.is_multi_worker(strategy):
        raise UserError(
            "--dtype=auto measures the speed of one machine, so it cannot be used with "
            "--distribution_strategy=multi_worker. Pass --dtype=float32 or --dtype=bfloat16."
        )
    seconds = _time_products(tokens, config.hidden_size, config.intermediate_size)
    chosen = "bfloat16" if seconds["bfloat16"] < _WORTHWHILE * seconds["float32"] else "float32"
    timings = ", ".join(f"{1000 * value:.2f} ms in {name}" for name, value in seconds.items())
    print(f"--dtype=auto: a matrix product takes {timings}; using {chosen}", flush=True)
    return chosen


def should_jit_compile(requested: bool, dtype: str, strategy: tf.distribute.Strategy) -> bool:
    """Returns whether XLA compiles the whole training step: if requested, except for bfloat16 on a CPU.

    On a CPU, XLA's matrix products do not use the processor's bfloat16 instructions, so such a step would be slower.

    Args:
        requested: Value of --jit_compile.
        dtype: Precision of the run.
        strategy: The distribution strategy.
    """
    if requested and dtype == "bfloat16" and distribution.compiles_parts(strategy):
        print("note: --jit_compile is off, because XLA's bfloat16 products are slow on a CPU", flush=True)
        return False
    return requested


@functools.cache  # All runs of a sweep use the same precision.
def _time_products(tokens: int, hidden_size: int, intermediate_size: int) -> dict[str, float]:
    """Measures a matrix product in float32 and bfloat16, and returns the shortest time in seconds by dtype.

    The factors are an encoder block's input and the first matrix of its feed-forward network.

    Args:
        tokens: Number of tokens in a step.
        hidden_size: Size of the block's input.
        intermediate_size: Size of the feed-forward network.
    """
    rows = max(1, min(tokens, int(_MULTIPLICATIONS / (hidden_size * intermediate_size))))
    multiply = tf.function(tf.matmul, autograph=False)
    operands = {
        dtype: (tf.ones((rows, hidden_size), dtype), tf.ones((hidden_size, intermediate_size), dtype))
        for dtype in ("float32", "bfloat16")
    }

    def time_product(dtype: str) -> float:
        since = time.perf_counter()
        multiply(*operands[dtype])[0, 0].numpy()  # Waits for the device.
        return time.perf_counter() - since

    for dtype in operands:
        time_product(dtype)
    end = time.monotonic() + _SECONDS
    seconds = {dtype: time_product(dtype) for dtype in operands}
    while time.monotonic() < end:
        seconds = {dtype: min(before, time_product(dtype)) for dtype, before in seconds.items()}
    return seconds
