"""A pre-training step against keras-hub's and Hugging Face's: `python -m tools.benchmarks.pretraining`.

Every way runs in a process of its own, with its data prepared once. After a warm-up they take steps in turn, so that
what else the machine does reaches all alike. Medians of the rounds count, of the clock and of the processor.

Length 128, 20 predictions, dropout as in the configuration. keras-hub has no next-sentence prediction. Hugging Face's
model computes the masked-LM scores of every position, unless it is asked for those of the 20 alone.

Beside them stands what the products of matrices of our step take alone, each in the faster of two forms, and as many
operations in large square products, the chip's peak. Neither is a bound: other kernels may be faster than TensorFlow's.
"""

import contextlib
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from official_bert.errors import UserError
from official_bert.utils.command_line import Command
from official_bert.utils.flags import option

ROOT = pathlib.Path(__file__).parents[2]
MODELS = {
    "tiny": "uncased_L-2_H-128_A-2",
    "mini": "uncased_L-4_H-256_A-4",
    "small": "uncased_L-4_H-512_A-8",
    "base": "uncased_L-12_H-768_A-12",
}


@dataclasses.dataclass(frozen=True)
class Way:
    """A program with its settings.

    Attributes:
        program: a function of pretraining_peers.
        xla: whether the step is compiled (by torch.compile for Hugging Face); None for the program's default.
        dtype: a Keras dtype policy.
        tuned_malloc: whether glibc keeps freed memory, as for the commands of official_bert.
        fused: whether PyTorch's optimizer is fused.
        gathered: whether Hugging Face's model scores only the positions to be predicted, as the others do.
    """

    program: str
    xla: bool | None = None
    dtype: str = "float32"
    tuned_malloc: bool = False
    fused: bool = False
    gathered: bool = False


