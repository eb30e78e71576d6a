"""How pre-training steps grow with length, batch and size, in time and in memory: `python -m tools.benchmarks.growth`.

Every point is a process of its own, started as run_pretraining starts by default, on records that are full. The points
of a table take turns over the rounds; medians count.
"""

import dataclasses
import datetime
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

from official_bert.utils.command_line import Command
from official_bert.utils.flags import option
from tools.benchmarks.pretraining import MODELS, ROOT

_WARM_UP = 2  # steps


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the benchmark."""

    rounds: int = option(3, "How often each point is measured.")
    seconds: float = option(3.0, "For how long about, after the warm-up.")
    picture: str | None = option(None, "An SVG file to draw the rates and the memory to.")


@dataclasses.dataclass(frozen=True)
class Point:
    """A step's settings."""

    size: str = "tiny"
    length: int = 128
    batch: int = 32
    rematerialize: bool = False


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a point took.

    Attributes:
        rate: examples a second.
        cpu: processor time of an example, user and system, in milliseconds.
        memory: the most that the process had in memory, in MiB.
    """

    rate: float
    cpu: float
    memory: float


LENGTHS = [Point("mini", length, 4096 // length) for length in (64, 128, 256, 512)]
BATCHES = [Point("mini", 128, batch) for batch in (1, 2, 4, 8, 16, 32, 64)]
SIZES = [Point(size, 128, 16) for size in MODELS]
MEMORY = [Point("small", 128, batch, again) for again in (False, True) for batch in (8, 16, 32, 64)]
TABLES = {
    "Length, BERT-Mini, 4,096 tokens a batch": LENGTHS,
    "Batch, BERT-Mini, length 128": BATCHES,
    "Size, length 128, batch 16": SIZES,
    "Memory over batch, BERT-Small, length 128": MEMORY,
}


def prepared(point: Point, compile_parts: bool | None = None, jit_compile: bool = False) -> tuple[Any, Any]:
    """Returns a pretrainer and endless batches of full records, in a process that is set up as run_pretraining is.

    Args:
        point: the step's settings.
        compile_parts: as of Pretrainer; None for run_pretraining's default.
        jit_compile: whether XLA compiles the whole step.
    """
    from official_bert.utils.allocator import retune_allocator, tune_allocator

    tune_allocator()
    import numpy as np
    import tensorflow as tf

    from official_bert.modeling.config import BertConfig
    from official_bert.optimization import distribution
    from official_bert.optimization.choices import ONE_DEVICE
    from official_bert.optimization.schedules import WarmupPolynomialDecay
    from official_bert.pretraining.train_step import Pretrainer

    config = BertConfig.from_json_file(str(ROOT / "configs" / "models" / f"{MODELS[point.size]}.json"))
    strategy = distribution.get_strategy(ONE_DEVICE)
    if compile_parts is None:
        compile_parts = distribution.compiles_parts(strategy)
    pretrainer = Pretrainer(
        config=config, strategy=strategy, schedule=WarmupPolynomialDecay(1e-4, 1000), seed=1,
        compile_parts=compile_parts, jit_compile=jit_compile, rematerialize=point.rematerialize,
    )  # fmt: skip
    rng, predictions = np.random.default_rng(1), round(point.length * 0.15)
    shape, predicted = (point.batch, point.length), (point.batch, predictions)
    batch = {
        "input_ids": rng.integers(1000, config.vocab_size, shape, np.int32),
        "input_mask": np.ones(shape, np.int32),
        "segment_ids": np.repeat([[0, 1]], point.length // 2, axis=1).repeat(point.batch, axis=0).astype(np.int32),
        "masked_lm_positions": np.tile(np.arange(1, predictions + 1, dtype=np.int32), (point.batch, 1)),
        "masked_lm_ids": rng.integers(1000, config.vocab_size, predicted, np.int32),
        "masked_lm_weights": np.ones(predicted, np.float32),
        "next_sentence_labels": rng.integers(0, 2, (point.batch, 1), np.int32),
    }
    data = iter(strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(batch).repeat()))
    retune_allocator()
    return pretrainer, data


def take_steps(point: Point, seconds: float) -> Cost:
    """Takes pre-training steps in this process; for the process that `measure` starts."""
    pretrainer, data = prepared(point)
    pretrainer.train(data, _WARM_UP)
    start = time.perf_counter()
    pretrainer.train(data, 1)
    steps = max(2, round(seconds / (time.perf_counter() - start)))
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    pretrainer.train(data, steps)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    examples = steps * point.batch
    return Cost(examples / wall, 1000 * used / examples, after.ru_maxrss / 1024)


def measure(point: Point, seconds: float) -> Cost:
    """Takes steps in a process of their own."""
    command = [sys.executable, "-m", "tools.benchmarks.growth", json.dumps([dataclasses.asdict(point), seconds])]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def bench(points: list[Point], options: Options) -> dict[Point, Cost]:
    """Measures all points in turn, as often as there are rounds; returns the medians."""
    costs: dict[Point, list[Cost]] = {point: [] for point in points}
    for _ in range(options.rounds):
        for point in points:
            costs[point].append(measure(point, options.seconds))
    names = [field.name for field in dataclasses.fields(Cost)]
    return {
        point: Cost(**{name: statistics.median(getattr(cost, name) for cost in several) for name in names})
        for point, several in costs.items()
    }


def table(title: str, costs: dict[Point, Cost]) -> str:
    """Returns a table in Markdown."""
    lines = [
        f"\n{title}\n",
        "| model | length | batch | blocks computed again | examples/s | tokens/s | CPU-ms an example | MiB at most |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {point.size} | {point.length} | {point.batch} | {'yes' if point.rematerialize else 'no'} | {cost.rate:.1f} "
        f"| {cost.rate * point.length:,.0f} | {cost.cpu:.2f} | {cost.memory:,.0f} |"
        for point, cost in costs.items()
    ]
    return "\n".join(lines)


def draw(results: dict[str, dict[Point, Cost]], path: str) -> None:
    """Draws a picture for each table."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    lengths, batches, sizes, memory = figure.subplots(2, 2).flat
    by_length, by_batch, by_size, by_memory = results.values()

    def curve(axes: Any, x: list[int], y: list[float], label: str | None = None) -> None:
        axes.plot(x, y, marker="o", label=label)
        axes.set_xscale("log", base=2)
        axes.set_xticks(x, list(map(str, x)))
        axes.grid(alpha=0.3)

    curve(
        lengths,
        [point.length for point in by_length],
        [cost.rate * point.length for point, cost in by_length.items()],
    )
    lengths.set(xlabel="length", ylabel="tokens per second", title="BERT-Mini, 4,096 tokens a batch")
    curve(batches, [point.batch for point in by_batch], [cost.rate for cost in by_batch.values()])
    batches.set(xlabel="batch", ylabel="examples per second", title="BERT-Mini, length 128")
    sizes.plot([point.size for point in by_size], [cost.cpu for cost in by_size.values()], marker="o")
    sizes.set_yscale("log")
    sizes.set_yticks([10, 100, 1000], ["10", "100", "1,000"])
    sizes.minorticks_off()
    sizes.grid(alpha=0.3)
    sizes.set(ylabel="CPU-ms an example", title="length 128, batch 16")
    for again, label in ((False, "as it is"), (True, "blocks computed again")):
        some = {point: cost for point, cost in by_memory.items() if point.rematerialize == again}
        curve(memory, [point.batch for point in some], [cost.memory for cost in some.values()], label)
    memory.set(xlabel="batch", ylabel="MiB at most", title="BERT-Small, length 128")
    memory.legend()
    for axes in (lengths, batches, memory):
        axes.set_ylim(bottom=0)
    figure.savefig(path, format="svg", metadata={"Date": None})


def main(options: Options) -> None:
    print(f"{datetime.date.today()}, {platform.processor() or platform.machine()}, {os.cpu_count()} processors")
    results = {}
    for title, points in TABLES.items():
        results[title] = bench(points, options)
        print(table(title, results[title]), flush=True)
    if options.picture:
        pathlib.Path(options.picture).parent.mkdir(parents=True, exist_ok=True)
        draw(results, options.picture)


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("["):
        settings, duration = json.loads(sys.argv[1])
        print(json.dumps(dataclasses.asdict(take_steps(Point(**settings), duration))))
    else:
        Command(
            program="python -m tools.benchmarks.growth",
            summary="Measures how a pre-training step grows with length, batch and size.",
            main=main,
            options=(Options,),
            examples=("--picture=growth.svg", "--rounds=1 --seconds=1"),
            tensorflow=False,
        ).run()
