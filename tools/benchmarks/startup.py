"""From the start of a process to what its user waits for: `python -m tools.benchmarks.startup`.

Each is a process of its own, as users start it: help, the first step of a pre-training, the first answer of an exported
model and of the server, and the first answer of Hugging Face's pipeline with the same weights. They take turns, and the
medians count. Files that were read before are in memory.
"""

import dataclasses
import http.client
import importlib.util
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from official_bert.errors import UserError
from official_bert.utils.command_line import Command
from official_bert.utils.flags import option
from tools.benchmarks import corpus
from tools.benchmarks.serving import NAMES, ROOT, SIZES, make_models

_POLL = 0.005  # seconds
_TEXT = "the first answer"
_PROGRAM = [sys.executable, "-m", "official_bert_cli"]
_SAVED_MODEL = f"""
import sys, tensorflow as tf, tensorflow_text
model = tf.saved_model.load(sys.argv[1] + "/1")
print(model.signatures["serving_default"](text=tf.constant(["{_TEXT}"]))["probabilities"].numpy())
"""
_PIPELINE = f"""
import sys, transformers
print(transformers.pipeline("text-classification", model=sys.argv[1], device="cpu")("{_TEXT}"))
"""


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the benchmark."""

    size: str = option("tiny", f"The model: {', '.join(NAMES)}.")
    rounds: int = option(5, "How often each is started; a first round warms up.")

    def __post_init__(self) -> None:
        if self.size not in SIZES or self.rounds < 1:
            raise UserError(f"--size={self.size} --rounds={self.rounds}; give {' or '.join(SIZES)}, and 1 or more")


class Start(NamedTuple):
    """Seconds by the clock, and of processor time, user and system."""

    wall: float
    cpu: float


def timed(command: list[str], log: pathlib.Path, is_there: Callable[[], bool] | None = None) -> Start:
    """Starts a process and waits until something is there, then kills it; or until it has ended by itself."""
    began = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
    if is_there:
        while not is_there():
            if process.poll() is not None:
                raise SystemExit(f"{command} ended too early: {log.read_text(errors='replace')}")
            time.sleep(_POLL)
        wall = time.perf_counter() - began
        process.kill()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if not is_there:
        wall = time.perf_counter() - began
        if process.returncode:
            raise SystemExit(f"{command} ended with code {process.returncode}: {log.read_text(errors='replace')}")
    return Start(wall, usage.ru_utime + usage.ru_stime)


def first_step(size: str, folder: pathlib.Path, vocab_file: str, run: int) -> Start:
    """Until a pre-training has logged its first step."""
    output = folder / f"run{run}"
    log = output / "train.jsonl"
    command = [
        *_PROGRAM, "pretrain", "--do_train", f"--input_file={folder / 'records.tfrecord'}", f"--output_dir={output}",
        f"--bert_config_file={folder / size}-trained/bert_config.json", f"--vocab_file={vocab_file}",
        "--num_train_steps=10000", "--log_steps=1", "--iterations_per_loop=1",
    ]  # fmt: skip
    return timed(command, folder / "log", lambda: log.exists() and log.stat().st_size > 0)


def first_answer_over_http(folder: pathlib.Path, exported: str) -> Start:
    """Until the server has answered a text."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]

    def is_there() -> bool:
        connection = http.client.HTTPConnection("localhost", port, timeout=60)
        try:
            connection.request("POST", "/v1/models/m:predict", json.dumps({"instances": [_TEXT]}))
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    return timed([*_PROGRAM, "serve", f"--model=m={exported}", f"--port={port}"], folder / "log", is_there)


def table(starts: Mapping[str, list[Start]]) -> str:
    """Returns the medians."""
    lines = ["| | seconds | CPU-seconds |", "|---|---|---|"]
    for name, several in starts.items():
        wall, cpu = (statistics.median(values) for values in zip(*several, strict=True))
        lines.append(f"| {name} | {wall:.2f} | {cpu:.2f} |")
    return "\n".join(lines)


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        _, text_file, vocab_file = corpus.write_text(name)
        corpus.write_records(text_file, vocab_file, f"{name}/records.tfrecord")
        vocab = pathlib.Path(vocab_file).read_text(encoding="utf-8")
        _, exported, theirs = make_models(options.size, vocab, name)
        runs = iter(range(options.rounds + 1))
        log = folder / "log"
        size = NAMES[options.size]
        candidates: dict[str, Callable[[], Start]] = {
            "official-bert --help": lambda: timed([*_PROGRAM, "--help"], log),
            "official-bert pretrain --help": lambda: timed([*_PROGRAM, "pretrain", "--help"], log),
            f"pretrain, {size}, first step": lambda: first_step(options.size, folder, vocab_file, next(runs)),
            f"SavedModel in Python, {size}, first answer": lambda: timed(
                [sys.executable, "-c", _SAVED_MODEL, exported], log
            ),
            f"serve, {size}, first answer": lambda: first_answer_over_http(folder, exported),
        }
        if importlib.util.find_spec("transformers"):
            candidates[f"Hugging Face pipeline, {size}, first answer"] = lambda: timed(
                [sys.executable, "-c", _PIPELINE, theirs], log
            )
        starts: dict[str, list[Start]] = {name: [] for name in candidates}
        for number in range(options.rounds + 1):
            for name, start in candidates.items():
                taken = start()
                if number:
                    starts[name].append(taken)
        print(f"\n{table(starts)}")


if __name__ == "__main__":
    Command(
        program="python -m tools.benchmarks.startup",
        summary="From the start of a process to what its user waits for",
        main=main,
        options=(Options,),
    ).run()
