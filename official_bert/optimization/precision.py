"""The precision of a training run: what --dtype=auto selects on this machine."""

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
    """Returns the precision of a run: `dtype`, or for "auto" the earlier or the faster one.

    Args:
        dtype: Value of --dtype.
        earlier: Precision of the run that is resumed. None for a new run.
        strategy: The devices. A TPU computes in bfloat16.
        config: The model's sizes.
        tokens: Number of tokens in a step.

    Raises:
        UserError: If several machines would have to agree on a measured precision.
    """
    if dtype != AUTO:
        return dtype
    if earlier:
        return earlier
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return "bfloat16"
    if distribution.is_multi_worker(strategy):
        raise UserError("--dtype=auto measures one machine only. Pass --dtype=float32 or bfloat16 for multi_worker.")
    seconds = _time_products(tokens, config.hidden_size, config.intermediate_size)
    chosen = "bfloat16" if seconds["bfloat16"] < _WORTHWHILE * seconds["float32"] else "float32"
    timings = ", ".join(f"{1000 * value:.2f} ms in {name}" for name, value in seconds.items())
    print(f"--dtype=auto: a matrix product takes {timings}; using {chosen}", flush=True)
    return chosen


def should_jit_compile(requested: bool, dtype: str, strategy: tf.distribute.Strategy) -> bool:
    """Returns whether XLA compiles the whole step: if requested, except for bfloat16 on a CPU.

    On a CPU, XLA's matrix products do not use the processor's bfloat16 instructions, so such a step is slower.
    """
    if requested and dtype == "bfloat16" and distribution.compiles_parts(strategy):
        print("note: --jit_compile is off, because XLA's bfloat16 products are slow on a CPU", flush=True)
        return False
    return requested


@functools.cache  # All runs of a sweep use the same precision.
def _time_products(tokens: int, hidden_size: int, intermediate_size: int) -> dict[str, float]:
    """Returns by dtype the shortest time, in seconds, of a block's input times its intermediate kernel."""
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
