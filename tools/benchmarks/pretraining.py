"""Compares a pre-training step with keras-hub and Hugging Face: `python -m tools.benchmarks.pretraining`.

Every program runs in a separate process, which trains for some steps when it is its turn. Records have length 128 and
20 predictions. The amounts of work differ: keras-hub has no next-sentence prediction, and Hugging Face's model computes
masked-LM scores for all 128 positions. In the rows "at equal work", it computes them for 20 positions, with a fused
optimizer and with the memory allocator settings of official_bert.
"""

import contextlib
import dataclasses
import functools
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from official_bert.utils.flags import option
from tools.benchmarks import measuring, samples

PROGRAMS: dict[str, dict[str, Any]] = {
    "official_bert": {"program": "official_bert"},
    "keras-hub": {"program": "keras_hub"},
    "Hugging Face": {"program": "hugging_face"},
    "Hugging Face, equal work": {"program": "hugging_face", "equal_work": True},
}


@dataclasses.dataclass(frozen=True)
class Options(measuring.Options):
    """The flags of the benchmark."""

    batch_size: int = option(32, "Records in a step.")
    steps: int = option(6, "Steps in a round.")
    input_file: str | None = option(
        None, "Records of length 128; by default they are made from Python's documentation."
    )


def take_steps(process: subprocess.Popen[str], examples: int) -> measuring.Metrics:
    """Lets a process run the training steps of one round, and returns its metrics."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{process.args!r} ended with exit code {process.wait()}")
    wall, user, system = json.loads(line)
    return {
        "examples/s": examples / wall,
        "examples/CPU-s": examples / (user + system),
        "CPU-ms an example, user": 1000 * user / examples,
        "system": 1000 * system / examples,
    }


def start(stack: contextlib.ExitStack, arguments: dict[str, Any]) -> subprocess.Popen[str]:
    """Starts a process of pretraining_peers. It is killed when the stack is closed."""
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-m", "tools.benchmarks.pretraining_peers", json.dumps(arguments)],
            cwd=measuring.ROOT, env=measuring.ENVIRONMENT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )
    )  # fmt: skip
    stack.callback(process.kill)
    return process


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        records = options.input_file and os.path.abspath(options.input_file)
        if not records:
            records = f"{folder}/records"
            _, text_file, vocab_file = samples.write_text(folder)
            samples.write_records(text_file, vocab_file, records)
        common = {"config": measuring.config_file(options.size), "records": records, "batch": options.batch_size,
                  "steps": options.steps}  # fmt: skip
        processes = {name: start(stack, {**common, **arguments}) for name, arguments in PROGRAMS.items()}
        examples = options.steps * options.batch_size
        programs = {name: functools.partial(take_steps, process, examples) for name, process in processes.items()}
        title = f"A pre-training step of BERT-{options.size.capitalize()}, length 128, batch {options.batch_size}"
        measuring.compare(title, programs, options.rounds, "examples/s")


if __name__ == "__main__":
    measuring.run_benchmark(main, Options)
