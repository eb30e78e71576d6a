"""How data generation grows with the corpus and with the workers: `python -m tools.benchmarks.generation --help`.

Each line is the command as a user runs it, start and all processes included; the variants take turns, and the medians
count. Beside the wall time there are two measures that other load on the machine hardly disturbs: the processor time of
all processes, and the longest path, which is the processor time of the first process and of the busiest worker.
"""

import dataclasses
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from official_bert.data import manifest
from official_bert.errors import UserError
from official_bert.utils import files
from official_bert.utils.command_line import Command
from official_bert.utils.flags import option
from tools.benchmarks import corpus

ROOT = pathlib.Path(__file__).parents[2]
_TICKS = os.sysconf("SC_CLK_TCK")  # a second, in /proc


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the benchmark."""

    text: list[str] = option([], "Text files or glob patterns; unless given, ten copies of Python's own documentation.")
    vocab_file: str | None = option(None, "Their vocabulary; with --text only.")
    dupe_factor: int = option(10, "How often the text is used.")
    repeats: int = option(3, "How often each variant runs.")
    picture: str | None = option(None, "An SVG file to draw the rates to.")

    def __post_init__(self) -> None:
        if bool(self.text) != bool(self.vocab_file):
            raise UserError("--text and --vocab_file go together")


@dataclasses.dataclass(frozen=True)
class Run:
    """What one run took.

    Attributes:
        instances: records written.
        seconds: wall time.
        cpu: processor time of all processes, user and system.
        longest: processor time of the first process and of the busiest worker.
    """

    instances: int
    seconds: float
    cpu: float
    longest: float


def measure(inputs: list[str], vocab_file: str, folder: str, dupe_factor: int, workers: int) -> Run:
    """Runs the command once."""
    output = f"{folder}/out/records.tfrecord"
    command = [
        sys.executable, "-m", "official_bert_cli", "make-records", f"--input_file={','.join(inputs)}",
        f"--output_file={output}", f"--vocab_file={vocab_file}", f"--dupe_factor={dupe_factor}",
        f"--num_workers={workers}",
    ]  # fmt: skip
    start, before = time.perf_counter(), os.times()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    used: dict[str, float] = {}
    while process.poll() is None:
        _add_processor_time(process.pid, used)
        time.sleep(0.01)
    seconds, after = time.perf_counter() - start, os.times()
    if process.returncode:
        assert process.stderr is not None
        raise SystemExit(process.stderr.read().decode())
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    instances = manifest.Manifest.read(manifest.manifest_path(output.removesuffix(".tfrecord"))).statistics["instances"]
    shutil.rmtree(f"{folder}/out")
    first = used.pop(str(process.pid), 0.0)
    return Run(instances, seconds, cpu, first + max(used.values(), default=0.0))


def _add_processor_time(first: int, used: dict[str, float]) -> None:
    """Notes the processor time so far of a process and of its children, by their numbers."""
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        number, parent = stat.parent.name, fields[1]
        if str(first) in (number, parent):
            used[number] = (int(fields[11]) + int(fields[12])) / _TICKS


def bench(inputs: list[str], vocab_file: str, folder: str, options: Options) -> list[tuple[str, float, int, Run]]:
    """Runs all variants in turn; returns name, megabytes of text, workers and medians of each."""
    joined = f"{folder}/joined.txt"
    with open(joined, "wb") as writer:
        for path in inputs:
            writer.write(files.read_bytes(path).rstrip(b"\n") + b"\n\n")
    most = max(2, os.cpu_count() or 1)
    variants: list[tuple[str, list[str], int]] = []
    for share in (4, 2, 1):
        some = inputs[: max(1, len(inputs) // share)]
        variants += [(f"{len(some)} files", some, workers) for workers in (1, most)]
    variants += [("one file", [joined], workers) for workers in (1, most)]
    runs: list[list[Run]] = [[] for _ in variants]
    for _ in range(options.repeats):
        for number, (_, paths, workers) in enumerate(variants):
            runs[number].append(measure(paths, vocab_file, folder, options.dupe_factor, workers))
    results = []
    for (name, paths, workers), of_variant in zip(variants, runs, strict=True):
        medians = {
            field.name: statistics.median(getattr(run, field.name) for run in of_variant)
            for field in dataclasses.fields(Run)
        }
        results.append((name, sum(map(files.size, paths)) / 1e6, workers, Run(**medians)))
    return results


def table(results: list[tuple[str, float, int, Run]], options: Options) -> str:
    """Returns the results as a table in Markdown; ratios are of one worker to several."""
    lines = [
        f"Records from text, dupe_factor {options.dupe_factor}, length 128, medians of {options.repeats} runs in turn",
        "",
        "| text | MB | workers | instances | seconds | instances/s | ratio | instances/CPU-s | longest path | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    one: dict[tuple[str, float], Run] = {}
    for name, size, workers, run in results:
        first = one.setdefault((name, size), run)
        lines.append(
            f"| {name} | {size:.1f} | {workers} | {run.instances:,} | {run.seconds:.1f} | "
            f"{run.instances / run.seconds:,.0f} | {first.seconds / run.seconds:.2f} | "
            f"{run.instances / run.cpu:,.0f} | {run.longest:.1f} | {first.longest / run.longest:.2f} |"
        )
    return "\n".join(lines)


def draw(results: list[tuple[str, float, int, Run]], path: str) -> None:
    """Draws instances per second over megabytes of text, a line for each number of workers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.add_subplot()
    for workers in sorted({workers for _, _, workers, _ in results}):
        points = [(size, run) for name, size, count, run in results if count == workers and name != "one file"]
        rates = [run.instances / run.seconds for _, run in points]
        axes.plot([size for size, _ in points], rates, marker="o", label=f"{workers} worker{'s' * (workers > 1)}")
    axes.set_xlabel("MB of text")
    axes.set_ylabel("instances per second")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, format="svg", metadata={"Date": None})


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if options.vocab_file:
            vocab_file = os.path.abspath(options.vocab_file)
            inputs = list(map(os.path.abspath, files.expand(options.text, "text")))
        else:
            _, text_file, vocab_file = corpus.write_text(folder)
            inputs = [shutil.copy(text_file, f"{folder}/copy{number}.txt") for number in range(10)]
        results = bench(inputs, vocab_file, folder, options)
        print(table(results, options))
        if options.picture:
            draw(results, options.picture)


if __name__ == "__main__":
    Command(
        program="python -m tools.benchmarks.generation",
        summary="Measures data generation over the size of the corpus and the number of workers.",
        main=main,
        options=(Options,),
        examples=("--repeats=5 --picture=generation.svg", "--text='wiki/*' --vocab_file=vocab.txt"),
        tensorflow=False,
    ).run()
