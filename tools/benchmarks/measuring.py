"""What the benchmarks share: running programs in turn, measuring their resources, and printing a table of medians.

Programs take turns within one run, so that other load on the machine affects all of them alike.
"""

import contextlib
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from official_bert.data.record_schema import Schema
from official_bert.errors import UserError
from official_bert.utils.command_line import Command
from official_bert.utils.flags import ValidatedOptions, option

ROOT = pathlib.Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "official_bert_cli")
MODELS = {
    "tiny": "uncased_L-2_H-128_A-2",
    "mini": "uncased_L-4_H-256_A-4",
    "small": "uncased_L-4_H-512_A-8",
    "base": "uncased_L-12_H-768_A-12",
}
ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
_POLL = 0.005  # seconds

Metrics = Mapping[str, float]  # by column of the table


@dataclasses.dataclass(frozen=True)
class Options(ValidatedOptions):
    """The flags that many benchmarks have."""

    size: str = option("tiny", "Size of the model.", tuple(MODELS))
    rounds: int = option(5, "Number of rounds.", min=1)


def run_benchmark(main: Callable[[Any], None], options: type, examples: tuple[str, ...] = ()) -> NoReturn:
    """Runs the program of the module that was started with `python -m`.

    Args:
        main: The program. Receives an instance of `options`.
        options: The dataclass of its flags.
        examples: Flags of examples, for --help.
    """
    module = sys.modules["__main__"]
    assert module.__doc__
    assert module.__spec__
    summary, _, _ = module.__doc__.partition(": `")  # the command line follows
    Command(
        program=f"python -m {module.__spec__.name}",
        summary=f"{summary}.",
        main=main,
        options=(options,),
        examples=examples,
        tensorflow=False,
    ).run()


def make_random_batch(schema: Schema, batch_size: int) -> dict[str, Any]:
    """Returns the features of random records without padding, as arrays."""
    import numpy as np

    rng = np.random.default_rng(0)
    batch = {
        name: rng.integers(0, feature.limit, (batch_size, *feature.shape), np.int32)
        if feature.limit
        else np.ones((batch_size, *feature.shape), np.float32)
        for name, feature in schema.items()
    }
    return {**batch, "input_mask": np.ones_like(batch["input_mask"])}


def config_file(size: str) -> str:
    """Returns the path of the bert_config.json for a model size, such as "tiny"."""
    return str(ROOT / "configs" / "models" / f"{MODELS[size]}.json")


class Usage(NamedTuple):
    """The resources that a process used.

    Attributes:
        wall: Elapsed seconds.
        cpu: Processor time in seconds, user and system, including its children.
        memory: Largest resident size of one process in MiB, including pages of mapped files.
        own_memory: The same without mapped files. 0 if memory was not watched.
        output: The text that the process printed.
    """

    wall: float
    cpu: float
    memory: float
    own_memory: float
    output: str

    def result(self) -> Any:
        """Returns the last JSON object that the process printed."""
        return json.loads([line for line in self.output.splitlines() if line.startswith("{")][-1])


def run(command: Sequence[str], is_ready: Callable[[], bool] | None = None, watch_memory: bool = False) -> Usage:
    """Runs a command and returns the resources that it used.

    Args:
        command: The words of the command line.
        is_ready: Function that is called repeatedly. The process is killed as soon as it returns True. None to run the
            process to its end.
        watch_memory: Whether to measure `own_memory`.

    Raises:
        SystemExit: If the command fails, or ends before `is_ready` returns True.
    """
    own_memory = 0.0
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        began = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, env=ENVIRONMENT)
        while True:
            ready = is_ready is not None and is_ready()
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            wall = time.perf_counter() - began
            if pid or ready:
                break
            if watch_memory:
                own_memory = max(own_memory, _largest_own_memory(process.pid))
            time.sleep(20 * _POLL if watch_memory else _POLL)
        if not pid:
            process.kill()
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if pid and (is_ready or process.returncode):
        raise SystemExit(f"{shlex.join(command)} ended with exit code {process.returncode}:\n{text[-5000:]}")
    return Usage(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, own_memory, text)


def _largest_own_memory(first: int) -> float:
    """Returns the anonymous resident size in MiB of the largest process among `first` and its descendants."""
    status: dict[int, dict[str, str]] = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # the process has ended
            status[int(path.parent.name)] = dict(line.split(":", 1) for line in path.read_text().splitlines())
    family = {first} & status.keys()
    while children := {pid for pid, fields in status.items() if int(fields["PPid"]) in family} - family:
        family |= children
    return max((int(status[pid].get("RssAnon", "0").split()[0]) / 1024 for pid in family), default=0.0)


def compare(title: str, programs: Mapping[str, Callable[[], Metrics]], rounds: int, rate: str) -> None:
    """Runs programs in turn and prints a table of their medians.

    Args:
        title: Heading of the table.
        programs: Functions that each run a program and return its metrics, by name of the program.
        rounds: How often each program runs, not counting a first round that warms up.
        rate: The metric for which the table shows each program's ratio to the first program.
    """
    if rounds < 1:
        raise UserError(f"--rounds is {rounds}; it must be at least 1")
    found: dict[str, list[Metrics]] = {name: [] for name in programs}
    for number in range(rounds + 1):
        for name, program in programs.items():
            metrics = program()
            if number:
                found[name].append(metrics)
    medians = {
        name: {column: statistics.median(each[column] for each in several) for column in several[0]}
        for name, several in found.items()
    }
    print_table(f"{title}, medians of {rounds} round{'s' * (rounds > 1)}", medians, rate)


def print_table(title: str, rows: Mapping[str, Metrics], rate: str) -> None:
    """Prints the date, the processor and a Markdown table of metrics.

    The last column is the ratio of each row's metric `rate` to the first row's.
    """
    cpu_info = pathlib.Path("/proc/cpuinfo")
    models = re.findall(r"model name\s*: (.*)", cpu_info.read_text()) if cpu_info.exists() else []
    processor = f"{(models or [platform.machine()])[0]}, {os.cpu_count()} processors"
    print(f"\n{title}\n{datetime.date.today()}, {processor}\n")
    columns = list(next(iter(rows.values())))
    first = next(iter(rows.values()))[rate]
    print(f"| | {' | '.join(columns)} | ratio |\n|{'---|' * (len(columns) + 2)}")
    for name, metrics in rows.items():
        cells = [_format_number(metrics[column]) for column in columns]
        print(f"| {name} | {' | '.join(cells)} | {metrics[rate] / first:.2f} |", flush=True)


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
