"""What blockwise attention would save of a step's memory, and take of its time: `python -m tools.benchmarks.attention`.

The whole step is compiled by XLA for this CPU: as it is, with blocks computed again (--rematerialize), and with
attention that holds the scores of one example and head at a time and computes them again in the backward pass. Peak
memory is what XLA's own buffer assignment asks for.

G pairs of an example and a head, S sequence, D head size, H hidden size
"""

import dataclasses
import itertools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from official_bert.utils.command_line import Command
from official_bert.utils.flags import option
from tools.benchmarks.growth import Point, prepared
from tools.benchmarks.pretraining import MODELS, ROOT

_KINDS = ("as it is", "blocks computed again", "blockwise attention")
_STEPS = 3  # in a turn
_TOTAL = re.compile(r"Total bytes used: (\d+)")


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the benchmark."""

    size: str = option("mini", "The model.", tuple(MODELS))
    length: int = option(512, "Tokens of a record.")
    batch_size: int = option(8, "Records in a step.")
    rounds: int = option(7, "How often each kind of step takes its turn.")


def with_blockwise_attention(model: Any) -> Callable[..., Any]:
    """Returns a function that is called as a pre-training model is, and trains with blockwise attention."""
    import keras
    import tensorflow as tf

    from official_bert.modeling.dropout import current_seed
    from official_bert.modeling.encoder_block import MASKED_SCORE, split_heads
    from official_bert.modeling.model_parts import split_model

    parts = split_model(model)
    assert parts is not None
    embed, heads = keras.Model(model.input, parts.embedded), parts.heads()
    blocks = []
    for block, (x, encoded) in zip(parts.blocks, itertools.pairwise(parts.encoded), strict=True):
        projections = [block.attention_query.output, block.attention_key.output, block.attention_value.output]
        rest = keras.Model([block.attention_context.output, x], encoded)
        blocks.append((block, keras.Model(x, projections), rest))

    def call(features: dict[str, Any], training: bool = False) -> Any:
        features = parts.features(features)
        mask = (1.0 - tf.cast(features[parts.attention_ids], tf.float32)) * MASKED_SCORE
        outputs = [embed(features, training=training)]  # [B, S, H]
        for number, (block, project, rest) in enumerate(blocks):
            count = block.attention_probabilities.num_heads
            batch, length, width = outputs[-1].shape
            size = width // count
            query, key, value = (  # [G, S, D]
                tf.reshape(split_heads(each, count), (-1, length, size)) for each in project(outputs[-1])
            )
            seed = tf.convert_to_tensor(current_seed()) ^ tf.constant([number + 1, 0])
            context = blockwise(
                query, key, value, tf.repeat(mask, count, 0), block.attention_probabilities_dropout, seed
            )
            context = tf.transpose(tf.reshape(context, (batch, count, length, size)), (0, 2, 1, 3))
            outputs.append(rest([tf.reshape(context, (batch, length, width)), outputs[-1]], training=training))
        return heads(outputs, features, training=training)

    return call


def blockwise(query: Any, key: Any, value: Any, mask: Any, dropout: Any, seed: Any) -> Any:
    """Returns the attended values, [G, S, D], holding one pair's scores at a time, forwards and backwards.

    query, key and value are [G, S, D], mask, [G, S], is added to the scores of keys; seed, int32 [2], gives dropout's
    random numbers, the same ones both times.
    """
    import tensorflow as tf

    pairs, length, size = query.shape

    def scores(pair: Any, query: Any) -> Any:
        products = tf.matmul(query[pair], key[pair], transpose_b=True)
        return products + mask[pair]  # [S, S]

    def dropped(pair: Any, *arrays: Any) -> list[Any]:
        if not dropout.drops:
            return list(arrays)
        shape = (length, length // 2)  # of 32 bits, each of which decides two neighbours
        bits = tf.random.stateless_uniform(shape, seed ^ tf.stack([0, pair + 1]), None, None, tf.int32)
        numbers = tf.reshape(tf.bitcast(bits, tf.uint16), (length, length))
        return [dropout.drop(array, numbers) for array in arrays]

    def over_pairs(body: Callable[[Any], list[Any]], *widths: int) -> list[Any]:
        """What body gives for each pair, [G, S, width] of each kind."""
        arrays = [tf.TensorArray(tf.float32, pairs, element_shape=(length, width)) for width in widths]

        def step(pair: Any, *arrays: Any) -> Any:
            return pair + 1, *(array.write(pair, each) for array, each in zip(arrays, body(pair), strict=True))

        _, *arrays = tf.while_loop(
            lambda pair, *_: pair < pairs, step, (0, *arrays), parallel_iterations=1, maximum_iterations=pairs
        )
        return [array.stack() for array in arrays]

    @tf.custom_gradient
    def attend(query: Any, key: Any, value: Any) -> Any:
        scaled = query * size**-0.5

        def forward(pair: Any) -> list[Any]:
            of_pair = scores(pair, scaled)
            highest = tf.reduce_max(of_pair, -1, keepdims=True)
            weights = tf.exp(of_pair - highest)
            total = tf.reduce_sum(weights, -1, keepdims=True)
            (kept,) = dropped(pair, weights)
            return [tf.matmul(kept, value[pair]) / total, highest + tf.math.log(total)]

        context, normalizers = over_pairs(forward, size, 1)

        def gradient(upstream: Any) -> Any:
            # Of each row of probabilities p the softmax takes p (d - sum(p d)) back to the scores, where d is the
            # gradient of p; that sum is the product of the row's output and the output's gradient.
            sums = tf.reduce_sum(upstream * context, -1, keepdims=True)

            def backward(pair: Any) -> list[Any]:
                probabilities = tf.exp(scores(pair, scaled) - normalizers[pair])
                of_kept = tf.matmul(upstream[pair], value[pair], transpose_b=True)
                kept, of_probabilities = dropped(pair, probabilities, of_kept)
                of_scores = probabilities * (of_probabilities - sums[pair])
                return [
                    tf.matmul(of_scores, key[pair]) * size**-0.5,
                    tf.matmul(of_scores, scaled[pair], transpose_a=True),
                    tf.matmul(kept, upstream[pair], transpose_a=True),
                ]

            return over_pairs(backward, size, size, size)

        return context, gradient

    return attend(query, key, value)


def _prepared(kind: str, options: Options) -> tuple[Any, Any]:
    point = Point(options.size, options.length, options.batch_size, rematerialize=kind == _KINDS[1])
    pretrainer, data = prepared(point, compile_parts=False, jit_compile=True)
    if kind == _KINDS[2]:
        pretrainer._call = with_blockwise_attention(pretrainer.model)
    return pretrainer, data


def peak_bytes(kind: str, options: Options) -> int:
    """Has a process of its own compile the step, and returns what XLA assigns buffers of."""
    arguments = json.dumps([kind, dataclasses.asdict(options)])
    with tempfile.TemporaryDirectory() as folder:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={folder} --xla_dump_hlo_as_text"
        done = subprocess.run(
            [sys.executable, "-m", "tools.benchmarks.attention", arguments],
            cwd=ROOT, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "XLA_FLAGS": flags}, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(done.stderr)
        reports = [path.read_text() for path in pathlib.Path(folder).glob("*buffer-assignment.txt")]
    return max(int(match[1]) for report in reports if (match := _TOTAL.search(report)))


def main(options: Options) -> None:
    peaks = [peak_bytes(kind, options) for kind in _KINDS]
    runs = [_prepared(kind, options) for kind in _KINDS]
    taken: list[list[tuple[float, float]]] = [[] for _ in runs]
    for number in range(options.rounds + 1):
        for of_run, (pretrainer, data) in zip(taken, runs, strict=True):
            wall, cpu = time.perf_counter(), time.process_time()
            pretrainer.train(data, _STEPS)
            if number:  # the first turn compiles
                of_run.append((time.perf_counter() - wall, time.process_time() - cpu))
    print(f"BERT-{options.size.capitalize()}, length {options.length}, batch {options.batch_size}\n")
    print("| attention | peak memory, MiB | ratio | time, ratio | processor time, ratio |\n|---|---|---|---|---|")
    for kind, peak, of_run in zip(_KINDS, peaks, taken, strict=True):
        ratios = [
            statistics.median(mine[unit] / first[unit] for mine, first in zip(of_run, taken[0], strict=True))
            for unit in (0, 1)
        ]
        print(f"| {kind} | {peak / 2**20:,.0f} | {peak / peaks[0]:.2f} | {ratios[0]:.2f} | {ratios[1]:.2f} |")


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("["):
        of_kind, settings = json.loads(sys.argv[1])
        to_compile, batches = _prepared(of_kind, Options(**settings))
        to_compile.train(batches, 1)
    else:
        Command(
            program="python -m tools.benchmarks.attention",
            summary="Measures what blockwise attention saves of memory, and takes of time.",
            main=main,
            options=(Options,),
            examples=("--size=small",),
        ).run()
