"""Batches of like length against padding to 128: `python -m benchmarks.finetuning --data_dir=glue/SST-2 ...`.

Both train the same model on SST-2 for some steps, in turn, so that what else the machine does reaches both alike. With
--epochs both then learn to the end, from several seeds, the padded one in an order that knows no lengths, and their
accuracies are compared.
"""

import dataclasses
import statistics
import time
from typing import Any

from official_bert import command_line

# isort: split
import numpy as np

from official_bert.command_line import option
from official_bert.tasks import batches, glue
from official_bert.tasks.bad_rows import BadRows
from official_bert.tasks.starting import Start, read_start
from official_bert.tasks.task import Features
from official_bert.tasks.trainer import Plan, Trainer

_BATCH, _LENGTH = 32, 128
_PADDED, _LIKE = "padded to 128", "of like length"
_TASK = glue.TASKS["sst-2"]


@dataclasses.dataclass(frozen=True)
class Options:
    """What the benchmark is told."""

    data_dir: str = option(dataclasses.MISSING, "SST-2's folder.")
    init: str = option("configs/models/uncased_L-4_H-256_A-4.json", "What to train: a configuration, or a model.")
    vocab_file: str | None = option(None, "A vocab.txt, where --init has none.")
    steps: int = option(40, "Steps of each in a round.")
    rounds: int = option(5, "Rounds; the median counts.")
    epochs: int = option(0, "Epochs in which both learn, for their accuracy.")
    rows: int = option(20_000, "Examples of an epoch, the first ones.")
    seeds: int = option(3, "How often both learn.")
    learning_rate: float = option(5e-4, "Theirs, when they learn.")


def main(_: list[str]) -> None:
    options = command_line.read(Options)
    start = read_start(options.init, options.vocab_file)
    train = _TASK.read(options.data_dir, "train", BadRows())
    with start.tokenizer() as tokenizer:
        began = time.perf_counter()
        features = _TASK.featurize(train, tokenizer, _LENGTH)
        print(f"features: {len(train) / (time.perf_counter() - began):,.0f} examples/s")
        _compare_speed(options, start, features)
        if not options.epochs:
            return
        dev = _TASK.read(options.data_dir, "dev", BadRows())
        some, held_out = (_TASK.featurize(each, tokenizer, _LENGTH) for each in (train[: options.rows], dev))
        for name in (_PADDED, _LIKE):
            found = [_accuracy(options, name, start, some, held_out, dev, seed) for seed in range(options.seeds)]
            shown = ", ".join(f"{100 * each:.1f}" for each in found)
            print(f"{name}: accuracy {100 * statistics.fmean(found):.1f} % ({shown})")


def _compare_speed(options: Options, start: Start, features: Features) -> None:
    trainer = Trainer(_TASK, start, Plan(_BATCH, 5e-5, 10_000, 10_000, 0.1, 1000, _LENGTH, random_seed=1))
    plan = batches.training_plan(batches.row_lengths(features), _BATCH, seed=1, epoch=0)
    multiples = {_PADDED: _LENGTH, _LIKE: batches.MULTIPLE}
    rates: dict[str, list[float]] = {name: [] for name in multiples}
    for number in range(-1, options.rounds):  # the first round, which builds the graph, does not count
        first = max(number, 0) * options.steps
        rows = plan[first : first + options.steps]
        for name, multiple in multiples.items():
            data = batches.training_data(features, rows, _LENGTH, multiple=multiple)
            began = time.perf_counter()
            trainer.model.fit(data, verbose=0, shuffle=False)
            if number >= 0:
                rates[name].append(rows.size / (time.perf_counter() - began))
    medians = {name: statistics.median(each) for name, each in rates.items()}
    for name, median in medians.items():
        print(f"{name}: {median:,.1f} examples/s, {median / medians[_PADDED]:.1f} times")


def _accuracy(
    options: Options, name: str, start: Start, features: Features, held_out: Features, dev: list[Any], seed: int
) -> float:
    lengths = batches.row_lengths(features)
    per_epoch = -(-len(features) // _BATCH)
    steps = options.epochs * per_epoch
    trainer = Trainer(
        _TASK, start, Plan(_BATCH, options.learning_rate, steps, per_epoch, 0.1, per_epoch, _LENGTH, random_seed=seed)
    )
    for epoch in range(options.epochs):
        # Rows that are all as long share batches as chance has it.
        like = lengths if name == _LIKE else np.ones_like(lengths)
        plan = batches.training_plan(like, _BATCH, seed, epoch)
        multiple = batches.MULTIPLE if name == _LIKE else _LENGTH
        data = batches.training_data(features, plan, _LENGTH, multiple=multiple)
        trainer.model.fit(data, verbose=0, shuffle=False)
    predictions = _TASK.decode(trainer.predict(held_out, 64), held_out, dev)
    return _TASK.metrics(predictions, dev)["accuracy"]


if __name__ == "__main__":
    command_line.define(Options)
    command_line.run(main)
