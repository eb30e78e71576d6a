"""Measures how long users wait after they start a program: `python -m tools.benchmarks.startup`.

Users wait for --help, the first step of a pre-training, the first answer of a SavedModel or of the server, or, for
comparison, the first answer of Hugging Face's pipeline with the same weights. Each is measured in a new process. Files
are in the page cache.
"""

import functools
import http.client
import itertools
import json
import pathlib
import socket
import sys
import tempfile
from collections.abc import Callable

from tools.benchmarks import measuring, samples
from tools.benchmarks.measuring import Options

_TEXT = "the first answer"
_SAVED_MODEL = f"""
import sys, tensorflow as tf, tensorflow_text
model = tf.saved_model.load(sys.argv[1] + "/1")
print(model.signatures["serving_default"](text=tf.constant(["{_TEXT}"]))["probabilities"].numpy())
"""
_PIPELINE = f"""
import sys, transformers
print(transformers.pipeline("text-classification", model=sys.argv[1], device="cpu")("{_TEXT}"))
"""


def start(command: list[str], is_ready: Callable[[], bool] | None = None) -> measuring.Metrics:
    """Runs a command to its end, or until `is_ready` returns True. Returns its metrics."""
    usage = measuring.run(command, is_ready)
    return {"seconds": usage.wall, "CPU-seconds": usage.cpu}


def pretrain(folder: str, vocab_file: str, numbers: "itertools.count[int]") -> measuring.Metrics:
    """Starts a pre-training and waits until it has logged its first step. Returns its metrics."""
    output = pathlib.Path(folder, f"run{next(numbers)}")
    log = output / "train.jsonl"
    command = [
        *measuring.COMMAND, "pretrain", "--do_train", f"--input_file={folder}/records", f"--output_dir={output}",
        f"--bert_config_file={folder}/trained/bert_config.json", f"--vocab_file={vocab_file}",
        "--num_train_steps=10000", "--log_steps=1", "--iterations_per_loop=1",
    ]  # fmt: skip
    return start(command, lambda: log.exists() and log.stat().st_size > 0)


def serve(export: str) -> measuring.Metrics:
    """Starts the server and waits until it has answered a text. Returns its metrics."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]

    def has_answered() -> bool:
        connection = http.client.HTTPConnection("localhost", port, timeout=60)
        try:
            connection.request("POST", "/v1/models/m:predict", json.dumps({"instances": [_TEXT]}))
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    return start([*measuring.COMMAND, "serve", f"--model=m={export}", f"--port={port}"], has_answered)


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _, text_file, vocab_file = samples.write_text(folder)
        samples.write_records(text_file, vocab_file, f"{folder}/records")
        trained = samples.write_classifier(options.size, vocab_file, folder)
        export, theirs = samples.export(trained, folder)["SavedModel"], samples.convert(trained, "hugging_face", folder)
        programs = {
            "official-bert --help": functools.partial(start, [*measuring.COMMAND, "--help"]),
            "official-bert pretrain --help": functools.partial(start, [*measuring.COMMAND, "pretrain", "--help"]),
            "pretrain, first step": functools.partial(pretrain, folder, vocab_file, itertools.count()),
            "SavedModel in Python, first answer": functools.partial(
                start, [sys.executable, "-c", _SAVED_MODEL, export]
            ),
            "serve, first answer": functools.partial(serve, export),
            "Hugging Face pipeline, first answer": functools.partial(start, [sys.executable, "-c", _PIPELINE, theirs]),
        }
        measuring.compare(f"Starts with BERT-{options.size.capitalize()}", programs, options.rounds, "seconds")


if __name__ == "__main__":
    measuring.run_benchmark(main, Options)
