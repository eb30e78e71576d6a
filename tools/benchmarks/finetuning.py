"""Compares fine-tuning with Hugging Face's Trainer and keras-hub: `python -m tools.benchmarks.finetuning`.

`official-bert finetune`, `fit` of official_bert, Hugging Face's Trainer and keras-hub's fit learn to classify the same
rows from the same weights, with the same batch size, learning rate and epochs. Each program runs in a separate process,
measured from its start to its score, and evaluates once, at the end. The time of steps is shown separately, since only
it grows with the length of the training.
"""

import dataclasses
import functools
import json
import pathlib
import shutil
import sys
import tempfile
import time

from official_bert.errors import UserError
from official_bert.utils.flags import ValidatedOptions, option
from tools.benchmarks import measuring, samples
from tools.benchmarks.finetuning_peers import TIMED_STEPS

PEERS = {"official_bert fit": "fit", "Hugging Face Trainer": "hugging_face", "keras-hub fit": "keras_hub"}
_DEV_ROWS = 500  # of Python's documentation


@dataclasses.dataclass(frozen=True)
class Options(ValidatedOptions):
    """The flags of the benchmark."""

    train_file: str | None = option(
        None,
        "TSV file with the columns sentence and label, such as SST-2's; default: made from Python's documentation.",
    )
    eval_file: str | None = option(None, "TSV file with the rows to score; required with --train_file.")
    init: str | None = option(
        None, "Model to start from, in any format that convert reads, or its name; default: random weights."
    )
    size: str = option("mini", "Size of random weights.", tuple(measuring.MODELS))
    max_seq_length: int = option(128, "Longest sequence in tokens.")
    batch_size: int = option(32, "Rows in a step.")
    rows: int = option(6400, "Number of rows to learn, from the start of the file.")
    epochs: int = option(1, "Number of epochs.")
    learning_rate: float = option(2e-4, "The highest learning rate.")
    rounds: int = option(3, "Number of rounds.", min=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.train_file) != bool(self.eval_file):
            raise UserError("--train_file and --eval_file go together; pass both or neither")
        if self.rows < 2 * TIMED_STEPS * self.batch_size:
            raise UserError(f"--rows is {self.rows}; expected at least {2 * TIMED_STEPS} batches")


def prepare(options: Options, folder: str) -> None:
    """Writes the training and dev rows, and the model, in the formats that the programs read."""
    sentences, _, vocab_file = samples.write_text(folder)
    if options.train_file and options.eval_file:
        rows, dev = (
            pathlib.Path(path).read_text(encoding="utf-8").splitlines()[1:]
            for path in (options.train_file, options.eval_file)
        )
    else:
        # The labels are arbitrary: the speed does not depend on them.
        rows = [f"{text}\t{len(text) % 2}" for text in sentences[: options.rows + _DEV_ROWS] if "\t" not in text]
        dev = rows[-_DEV_ROWS:]
    for name, some in (("train", rows[: options.rows]), ("dev", dev)):
        text = "\n".join(["sentence\tlabel", *some]) + "\n"
        pathlib.Path(folder, f"{name}.tsv").write_text(text, encoding="utf-8")
    init = options.init or samples.write_classifier(options.size, vocab_file, folder)
    for to_format in ("hugging_face", "keras_hub"):
        samples.convert(init, to_format, folder)


def finetune(options: Options, folder: str) -> measuring.Metrics:
    """Runs `official-bert finetune` and returns its metrics."""
    output = pathlib.Path(folder, "output")
    shutil.rmtree(output, ignore_errors=True)
    began = time.time()
    usage = measuring.run([
        *measuring.COMMAND, "finetune", "--task=table", f"--train_file={folder}/train.tsv",
        f"--eval_file={folder}/dev.tsv", "--text_column=sentence", f"--init={folder}/hugging_face",
        f"--output_dir={output}", f"--max_seq_length={options.max_seq_length}", "--do_train", "--do_eval",
        f"--train_batch_size={options.batch_size}", f"--learning_rate={options.learning_rate}",
        f"--num_train_epochs={options.epochs}", "--eval_steps=1000000", f"--log_steps={TIMED_STEPS}",
        "--group_by_length",
    ])  # fmt: skip
    import tensorflow as tf

    events = (
        event for path in (output / "train").iterdir() for event in tf.compat.v1.train.summary_iterator(str(path))
    )
    times = {event.step: event.wall_time for event in events if event.summary.value}
    accuracy = json.loads((output / "results.json").read_text())["dev"]["accuracy"]
    return make_metrics(options, began, usage, times, accuracy)


def run_peer(function: str, options: Options, folder: str) -> measuring.Metrics:
    """Runs a program, a function of finetuning_peers, and returns its metrics."""
    arguments = {**dataclasses.asdict(options), "folder": folder, "model": f"{folder}/hugging_face"}
    arguments |= {"seed": 0, "metric": "accuracy", "fit": {"group_by_length": True}}
    arguments["trainer"] = {"weight_decay": 0.01, "train_sampling_strategy": "group_by_length"}
    command = [sys.executable, "-m", "tools.benchmarks.finetuning_peers", function, json.dumps(arguments)]
    began = time.time()
    usage = measuring.run(command)
    result = usage.result()
    times = {int(step): seconds for step, seconds in result["times"].items()}
    return make_metrics(options, began, usage, times, result["score"])


def make_metrics(
    options: Options, began: float, usage: measuring.Usage, times: dict[int, float], accuracy: float
) -> measuring.Metrics:
    """Computes the metrics of a run.

    Args:
        options: The flags of the benchmark.
        began: Time at which the process was started.
        usage: Resources that the process used.
        times: The times at which some steps were done, by step.
        accuracy: The accuracy on the dev rows.
    """
    first, last = min(times), max(times)
    step = (times[last] - times[first]) / (last - first)
    return {
        "seconds": usage.wall,
        "to the first step": times[first] - first * step - began,
        "after the last": began + usage.wall - times[last],
        "rows/s": options.batch_size / step,
        "CPU-seconds": usage.cpu,
        "accuracy, %": 100 * accuracy,
    }


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory() as folder:
        prepare(options, folder)
        programs = {"official-bert finetune": functools.partial(finetune, options, folder)}
        programs |= {name: functools.partial(run_peer, each, options, folder) for name, each in PEERS.items()}
        model = options.init or f"BERT-{options.size.capitalize()}"
        title = f"Fine-tuning {model} on {options.rows:,} rows, batch {options.batch_size}, {options.epochs} epochs"
        measuring.compare(title, programs, options.rounds, "rows/s")


if __name__ == "__main__":
    measuring.run_benchmark(main, Options, ("--train_file=SST-2/train.tsv --eval_file=SST-2/dev.tsv --init=bert-mini",))