DEFAULTS = {
    "official_bert, default": Way("official_bert", tuned_malloc=True),
    "keras-hub, default": Way("keras_hub"),
    "Hugging Face, default": Way("hugging_face"),
    "products of matrices alone": Way("products", tuned_malloc=True),
    "as many operations in square products": Way("peak", tuned_malloc=True),
}
# The best that users get from each program in float32; Hugging Face's also with no more work than the others.
FLOAT32 = {
    "keras-hub, allocator": Way("keras_hub", tuned_malloc=True),
    "Hugging Face, fused, allocator": Way("hugging_face", tuned_malloc=True, fused=True),
    "Hugging Face, fused, allocator, 20 positions": Way("hugging_face", tuned_malloc=True, fused=True, gathered=True),
}
BFLOAT16 = {
    "official_bert, bfloat16": Way("official_bert", xla=False, dtype="mixed_bfloat16", tuned_malloc=True),
    "keras-hub, bfloat16": Way("keras_hub", xla=False, dtype="mixed_bfloat16", tuned_malloc=True),
    "Hugging Face, bfloat16": Way("hugging_face", xla=False, dtype="mixed_bfloat16", tuned_malloc=True, fused=True),
}
# Every setting of each program, for --ways=all.
ALL = {
    f"{program}, {'compiled' if xla else 'not compiled'}, {dtype}": Way(program, xla, dtype, True, True)
    for program in ("official_bert", "keras_hub", "hugging_face")
    for xla in (False, True)
    for dtype in ("float32", "mixed_bfloat16")
}


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the benchmark."""

    sizes: list[str] = option(["tiny", "mini"], f"Of {', '.join(MODELS)}.")
    batch_size: int = option(32, "Records in a step.")
    steps: int = option(6, "Steps of a round.")
    rounds: int = option(5, "Rounds; the median counts.")
    input_file: str | None = option(
        None, "Records of length 128; by default they are made from Python's documentation."
    )
    ways: str = option(
        "best", "Each program's defaults; its best settings in float32 too; in bfloat16 too; or every setting, one "
        "program after the other.", ("default", "float32", "best", "all"),
    )  # fmt: skip
    torch_compile: bool = option(
        False, "Whether Hugging Face's model is compiled by torch.compile too, which takes minutes on a busy machine."
    )

    def __post_init__(self) -> None:
        unknown = sorted(set(self.sizes) - MODELS.keys())
        if unknown:
            raise UserError(f"--sizes names {', '.join(unknown)}; expected some of {', '.join(MODELS)}")


def chosen_ways(options: Options) -> dict[str, Way]:
    """Returns the ways to measure, by name."""
    if options.ways == "default":
        return DEFAULTS
    if options.ways == "all":
        return {
            name: way
            for name, way in ALL.items()
            if options.torch_compile or not (way.program == "hugging_face" and way.xla)
        }
    ways = {**DEFAULTS, **FLOAT32, **(BFLOAT16 if options.ways == "best" else {})}
    if options.torch_compile:
        theirs = {name: way for name, way in ways.items() if way.fused}
        ways |= {f"{name}, compiled": dataclasses.replace(way, xla=True) for name, way in theirs.items()}
    return ways


@contextlib.contextmanager
def started(ways: dict[str, Way], size: str, options: Options, records: str) -> Iterator[dict[str, Any]]:
    """Starts a process for each way; ends them all."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    processes = {}
    try:
        for name, way in ways.items():
            arguments = {
                **dataclasses.asdict(way), "records": records, "batch": options.batch_size, "steps": options.steps,
                "config": str(ROOT / "configs" / "models" / f"{MODELS[size]}.json"),
            }  # fmt: skip
            processes[name] = subprocess.Popen(
                [sys.executable, "-m", "tools.benchmarks.pretraining_peers", json.dumps(arguments)],
                cwd=ROOT, env=environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        yield processes
    finally:
        for process in processes.values():
            with process:  # closes its pipes
                process.kill()


def one_round(name: str, process: Any) -> dict[str, float]:
    """Lets a process take its steps; returns the seconds."""
    process.stdin.write("go\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{name} ended with code {process.wait()}")
    return json.loads(line)


def measure(ways: dict[str, Way], size: str, options: Options, records: str) -> dict[str, dict[str, float]]:
    """Returns the median seconds of a step by way: wall, user, system."""
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    # Where there are many settings, or the model is large, few processes stand beside each other, for their memory.
    at_once = 1 if options.ways == "all" else len(DEFAULTS) if size in ("small", "base") else len(ways)
    names = list(ways)
    groups = [{name: ways[name] for name in names[first : first + at_once]} for first in range(0, len(names), at_once)]
    for group in groups:
        with started(group, size, options, records) as processes:
            for number in range(-1, options.rounds):  # the first round warms up
                for name, process in processes.items():
                    seconds = one_round(name, process)
                    if number >= 0:
                        rounds[name].append(seconds)
    return {
        name: {kind: statistics.median(each[kind] for each in found) / options.steps for kind in found[0]}
        for name, found in rounds.items()
    }


def show(size: str, options: Options, seconds: dict[str, dict[str, float]]) -> None:
    """Prints a table."""
    print(f"\nBERT-{size.capitalize()}, length 128, batch {options.batch_size}: medians of {options.rounds} rounds of "
          f"{options.steps} steps\n")  # fmt: skip
    print(
        "| | examples/s | user, CPU-ms an example | system | examples/CPU-second | times |\n|---|---|---|---|---|---|"
    )
    rates = {name: options.batch_size / (each["user"] + each["system"]) for name, each in seconds.items()}
    first = next(iter(rates.values()))
    for name, each in seconds.items():
        user, system = (1000 * each[kind] / options.batch_size for kind in ("user", "system"))
        print(
            f"| {name} | {options.batch_size / each['wall']:.1f} | {user:.2f} | {system:.2f} | {rates[name]:.1f} "
            f"| {rates[name] / first:.2f} |",
            flush=True,
        )


def main(options: Options) -> None:
    print(f"{datetime.date.today()}, {platform.processor() or platform.machine()}, {os.cpu_count()} processors")
    with tempfile.TemporaryDirectory() as folder:
        records = options.input_file and os.path.abspath(options.input_file)
        if not records:
            from tools.benchmarks import corpus

            records = f"{folder}/records"
            _, text_file, vocab_file = corpus.write_text(folder)
            corpus.write_records(text_file, vocab_file, records)
        for size in options.sizes:
            show(size, options, measure(chosen_ways(options), size, options, records))


if __name__ == "__main__":
    Command(
        program="python -m tools.benchmarks.pretraining",
        summary="Measures a pre-training step against keras-hub's and Hugging Face's.",
        main=main,
        options=(Options,),
        tensorflow=False,
    ).run()
