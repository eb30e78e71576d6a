"""What a pre-training step spends its time on, by kind of operation: `python -m tools.benchmarks.step_profile`.

By default TensorFlow computes the products of matrices and XLA compiles what lies between; beside it stands the same
step with TensorFlow's operations one by one. Each is measured in a process of its own, without the profiler and then
with it. The operations run on several threads: their times add up to more than the step's, and where one waits for a
thread, that counts as its own.
"""

import collections
import dataclasses
import json
import os
import pathlib
import re
import resource
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

_STEPS = 6
# What an operation's name in the profile ends with, or an executable's begins with, by kind.
_KINDS = {
    "products of matrices": re.compile(r":_?\w*MatMul\w*$"),
    "random numbers of dropout": re.compile(r":StatelessRandom\w*$"),
    "compiled by XLA: all between the products, loss, optimizer": re.compile(r"^CpuExecutable::Execute"),
    "sums of a table's gradient": re.compile(r":(UnsortedSegmentSum|AddN)$"),
    "TensorFlow's other operations": re.compile(r"[^:]:_?[A-Z]\w+$"),
}
_CONTAINERS = re.compile(r":(XlaLaunch|_XlaRun|XlaExecute|While|PartitionedCall|StatefulPartitionedCall)$")


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the benchmark."""

    size: str = option("mini", "The model.", tuple(MODELS))
    batch_size: int = option(32, "Records in a step.")


def profile(point: Point, compile_parts: bool) -> dict[str, float]:
    """Takes steps in this process; returns milliseconds of a step by kind, and of the clock, user and system."""
    pretrainer, data = prepared(point, compile_parts)
    pretrainer.train(data, 2)
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    pretrainer.train(data, _STEPS)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    found = {
        "the clock": wall,
        "user": after.ru_utime - before.ru_utime,
        "system": after.ru_stime - before.ru_stime,
        **_traced(lambda: pretrainer.train(data, _STEPS)),
    }
    return {name: 1000 * seconds / _STEPS for name, seconds in found.items()}


def _traced(run: Callable[[], Any]) -> dict[str, float]:
    """The seconds that operations take while something runs, by kind."""
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        run()
        tf.profiler.experimental.stop()
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
    seconds: dict[str, float] = collections.defaultdict(float)
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name.split("#")[0]
                kind = next((kind for kind, pattern in _KINDS.items() if pattern.search(name)), None)
                if kind and not _CONTAINERS.search(name):
                    seconds[kind] += event.duration_ps / 1e12
    return {kind: seconds[kind] for kind in _KINDS}


def measure(options: Options, compile_parts: bool) -> dict[str, float]:
    """Has a process of its own profile the step."""
    arguments = json.dumps([dataclasses.asdict(Point(options.size, 128, options.batch_size)), compile_parts])
    done = subprocess.run(
        [sys.executable, "-m", "tools.benchmarks.step_profile", arguments],
        cwd=ROOT, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main(options: Options) -> None:
    one_by_one, default = (measure(options, compile_parts) for compile_parts in (False, True))
    print(f"BERT-{options.size.capitalize()}, length 128, batch {options.batch_size}, milliseconds of a step\n")
    print("| | TensorFlow's operations one by one | default |\n|---|---|---|")
    for name, milliseconds in default.items():
        print(f"| {name} | {one_by_one[name]:.1f} | {milliseconds:.1f} |")


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("["):
        of_point, compiled = json.loads(sys.argv[1])
        print(json.dumps(profile(Point(**of_point), compiled)))
    else:
        Command(
            program="python -m tools.benchmarks.step_profile",
            summary="Shows what a pre-training step spends its time on.",
            main=main,
            options=(Options,),
            examples=("--size=tiny",),
            tensorflow=False,
        ).run()
