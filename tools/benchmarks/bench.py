"""Measures speed, each thing against a peer in turn in one run: `make bench`. Machines differ; the ratios less so.

`python -m tools.benchmarks.bench --text='text/*' --vocab_file=vocab.txt --dupe_factor=10` measures how records
are made from much text of your own, and nothing else.
"""

import dataclasses
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import tensorflow as tf
import tensorflow_text

from official_bert.data import manifest
from official_bert.errors import UserError
from official_bert.tokenization.exact import FullTokenizer
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils import files
from official_bert.utils.command_line import Command
from official_bert.utils.flags import option
from tools.benchmarks import corpus

ROOT = pathlib.Path(__file__).parents[2]
ROUNDS = 5


def in_turn(candidates: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Returns the median seconds of each, measured in turn in several rounds, after one round to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(ROUNDS + 1):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def table(title: str, unit: str, amount: float, seconds: dict[str, float]) -> None:
    """Prints rates, and ratios to the first row."""
    first = next(iter(seconds.values()))
    print(f"\n{title}\n")
    print(f"| | {unit} | ratio |\n|---|---|---|")
    for name, value in seconds.items():
        print(f"| {name} | {amount / value:,.0f} | {first / value:.2f} |")


# As flags: the reference algorithm holds all instances in memory, so that much text is left to the fast one.
FAST = {"fast, 1 worker": ["--num_workers=1"], "fast, 2 workers": ["--num_workers=2"]}
ALGORITHMS = {"reference": ["--algorithm=reference"], **FAST}


def bench_records(
    inputs: list[str], vocab_file: str, folder: str, dupe_factor: int, variants: dict[str, list[str]]
) -> dict[str, int]:
    """The command, with the flags of each variant; returns how many instances each made.

    Time and memory are those of whole processes and all their children: the imports, two to four seconds, are in them.
    """
    megabytes = sum(map(files.size, inputs)) / 1e6
    print(f"\nRecords from {megabytes:.1f} MB of text, dupe_factor {dupe_factor}, length 128\n")
    print(
        "| | instances/s | instances/CPU-second | ratio | MB of text/s | peak memory, MB |\n|---|---|---|---|---|---|"
    )
    first = None
    made = {}
    for number, (name, flags) in enumerate(variants.items()):
        output = f"{folder}/{number}/out.tfrecord"
        command = [
            sys.executable, "-m", "official_bert_cli", "make-records", f"--input_file={','.join(inputs)}",
            f"--output_file={output}", f"--vocab_file={vocab_file}", f"--dupe_factor={dupe_factor}", *flags,
        ]  # fmt: skip
        start, before = time.perf_counter(), os.times()
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        peak = peak_memory(process)
        seconds, after = time.perf_counter() - start, os.times()
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with code {process.returncode}")
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        described = manifest.Manifest.read(manifest.manifest_path(output.removesuffix(".tfrecord")))
        instances = made[name] = described.statistics["instances"]
        first = first or instances / cpu
        print(
            f"| {name} | {instances / seconds:,.0f} | {instances / cpu:,.0f} | {instances / cpu / first:.1f} "
            f"| {megabytes / seconds:.1f} | {peak / 1e6:,.0f} |",
            flush=True,
        )
    return made


def peak_memory(process: subprocess.Popen[bytes]) -> int:
    """Waits for the process; returns the most memory, in bytes, that it and its children took together.

    Pages that several share are counted once (proportional set size, from Linux' /proc).
    """
    peak = 0
    while process.poll() is None:
        total = 0
        for rollup in pathlib.Path("/proc").glob("[0-9]*/smaps_rollup"):
            try:
                parent = re.search(r"^PPid:\s+(\d+)", (rollup.parent / "status").read_text(), re.MULTILINE)
                if str(process.pid) in (rollup.parent.name, parent and parent.group(1)):
                    share = re.search(r"^Pss:\s+(\d+)", rollup.read_text(), re.MULTILINE)
                    total += int(share.group(1)) * 1024 if share else 0
            except OSError:
                continue  # it has ended meanwhile
        peak = max(peak, total)
        time.sleep(0.05)
    return peak


def bench_tokenization(text: list[str], vocab_file: str) -> None:
    """The exact tokenizer against tensorflow-text's two, which differ from it on some characters."""
    exact = FullTokenizer(vocab_file)
    # On every run another tokenizer, so that words are not found in the cache of the run before.
    plain = tensorflow_text.BertTokenizer(vocab_file, lower_case=True)
    pieces = list(exact.vocab)
    fast = tensorflow_text.FastBertTokenizer(pieces, lower_case_nfd_strip_accents=True)
    lines = tf.constant(text)

    def run_exact() -> None:
        tokenizer = FullTokenizer(vocab_file)
        for line in text:
            tokenizer.tokenize(line)

    ours = FastTokenizer(vocab_file)
    seconds = in_turn(
        {
            "tensorflow-text BertTokenizer (other rules)": lambda: plain.tokenize(lines),
            "tensorflow-text FastBertTokenizer (other rules)": lambda: fast.tokenize(lines),
            "official_bert FullTokenizer": run_exact,
            "official_bert FastTokenizer (equal to it)": lambda: ours.encode(text),
        }
    )
    table("Tokenization, English, one process", "kB/s", sum(len(line) for line in text) / 1e3, seconds)


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the benchmark."""

    text: list[str] = option(
        [], "Text files or glob patterns, to measure how records are made from them, and nothing else."
    )
    vocab_file: str | None = option(None, "The vocabulary, with --text.")
    dupe_factor: int = option(5, "How often the text is used.")

    def __post_init__(self) -> None:
        if bool(self.text) != bool(self.vocab_file):
            raise UserError("--text and --vocab_file go together; give both, or neither to measure everything")


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if options.vocab_file:
            inputs = list(map(os.path.abspath, files.expand(options.text, "text")))
            bench_records(inputs, os.path.abspath(options.vocab_file), folder, options.dupe_factor, FAST)
        else:
            bench_everything(folder, options.dupe_factor)


def bench_everything(folder: str, dupe_factor: int) -> None:
    """Gathers text and measures what this file can, with nothing but what Python and this package carry."""
    text, text_file, vocab_file = corpus.write_text(folder)
    inputs = [shutil.copy(text_file, f"{folder}/copy{number}.txt") for number in range(10)]
    bench_records(inputs, vocab_file, folder, dupe_factor, ALGORITHMS)
    bench_tokenization(text, vocab_file)


if __name__ == "__main__":
    Command(
        program="python -m tools.benchmarks.bench",
        summary="Measures speed, each thing against a peer in turn in one run",
        main=main,
        options=(Options,),
    ).run()
