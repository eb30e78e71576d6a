"""Speed of record generation with little and with much text: rate, memory and disk, on one machine or on Dask.

`python -m tools.benchmarks.scale --help`. The text is copies of Python's documentation up to the given sizes, one
copy per input file. Each line is the command as a user runs it. Memory is the largest resident size of any process,
with and without pages of mapped files; disk is looked at twice a second.
"""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from data_gen.pipelines import worker
from official_bert.data import manifest
from official_bert.errors import UserError
from official_bert.utils.command_line import Command
from official_bert.utils.flags import option
from tools.benchmarks import corpus
from tools.benchmarks.memory import Peak, largest, note_memory

ROOT = pathlib.Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the benchmark."""

    sizes_mb: list[str] = option(["20", "100"], "Sizes of the text, in MB, separated by commas.")
    dupe_factor: int = option(1, "How often the text is used.")
    num_workers: int = option(2, "Worker processes.")
    num_shards: int = option(8, "Files to write.")
    dask: bool = option(False, "Whether each size also runs on a Dask cluster of as many workers on this machine.")
    folder: str | None = option(None, "Where text, work and records stand meanwhile; a temporary folder unless given.")

    def __post_init__(self) -> None:
        if not self.sizes_mb or not all(size.isdigit() and int(size) for size in self.sizes_mb):
            raise UserError(f"--sizes_mb is {','.join(self.sizes_mb)!r}; expected whole numbers, separated by commas")


@dataclasses.dataclass
class Run:
    """What one run took: seconds, memory of the largest process, and bytes on disk at most."""

    instances: int = 0
    seconds: float = 0.0
    peak: Peak = dataclasses.field(default_factory=Peak)
    store: int = 0  # of the tokenized text
    work: int = 0  # of the working folder, the tokenized text included
    records: int = 0


def measure(options: Options, inputs: list[str], vocab_file: str, folder: str, address: str | None) -> Run:
    """Runs the command once, on the cluster at the address or on this machine's processes."""
    output = pathlib.Path(folder) / "out" / "records.tfrecord"
    flags = [
        f"--input_file={','.join(inputs)}", f"--output_file={output}", f"--vocab_file={vocab_file}",
        f"--dupe_factor={options.dupe_factor}", f"--num_shards={options.num_shards}",
    ]  # fmt: skip
    workers = f"--dask={address}" if address else f"--num_workers={options.num_workers}"
    command = [sys.executable, "-m", "official_bert_cli", "make-records", *flags, workers]
    run, start = Run(), time.perf_counter()
    peaks: dict[int, Peak] = {}
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while process.poll() is None:
        note_memory(os.getpid(), peaks)  # the cluster's workers are begun by this process, too
        work = output.parent / "records.work"
        run.store = max(run.store, sum(_size(each) for each in work.glob(f"*/{worker.CORPUS}")))
        run.work = max(run.work, _size(work))
        time.sleep(0.5)
    run.seconds = time.perf_counter() - start
    peaks.pop(os.getpid(), None)
    run.peak = largest(peaks)
    if process.returncode:
        raise SystemExit(process.communicate()[1])
    described = manifest.Manifest.read(str(output.with_name("records.manifest.json")))
    run.instances, run.records = described.statistics["instances"], sum(shard.bytes for shard in described.shards)
    shutil.rmtree(output.parent)
    return run


def _size(folder: pathlib.Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # gone meanwhile
                total += os.stat(os.path.join(parent, name)).st_size
    return total


@contextlib.contextmanager
def cluster(workers: int, folder: str) -> Iterator[str]:
    """Yields the address of a scheduler with so many workers on this machine."""
    import distributed

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address, dask = f"tcp://127.0.0.1:{port}", [sys.executable, "-m", "dask"]
    commands = [[*dask, "scheduler", "--host=127.0.0.1", f"--port={port}", "--no-dashboard"]]
    options = ["--nthreads=1", "--no-nanny", "--no-dashboard", f"--local-directory={folder}/dask"]
    commands += [[*dask, "worker", address, *options]] * workers
    quiet = subprocess.DEVNULL
    processes = [subprocess.Popen(command, cwd=ROOT, stdout=quiet, stderr=quiet) for command in commands]
    try:
        connect: Any = distributed.Client
        with connect(address, timeout=60, set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=60)
        yield address
    finally:
        for process in processes:
            process.kill()
            process.wait()


def write_copies(text_file: str, folder: str, megabytes: int) -> list[str]:
    """Returns files of the text, the last one cut after a document, that are so large together."""
    text, left = pathlib.Path(text_file).read_bytes(), megabytes * 1_000_000
    paths: list[str] = []
    while left > 0:
        some = text if left >= len(text) else text[: text.rfind(b"\n\n", 0, left) + 1]
        if not some:
            break
        paths.append(f"{folder}/copy{len(paths):05}.txt")
        pathlib.Path(paths[-1]).write_bytes(some)
        left -= len(some)
    return paths


def line(size: float, name: str, run: Run) -> str:
    mb = [f"{number / 1e6:,.0f}" for number in (run.store, run.work, run.records)]
    return (
        f"| {size:,.0f} | {name} | {run.instances:,} | {run.seconds:.1f} | {run.instances / run.seconds:,.0f} | "
        f"{run.peak.memory:,.0f} | {run.peak.own:,.0f} | {' | '.join(mb)} |"
    )


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        _, text_file, vocab_file = corpus.write_text(folder)
        print(
            "| MB of text | on | instances | seconds | instances/s | MiB at most | without mapped files | "
            "MB tokenized | work | records |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
        for megabytes in map(int, options.sizes_mb):
            inputs = write_copies(text_file, folder, megabytes)
            text_bytes = sum(map(os.path.getsize, inputs))
            run = measure(options, inputs, vocab_file, folder, None)
            print(line(text_bytes / 1e6, "processes", run), flush=True)
            if options.dask:
                with cluster(options.num_workers, folder) as address:
                    on_dask = measure(options, inputs, vocab_file, folder, address)
                print(line(text_bytes / 1e6, "Dask", on_dask), flush=True)
        parts = {"tokenized text": run.store, "working folder": run.work, "records": run.records}
        described = ", ".join(f"{name} {size / text_bytes:.2f}" for name, size in parts.items())
        print(f"\nbytes for each byte of text, dupe_factor {options.dupe_factor}: {described}")
        print(
            f"so 100 GB of text: {100 * run.store / text_bytes:,.0f} GB of tokenized text on each machine that makes "
            f"instances, {100 * run.work / text_bytes:,.0f} GB of work and {100 * run.records / text_bytes:,.0f} GB of "
            "records where they are written"
        )


if __name__ == "__main__":
    Command(
        program="python -m tools.benchmarks.scale",
        summary="Measures rate, memory and disk of data generation over the size of the text.",
        main=main,
        options=(Options,),
        examples=("--sizes_mb=100,1000", "--sizes_mb=100 --dask"),
        tensorflow=False,
    ).run()
